"""The ranks that tests share: a failure is reported in time and leaves no trace."""

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


def no_rank_ends():
    import time

    time.sleep(1000)


@pytest.mark.parametrize(
    ("function", "message"),
    [(one_raises, "rank 1 alone"), (no_rank_ends, "did not end within")],
)
def test_a_failure_is_reported_and_the_next_call_has_new_ranks(function, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        on_ranks(2, function, tmp_path, timeout_s=6)
    for _ in range(2):  # nor does a call leave anything to the next
        assert on_ranks(2, well, tmp_path) == [[1, True]] * 2
