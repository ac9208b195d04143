"""Horovod started and stopped in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from dlguide.horovod.native import ProcessSet, native

TIMELINE, ON_CALL = "HOROVOD_TIMELINE", "DYNAMIC"
# Horovod 0.28.1 keeps what was set by both of these, and then writes beyond the end of the empty
# list of what is left to tune when it starts again: a segmentation fault.
FATAL_TOGETHER = {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"}
# A rank died when Horovod 0.28.1 started again after it had tuned itself with a threshold that was
# set by hand.
TUNER = "HOROVOD_AUTOTUNE"

_OWNER = (
    "it {} MPI itself, and MPI starts once in a process. Write `import mpi4py.MPI` before the "
    "first `hvd.init()`; MPI then outlives Horovod."
)


class _Mpi:
    """Who started MPI in this process, and so ends it: no process can start it twice."""

    owner = ""


class _Horovod:
    """What Horovod was started with so far in this process."""

    fixed: frozenset[str] = frozenset()
    tuned = False
    records_on_call = False


def init(
    comm: Sequence[int] | Any | None = None, process_sets: Sequence[ProcessSet] | str | None = None
) -> None:
    """Start Horovod; every rank must call it.

    Args:
        comm: the ranks to take part, or an mpi4py communicator; None for all.
        process_sets: sets of ranks that will reduce among themselves, or "dynamic" to add them
            later with `hvd.add_process_set`.

    Raises:
        RuntimeError: when Horovod was stopped and cannot start again: its `hvd.shutdown()` ended
            MPI, both its fusion threshold and its cycle time were set, or it tuned itself.
    """
    if not native.is_initialized():
        problem = _ended() or _fatal()
        if problem:
            raise RuntimeError(f"Horovod cannot start again: {problem}")
        _Mpi.owner = "mpi4py" if "mpi4py.MPI" in sys.modules else "horovod"
        _Horovod.fixed |= FATAL_TOGETHER & set(os.environ)
        _Horovod.tuned |= os.environ.get(TUNER, "0") not in ("", "0")
        _Horovod.records_on_call = os.environ.get(TIMELINE) == ON_CALL
    native.init(comm, process_sets)


def shutdown() -> None:
    """Stop Horovod; every rank must call it, after its last collective.

    It may be started again only when `mpi4py.MPI` was imported before the first `hvd.init()`, or
    when Horovod runs over Gloo; and not when HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME were
    both set, nor after HOROVOD_AUTOTUNE with one of them set by hand.
    """
    if native.is_initialized() and native.mpi_enabled() and _Mpi.owner == "horovod":
        _Mpi.owner = "ended"
    native.shutdown()


def restart() -> None:
    """Stop Horovod and start it again, so that it reads its environment anew; every rank must call.

    Process sets that were added are gone then.

    Raises:
        RuntimeError: when Horovod cannot start again, see `shutdown`; it then runs on.
    """
    problem = restart_problem()
    if problem:
        raise RuntimeError(f"Horovod cannot start again: {problem}")
    shutdown()
    init()


def restart_problem() -> str:
    """Say why Horovod cannot be stopped and started again in this process."""
    owns = native.is_initialized() and native.mpi_enabled() and _Mpi.owner == "horovod"
    return (_OWNER.format("has started") if owns else "") or _ended() or _fatal()


def records_on_call() -> bool:
    """Tell whether `hvd.start_timeline` can be called."""
    return native.is_initialized() and _Horovod.records_on_call


def _ended() -> str:
    return _OWNER.format("had started and ended") if _Mpi.owner == "ended" else ""


def _fatal() -> str:
    names = " and ".join(sorted(_Horovod.fixed))
    if _Horovod.fixed == FATAL_TOGETHER:
        reason = f"{names} were both set, and Horovod 0.28.1 crashes when it starts a second time"
        reason += " with both."
    elif _Horovod.fixed and _Horovod.tuned:
        reason = f"it has tuned itself ({TUNER}) with {names} set by hand, and Horovod 0.28.1 may"
        reason += " crash when it starts again after that."
    else:
        return ""
    return f"{reason} Start new ranks, for example with `cluster.restart()`."
