"""A thread plan put into force in this process, before TensorFlow starts, and taken back."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dlguide.errors import require
from dlguide.machine.affinity import affinity, bind, spans
from dlguide.machine.threads.planning import ThreadPlan


@dataclass(frozen=True)
class ThreadState:
    """What `apply` found and `restore` brings back.

    Args:
        environment: the variables' values, None for those that were not set.
        affinity: logical CPUs of each thread of this process, by thread id.
    """

    environment: dict[str, str | None]
    affinity: dict[int, tuple[int, ...]]


def apply(plan: ThreadPlan, rank: int = 0) -> ThreadState:
    """Bind this process and all its threads to a rank's CPUs and set its thread variables.

    TensorFlow reads the variables once, when its first operation starts its thread pools.

    Args:
        plan: who runs where.
        rank: this process's rank of the plan.

    Returns:
        ThreadState: what was before, for `restore`.

    Raises:
        ValueError: when the plan has no such rank, or names CPUs this process may not use.
    """
    wanted = plan.environment(rank)
    if _tensorflow_started():
        warnings.warn(
            "TensorFlow has started its threads already, so their number stays as it is. Apply "
            "the plan before the first TensorFlow operation of the process.",
            RuntimeWarning,
            stacklevel=2,
        )
    state = ThreadState(
        {name: os.environ.get(name) for name in wanted},
        affinity(),
    )
    cpus, found = plan.cpus[rank], set(os.sched_getaffinity(0))
    try:
        bind({}, cpus)
        bound = os.sched_getaffinity(0) == set(cpus)
    except OSError:
        bound = False
    if not bound:
        restore(state)
        require(
            False,
            "plan",
            f"give rank {rank} logical CPUs this process may use, as it has {spans(found)}",
            spans(cpus),
            "Make the plan on the machine, and in the batch job, in which it is applied.",
        )
    os.environ.update(wanted)
    return state


def restore(state: ThreadState) -> None:
    """Bring back the variables and the affinity from before `apply`.

    Threads started in between get the affinity that the main thread had.

    Args:
        state: what `apply` returned.
    """
    for name, value in state.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    bind(state.affinity, state.affinity[os.getpid()])


@contextmanager
def applied(plan: ThreadPlan, rank: int = 0) -> Iterator[ThreadPlan]:
    """Apply a rank's part of the plan inside a `with` block and restore everything after it.

    Args:
        plan: who runs where.
        rank: this process's rank of the plan.

    Yields:
        ThreadPlan: the plan.

    Raises:
        ValueError: as `apply`.
    """
    state = apply(plan, rank)
    try:
        yield plan
    finally:
        restore(state)


def _tensorflow_started() -> bool:
    context = sys.modules.get("tensorflow.python.eager.context")
    return getattr(context and context.context(), "_context_handle", None) is not None
