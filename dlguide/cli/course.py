"""The course's own commands: lab, notebooks, cleanup, install-horovod."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from dlguide.checks import require
from dlguide.cli.app import app


@app.command()
def lab(
    port: Annotated[int | None, typer.Option(help="Port; default: the first free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    folder: Annotated[Path | None, typer.Option(help="A copy of the notebooks.")] = None,
) -> None:
    """Open JupyterLab on the notebooks, on this machine only, with a token."""
    from dlguide.notebooks import QUIET, ROOT

    place = (folder or ROOT / "notebooks").resolve()
    require(place.is_dir(), "folder", "be a folder with notebooks", str(place))
    command = [sys.executable, "-m", "jupyterlab", str(place), "--ServerApp.ip=127.0.0.1"]
    if port is not None:
        _require_free(port)
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        command.append("--allow-root")
    with tempfile.TemporaryDirectory(prefix="dlguide-lab-") as folder:
        # Without the internet there are no news and no updates to ask for.
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        settings = Path(folder) / "labconfig" / "default_setting_overrides.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": quiet}))
        paths = [folder, os.environ.get("JUPYTER_CONFIG_PATH", "")]
        config = {"JUPYTER_CONFIG_PATH": os.pathsep.join(paths).rstrip(os.pathsep)}
        env = QUIET | os.environ | config
        raise typer.Exit(subprocess.run(command, env=env).returncode)


def _require_free(port: int) -> None:
    """Say before anything starts that a port of this machine is taken."""
    require(0 < port < 65536, "port", "be a number from 1 to 65535", port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            text = f"be free to listen on ({error.strerror})"
            require(False, "port", text, port, "Choose another, or leave --port out.")


@app.command()
def notebooks(
    names: Annotated[list[str] | None, typer.Argument(help="Numbers or files; all.")] = None,
    fast: Annotated[bool, typer.Option(help="Every lesson with less work, three at once.")] = False,
) -> None:
    """Execute notebooks from top to bottom, say how long each took, keep them for the slides."""
    from dlguide import notebooks

    begun_s = time.monotonic()
    if fast:
        well = notebooks.execute_all(names or [], fast=True, at_once=3)
    else:
        well = notebooks.execute_all(names or [], output=notebooks.KEPT)
    minutes, seconds = divmod(round(time.monotonic() - begun_s), 60)
    print(f"{minutes} min {seconds} s in all{' (the fast tour: less work)' if fast else ''}")
    if not well:
        raise typer.Exit(1)


@app.command()
def cleanup(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """End the processes that clusters have left behind, ours and only ours."""
    from dlguide.cluster import processes

    ended = processes.cleanup()
    if as_json:
        print(json.dumps([vars(each) for each in ended]))
        return
    for each in ended:
        print(f"ended {each.pid}: {each.command}")
    print(f"{len(ended)} left-over process{'' if len(ended) == 1 else 'es'} ended.")


@app.command("install-horovod")
def install_horovod(
    mpicc: Annotated[str | None, typer.Option(help="A site's own MPI compiler.")] = None,
    force: Annotated[bool, typer.Option(help="Build even when a wheel is in the cache.")] = False,
) -> None:
    """Build and install Horovod for this Python, TensorFlow and MPI."""
    from dlguide import install_horovod

    install_horovod.install(mpicc, force)
