"""Horovod's timeline of a part of a program, recorded by rank 0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlguide.errors import require
from dlguide.files import require_writable
from dlguide.horovod.native import native
from dlguide.horovod.runtime import ON_CALL, TIMELINE, init, records_on_call, restart
from dlguide.horovod.runtime import restart_problem as why_not_again


def init_for_recording() -> None:
    """Start Horovod, unless it runs, so that `record_timeline` can record; every rank must call.

    A thread of rank 0 then looks for something to write without a pause, which takes up to a
    whole core, until Horovod stops.
    """
    if not native.is_initialized():
        import mpi4py.MPI  # noqa: F401  MPI then outlives Horovod

        with _variable(ON_CALL):
            init()


@contextmanager
def record_timeline(path: str | os.PathLike, mark_cycles: bool = False) -> Iterator[None]:
    """Record what Horovod does in a block of code; every rank must enter it.

    Rank 0 writes the file, which is complete after the block; `dlguide.measure.timeline.read`
    reads it. When the block raises, the recording goes on.

    Horovod must have been started with HOROVOD_TIMELINE=DYNAMIC. Where it was not, it is stopped
    and started again, which loses process sets that were added; and once more after the block,
    because a thread of rank 0 takes up to a whole core as long as Horovod can record. Where it
    cannot be started again, that thread remains until the ranks end.

    Args:
        path: the file, on rank 0's machine; one that exists is replaced.
        mark_cycles: also note when each of Horovod's cycles begins.

    Raises:
        RuntimeError: when Horovod runs, cannot record and cannot be started again.
        ValueError: on all ranks, when rank 0 cannot write the file.
    """
    wanted = os.environ.get(TIMELINE) == ON_CALL
    init_for_recording()
    path = Path(path).absolute()
    problem = native.broadcast_object(_problem(path) if native.rank() == 0 else "", 0)
    if problem:
        raise ValueError(problem)
    if not records_on_call():
        with _variable(ON_CALL):
            restart()
    native.start_timeline(str(path), mark_cycles)
    yield
    native.stop_timeline()
    if not wanted and not why_not_again():
        with _variable(None):
            restart()


@contextmanager
def _variable(value: str | None) -> Iterator[None]:
    """Set HOROVOD_TIMELINE, or take it away, for the time of the block."""
    before = os.environ.pop(TIMELINE, None)
    if value is not None:
        os.environ[TIMELINE] = value
    try:
        yield
    finally:
        os.environ.pop(TIMELINE, None)
        if before is not None:
            os.environ[TIMELINE] = before


def _problem(path: Path) -> str:
    try:
        require(not path.is_dir(), "path", "be a file", str(path), "Name a file in that folder.")
        require_writable(path.parent, "path")
    except (ValueError, OSError) as error:
        return str(error)
    return ""
