"""The pictures of collectives show the messages that the algorithms send, and end in the sum."""

import pytest
from on_ranks import on_ranks

from dlcourse.pictures.communication import contributions, steps

NAMES = ("tree", "ring", "recursive_doubling", "halving_doubling")


@pytest.mark.parametrize("name", [*NAMES, "hierarchical", "hierarchical_parts"])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_every_rank_has_everything_once_at_the_end(name, ranks):
    *_, last = contributions(steps(name, ranks), ranks)
    assert all(part == frozenset(range(ranks)) for parts in last for part in parts)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_number_of_steps_and_parts_sent_are_those_of_the_formulas(ranks):
    log = ranks.bit_length() - 1
    for name, count, sent in (
        ("tree", 2 * log, None),
        ("ring", 2 * (ranks - 1), 2 * (ranks - 1)),
        ("recursive_doubling", log, log * ranks),
        ("halving_doubling", 2 * log, 2 * (ranks - 1)),
    ):
        schedule = steps(name, ranks)
        assert len(schedule) == count
        if sent is not None:
            for rank in range(ranks):
                mine = [m for step in schedule for m in step if m.source == rank]
                assert sum(len(m.parts) for m in mine) == sent


def test_hierarchy_of_parts_sends_as_much_as_a_ring_and_little_of_it_between_nodes():
    messages = [m for step in steps("hierarchical_parts", 8, 4) for m in step]
    between = [m for m in messages if m.source // 4 != m.target // 4]
    for rank in range(8):
        assert sum(len(m.parts) for m in messages if m.source == rank) == 2 * 7
        assert sum(len(m.parts) for m in between if m.source == rank) == 2


def sent_messages(names):
    """Record to whom this rank sends which elements of an array with one element per rank."""
    import numpy as np
    from mpi4py import MPI

    from dlguide.collectives import autotune

    size, first, found = 8, 0, []

    def note(buffer, to):
        start = (buffer[0].__array_interface__["data"][0] - first) // size
        found.append([to, list(range(start, start + buffer[1] // size))])

    class Noting(MPI.Intracomm):
        def Send(self, buffer, dest, *rest):
            note(buffer, dest)
            super().Send(buffer, dest, *rest)

        def Sendrecv(self, buffer, dest, *rest):
            note(buffer, dest)
            super().Sendrecv(buffer, dest, *rest)

    comm, record = Noting(MPI.COMM_WORLD), {}
    for name in names:
        array, found = np.ones(comm.size), []
        first = array.__array_interface__["data"][0]
        autotune.run(name, array, comm)
        record[name] = found
    return record


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_drawn_messages_are_those_that_the_algorithms_send(ranks, tmp_path):
    # the hierarchical one sends through its own communicators, which are not recorded
    names = NAMES if ranks != 3 else NAMES[:2]
    for rank, record in enumerate(on_ranks(ranks, sent_messages, tmp_path, 60, names=names)):
        for name in names:
            drawn = [
                [m.target, list(m.parts)]
                for step in steps(name, ranks)
                for m in step
                if m.source == rank
            ]
            assert record[name] == drawn, (name, rank)
