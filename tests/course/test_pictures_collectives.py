"""The pictures of collectives show the messages that the algorithms send, and end in the sum.

Tests dlcourse.pictures.communication.
"""

import pytest
from on_ranks import on_ranks

from dlcourse import pictures
from dlcourse.pictures.communication import Message, contributions, steps

pytestmark = pytest.mark.ranks

NAMES = ("tree", "ring", "recursive_doubling", "halving_doubling", "hierarchical")
DRAWN = (*NAMES, "hierarchical_parts")


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_everyone_has_everything_once_in_the_end(name, ranks):
    everyone = frozenset(range(ranks))
    *_, last = contributions(steps(name, ranks), ranks)
    assert all(part == everyone for parts in last for part in parts)


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


def test_only_leaders_speak_between_nodes():
    between = [
        m for step in steps("hierarchical", 8, 4) for m in step if m.source // 4 != m.target // 4
    ]
    assert between
    assert {m.source for m in between} | {m.target for m in between} == {0, 4}


def test_a_hierarchy_of_parts_sends_a_rings_bytes_few_of_them_between_nodes():
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
    # the hierarchical one sends through communicators of its own, which do not tell
    names = NAMES[:4] if ranks != 3 else NAMES[:2]
    for rank, record in enumerate(on_ranks(ranks, sent_messages, tmp_path, 60, names=names)):
        for name in names:
            drawn = [
                [m.target, list(m.parts)]
                for step in steps(name, ranks)
                for m in step
                if m.source == rank
            ]
            assert record[name] == drawn, (name, rank)


def test_the_figure_has_a_box_for_every_part_and_says_the_messages():
    figure = pictures.collective({"a tree": steps("tree", 2)}, 2)
    (axes,) = figure.axes
    assert len(axes.patches) == 3 * 2 * 2
    counts = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    assert counts == list("111122112222")
    assert "a tree: step 1, to be added: rank 1 to 0 parts 0+1; step 2, to be kept" in words(figure)


def test_adding_twice_and_impossible_schedules_are_refused():
    twice = ((Message(1, 0, (0,), True),),) * 2
    with pytest.raises(ValueError, match="`schedule` must add every rank's numbers once, got"):
        contributions(twice, 2)
    with pytest.raises(ValueError, match="`ranks` must be a power of two"):
        steps("recursive_doubling", 3)
    with pytest.raises(ValueError, match="`ranks` must fill whole nodes of 2, got 3"):
        steps("hierarchical", 3)
    with pytest.raises(ValueError, match="`name` must be one of"):
        steps("star")


def test_relative_times_divide_the_fastest_samples():
    from dlguide.bench.allreduce import AllreducePoint

    points = [
        AllreducePoint("library", 8, (2e-6, 3e-6)),
        AllreducePoint("ring", 8, (4e-6, 9e-6)),
    ]
    figure = pictures.relative_times(points, {"a model": {"ring": {8: 3e-6}}})
    assert "ring: 8 B 2.00" in words(figure)
    model = figure.axes[0].lines[-2]
    assert list(model.get_ydata()) == [1.5]
