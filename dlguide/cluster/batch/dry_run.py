"""Run a batch script on this machine, without a batch system."""

from __future__ import annotations

import os
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dlguide import commands
from dlguide.cluster.batch.job import Job, Profile
from dlguide.cluster.batch.render import script
from dlguide.errors import require, require_count, require_positive

JOB_ID = "0"
# Bash becomes the script, so that the signal reaches it as Slurm's would.
_WARNED = '(sleep "$0" && kill -USR1 $$) & exec bash "$1"'


@dataclass(frozen=True)
class DryRun:
    """One run of a batch script: exit status, output, time, and whether it asked for a requeue."""

    status: int | None
    output: str
    seconds: float
    requeued: bool


def dry_run(
    job: Job,
    profile: Profile,
    folder: str | os.PathLike[str],
    link: int = 1,
    warn_after_s: float | None = None,
    timeout_s: float = 60.0,
) -> list[DryRun]:
    """Run the Slurm script of a job of one node here, and again whenever it requeues itself.

    The ranks, the staging and the end of the script are real; the queue, other nodes and the
    limits that Slurm enforces are not. Modules are not loaded.

    Args:
        profile: the site; its modules and directives have no effect here.
        folder: the program's folder, from which the job would be submitted.
        link: number of the job in its chain, from 1.
        warn_after_s: when the first run gets the signal before its time limit (s); None for never.
        timeout_s: time limit of a run; then all its processes are ended (s).

    Returns:
        One result per run; there is a second run if the first one requeued itself.

    Raises:
        ValueError: if the job needs several nodes, is for PBS, or starts its ranks itself.
    """
    require(job.nodes == 1, "nodes", "be 1 in a dry run", job.nodes)
    require(not job.inside, "inside", "be False in a dry run", job.inside)
    slurm = profile.scheduler
    require(slurm == "slurm", "scheduler", "be slurm in a dry run", slurm)
    require_count(link, "link")
    if warn_after_s is not None:
        require_positive(warn_after_s, "warn_after_s")
        must = "be None for a job without `requeue`, which a warning would end"
        require(job.requeue, "warn_after_s", must, warn_after_s)
    runs: list[DryRun] = []
    with tempfile.TemporaryDirectory(prefix="dlguide-dry-run-") as made:
        place = Path(made)
        lines = script(job, profile).splitlines(keepends=True)
        path = place / "job.sh"
        path.write_text("".join(each for each in lines if not each.startswith("module load ")))
        asked = place / "requeued"
        stands_in = place / "scontrol"
        stands_in.write_text(f'#!/bin/bash\ntouch "{asked}"\n')
        stands_in.chmod(0o755)
        while not runs or (runs[-1].requeued and len(runs) <= job.restarts):
            env = commands.without_mpi() | {
                "PATH": f"{place}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
                "SLURM_JOB_ID": JOB_ID,
                "SLURM_SUBMIT_DIR": str(Path(folder).absolute()),
                "SLURM_RESTART_COUNT": str(len(runs)),
                "DLGUIDE_LINK": str(link),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            words: list[object] = ["bash", path]
            if warn_after_s is not None and not runs:
                words = ["bash", "-c", _WARNED, warn_after_s, path]
            done = commands.run(words, timeout_s, env, folder)
            runs.append(DryRun(done.status, done.output, done.seconds, asked.exists()))
            asked.unlink(missing_ok=True)
    return runs
