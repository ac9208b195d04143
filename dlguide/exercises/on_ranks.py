"""A learner's function on the ranks of the learner's cluster, with other data on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlguide.exercises import NotAnswered, expect


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
        RankError: when a rank failed or the ranks wait for ever.
    """
    expect(callable(function), "a function", function, "Write it with `def`.")
    came = cluster.run(_call, function, list(inputs))
    if all(each is Ellipsis for each in came):
        raise NotAnswered
    return came


def _call(function: Callable[..., Any], inputs: list[Sequence[Any]]) -> Any:
    from mpi4py import MPI

    return function(MPI.COMM_WORLD, *inputs[MPI.COMM_WORLD.rank])
