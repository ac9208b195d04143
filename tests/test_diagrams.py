"""Diagrams draw a box for every rank and say in words what they show."""

import pytest

from dlguide import diagrams

ENGINES = [{"rank": rank, "pid": 100 + rank, "cpus": [rank]} for rank in range(3)]


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def test_processes_has_the_kernel_and_every_rank_with_its_process_and_cores():
    figure = diagrams.processes(ENGINES)
    (axes,) = figure.axes
    assert len(axes.patches) == 4
    assert "rank 2\nprocess 102\nCPU 2\nits own memory" in texts(axes)
    assert "functions to 3 ranks" in words(figure)


def test_exchange_draws_who_has_what_before_and_after():
    panels = {"bcast": ([7, None], [7, 7], [(0, 0), (0, 1)]), "barrier": ([1, 2], [1, 2], [])}
    figure = diagrams.exchange(panels)
    bcast, barrier = figure.axes
    assert bcast.get_title() == "bcast"
    assert texts(bcast).count("7") == 3
    assert len(bcast.patches) == 4
    # An arrow is a text without words.
    assert len(bcast.texts) - len(texts(bcast)) - 1 == 2
    assert len(barrier.texts) - len(texts(barrier)) == 0
    assert "bcast: before rank 0 7, rank 1 nothing; after rank 0 7, rank 1 7." in words(figure)


def test_several_values_fit_into_a_box():
    figure = diagrams.exchange({"gather": ([1], [["c0", "c1", "c2", "c3"]], [])})
    assert "c0 c1 c2\nc3" in texts(figure.axes[0])


def test_exchange_fills_rows_and_leaves_the_rest_empty():
    panels = {str(number): ([1], [1], []) for number in range(4)}
    assert len(diagrams.exchange(panels).axes) == 6
    assert len(diagrams.exchange(panels, columns=2).axes) == 4


def test_timelines_say_who_waits_and_what_is_never_reached():
    rows = [[("Recv", "waits"), ("Send", "never")], [("Send", "done")]]
    figure = diagrams.timelines({"stuck": rows})
    (axes,) = figure.axes
    assert [patch.get_linestyle() for patch in axes.patches] == ["-", "--", "-"]
    assert "rank 0 Recv (waits for ever), then Send (never reached); rank 1 Send." in words(figure)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"`engines` must hold at least one rank"):
        diagrams.processes([])
    with pytest.raises(ValueError, match=r"`panels` must have 1 ranks after a"):
        diagrams.exchange({"a": ([1], [1, 2], [])})
    with pytest.raises(ValueError, match=r"`panels` must hold at least one communication"):
        diagrams.exchange({})
    with pytest.raises(ValueError, match=r"`state` must be one of done, never, waits, got 'x'"):
        diagrams.timelines({"a": [[("Send", "x")]]})
    with pytest.raises(ValueError, match=r"`panels` must hold at least one course"):
        diagrams.timelines({})
