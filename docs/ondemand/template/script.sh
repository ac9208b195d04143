#!/usr/bin/env bash
# JupyterLab on the learner's own copy of the notebooks.
set -eu
course=${DLGUIDE_COURSE:-/opt/dlguide}
copy="$HOME/dlguide"
[ -d "$copy" ] || cp -r "$course/notebooks" "$copy"

# Slurm tells this one task of an MPI job; every MPI program would wait for ranks that do not exist.
for name in $(env | sed -n 's/^\(PMIX\{0,1\}_[A-Za-z_0-9]*\)=.*/\1/p'); do unset "$name"; done

umask 077
cat >"$PWD/jupyter_server_config.py" <<CONFIG
c.ServerApp.ip = "0.0.0.0"
c.ServerApp.port = $port
c.ServerApp.port_retries = 0
c.ServerApp.base_url = "/node/$host/$port/"
c.ServerApp.allow_remote_access = True
c.ServerApp.open_browser = False
c.ServerApp.root_dir = "$copy"
c.IdentityProvider.token = "$password"
CONFIG
umask 022
exec "$course/.venv/bin/python" -m jupyterlab --config="$PWD/jupyter_server_config.py" "$@"
