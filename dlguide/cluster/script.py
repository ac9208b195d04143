"""`dlguide run`: a script on MPI ranks that never reports success if a rank has failed.

An MPI launcher alone reports success when a rank exits with `os._exit(0)`, and waits indefinitely
when one returns early. Here each rank records how its script ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlguide.cluster import errors, processes, script_lint, supervision
from dlguide.cluster.environment import MODULE, find_mpiexec, rank_environment, start_watchdog
from dlguide.cluster.errors import RankError
from dlguide.cluster.output import RankPipes, redirect
from dlguide.cluster.processes import PLAN
from dlguide.cluster.rank import BEAT_S, Monitor, collect_rarely, guarded, log_path
from dlguide.cluster.supervision import LOOK_S, RankProcesses, Replies, supervise
from dlguide.collectives import rendezvous
from dlguide.errors import ranks_in_words, require
from dlguide.files import atomic_write
from dlguide.machine import describe, threads
from dlguide.measure import launched

START_S = 60.0
END_S = 60.0  # libraries may take long to exit on ranks that share a core
GO = "go"  # the ranks begin when this file appears: from then on every death is seen


def run_script(
    script: str,
    arguments: Sequence[str] = (),
    ranks: int = 2,
    oversubscribe: bool = False,
    seed: int | None = None,
    gloo: bool = False,
) -> dict[str, Any] | None:
    """Run a Python script on MPI ranks of this machine and wait for its end.

    Args:
        arguments: the script's command line.
        oversubscribe: allow more ranks than cores.
        seed: of a Keras script for one process that the ranks run in parallel unchanged
            (`dlguide.horovod.transparent`); None for a script that uses MPI or Horovod itself.
        gloo: let Horovod exchange over Gloo, without MPI.

    Returns:
        The report of a transparent run, else None.

    Raises:
        RankError: if a rank failed, or the script cannot be made parallel.
        ValueError: if there is no such script, or there are more ranks than cores.
        MissingComponentError: if Horovod was built without Gloo.
    """
    require(Path(script).is_file(), "script", "be a file that exists", script)
    if seed is not None:
        _refuse(script, script_lint.check(script))
    if gloo:
        rendezvous.require_gloo()
    plan = threads.plan(describe(), ranks=ranks, oversubscribe=oversubscribe)
    mpiexec = find_mpiexec()
    name = uuid.uuid4().hex[:12]
    folder = Path(tempfile.mkdtemp(prefix=processes.PREFIX))
    env = {**rank_environment(plan, name, folder), "PYTHONUNBUFFERED": "1"}
    if seed is not None:
        env["PYTHONHASHSEED"] = str(seed)  # the order of sets decides the order of files
    start_watchdog(name, folder)
    rank_command = [*MODULE, "dlguide.cluster.script", str(folder), json.dumps([seed, gloo])]
    processes.remove_orphaned_shared_memory()
    pipes = RankPipes(folder, ranks, plain=[(0, 1)] if seed is not None else [])
    launcher = subprocess.Popen(
        [str(mpiexec), "-n", str(ranks), *rank_command, script, *arguments],
        env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    copier = threading.Thread(target=_copy_errors, args=(launcher, folder), daemon=True)
    copier.start()
    try:
        try:
            _wait(launcher, folder, ranks)
            copier.join(timeout=1.0)
        finally:
            pipes.close()  # before a failure is reported
        # The launcher reports success for ranks that a signal ended while they were leaving.
        endings = errors.read_endings(folder)
        if endings:
            lines = "\n".join(f"rank {rank}: {how}" for rank, how in sorted(endings.items()))
            raise RankError("died", sorted(endings), "ranks ended badly after their work.", lines)
        report = folder / "report.json"
        return json.loads(report.read_text()) if report.exists() else None
    except RankError:
        refused = folder / "refused"
        if refused.exists():
            _refuse(script, [refused.read_text()])
        raise
    finally:
        processes.end(name)
        processes.remove_folder(folder)


def _refuse(script: str, reasons: Sequence[str]) -> None:
    """Raise if there are reasons why a script cannot be made parallel."""
    if reasons:
        message = f"{script} cannot be made parallel:"
        raise RankError("refused", (), message, "\n".join(f"  {each}" for each in reasons))


def _copy_errors(launcher: subprocess.Popen, folder: Path) -> None:
    """Copy the launcher's own messages, and those about ended ranks to its log."""
    with (
        log_path(folder, 0).open("ab", buffering=0) as log,
        (folder / errors.LAUNCHER_LOG).open("ab", buffering=0) as launcher_log,
    ):
        for line in launcher.stderr:
            if errors.ENDING.match(line.decode(errors="replace")):
                launcher_log.write(line)
                continue
            log.write(line)
            sys.stderr.buffer.write(line)
            sys.stderr.flush()


def _wait(launcher: subprocess.Popen, folder: Path, ranks: int) -> None:
    """Wait for the ranks to begin, to answer and to end."""
    everyone = range(ranks)
    requests = dict.fromkeys(everyone, 1)
    deadline = time.monotonic() + START_S
    while len(states := supervision.read_states(folder, requests)) < ranks:
        if launcher.poll() is not None or time.monotonic() > deadline:
            missing = [rank for rank in everyone if rank not in states]
            raise RankError("died", missing, f"{ranks_in_words(missing)} did not begin.")
        time.sleep(LOOK_S)

    def collect(replies: Replies) -> None:
        for rank in everyone:
            path = _reply_path(folder, rank)
            if rank not in replies and path.exists():
                replies[rank] = json.loads(path.read_text())

    alive = RankProcesses({rank: state["pid"] for rank, state in states.items()})
    with contextlib.closing(alive) as pids:
        (folder / GO).touch()
        _, error = supervise(folder, ranks, requests, pids, collect)
    if error is not None:
        raise error
    try:
        status = launcher.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        status = "none: it did not end"
    if status != 0:
        message = f"the script ended on all ranks, but the launcher's exit status is {status}."
        raise RankError("died", everyone, message)


def _reply_path(folder: Path, rank: int) -> Path:
    """Return the file in which a rank records how its script has ended."""
    return folder / f"reply-rank{rank}.json"


def rank_main(
    folder: Path, seed: int | None, gloo: bool, script: str, arguments: list[str]
) -> None:
    """Run the script as one rank and record how it ended."""
    rank, ranks = launched()
    collect_rarely()
    redirect(folder, rank, silent=[1] if seed is not None and rank > 0 else [])
    threads.apply(threads.ThreadPlan.from_dict(json.loads(os.environ[PLAN])), rank)
    port = folder / "gloo-port"
    if gloo and rank == 0:
        port.write_text(str(rendezvous.serve(ranks).server_port))
    monitor = Monitor(folder, rank)
    monitor.enter("running", 1)
    while not (folder / GO).exists():
        time.sleep(LOOK_S)
    if gloo:
        os.environ.update(rendezvous.environment(rank, ranks, int(port.read_text())))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    path = script if seed is None else os.path.abspath(script)

    def call() -> None:
        session = None
        if seed is not None:
            from dlguide.horovod import transparent

            session = transparent.start(path, folder, seed)
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        if session is not None:
            transparent.finish(session)

    reply: dict[str, Any] = guarded(monitor, 1, call)
    for stream in (sys.stdout, sys.stderr):
        # A script may have closed them or replaced them, even by None.
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()
    with atomic_write(_reply_path(folder, rank)) as file:
        json.dump(reply, file)
    if reply["phase"] != "returned":
        # Exiting now would end the others before they can report what happened to them.
        time.sleep(10 * BEAT_S + END_S)
        os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    where, how, *rest = sys.argv[1:]
    rank_main(Path(where), *json.loads(how), rest[0], rest[1:])
