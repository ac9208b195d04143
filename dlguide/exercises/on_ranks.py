"""A learner's function on the ranks of the learner's cluster, with other data on each rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dlguide.exercises import NotAnswered, expect
from dlguide.exercises.frames import Stopped
from dlguide.exercises.watching import LIMIT_S, Watch, at_rest

_STOPPED = re.compile(r"^(.*) raised dlguide\.exercises\.frames\.Stopped: (.*)$", re.MULTILINE)


def results(cluster: Any, function: Callable[..., Any], inputs: Sequence[Sequence[Any]]) -> list:
    """Call `function(comm, *inputs[rank])` on every rank and return one result per rank.

    The communicator is that of all ranks. The same data everywhere would prove nothing, so every
    rank has its own.

    Args:
        cluster: the learner's cluster.
        function: the learner's function; its first argument is an mpi4py communicator.
        inputs: for each rank the further arguments.

    Returns:
        list: one result per rank, in rank order.

    Raises:
        WrongAnswer: when it is no function.
        NotAnswered: when every rank returned `...`.
        Stopped: when it did not end, took too much memory or printed too much on a rank.
        RankError: when a rank failed or the ranks wait for ever.
    """
    expect(callable(function), "a function", function, "Write it with `def`.")
    came = run(cluster, _call, function, list(inputs))
    if all(each is Ellipsis for each in came):
        raise NotAnswered
    return came


def run(
    cluster: Any, function: Callable[..., Any], *args: Any, limit_s: float = LIMIT_S
) -> list[Any]:
    """Run a function on all ranks of a cluster, on each of them under watch.

    The clock of the check in the notebook rests meanwhile: to start ranks takes its time.

    Args:
        cluster: the learner's cluster.
        function: one that can be pickled; all ranks call it.
        args: its arguments.
        limit_s: what it may take on a rank, without what that waits for others (s).

    Returns:
        list: one result per rank, in rank order.

    Raises:
        Stopped: when it was stopped on a rank.
        RankError: when a rank failed or the ranks wait for ever.
    """
    with at_rest():
        try:
            return cluster.run(_watched, limit_s, function, args)
        except RuntimeError as error:
            stopped = _STOPPED.search(str(error))
            if stopped is None:
                raise
            raise Stopped(f"{stopped[2]} on {stopped[1]}") from None


def _watched(limit_s: float, function: Callable[..., Any], args: tuple) -> Any:
    return Watch(limit_s, rank=True).run(function, *args)


def _call(function: Callable[..., Any], inputs: list[Sequence[Any]]) -> Any:
    from mpi4py import MPI

    return function(MPI.COMM_WORLD, *inputs[MPI.COMM_WORLD.rank])
