"""The ranks that tests share: a failure is told, nobody waits for it, and it leaves no trace."""

import pytest
from on_ranks import on_ranks


def well():
    import os
    import sys

    from mpi4py import MPI

    clean = "LEFT_HERE" not in os.environ and "/left/here" not in sys.path
    os.environ["LEFT_HERE"] = "1"
    sys.path.append("/left/here")
    return [MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank), clean]


def one_raises():
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise ValueError("rank 1 alone")
    MPI.COMM_WORLD.barrier()


def one_leaves():
    import os

    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        os._exit(3)
    MPI.COMM_WORLD.barrier()


def none_ends():
    import time

    time.sleep(1000)


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_leave_nothing_to_the_next(ranks, tmp_path):
    for _ in range(2):
        assert on_ranks(ranks, well, tmp_path) == [[sum(range(ranks)), True]] * ranks


@pytest.mark.parametrize(
    ("function", "told"),
    [(one_raises, "rank 1 alone"), (one_leaves, "exit status"), (none_ends, "did not end within")],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_fails_is_told_and_the_next_call_has_new_ranks(function, told, tmp_path):
    with pytest.raises(AssertionError, match=told):
        on_ranks(2, function, tmp_path, timeout_s=6)
    assert on_ranks(2, well, tmp_path) == [[1, True]] * 2
