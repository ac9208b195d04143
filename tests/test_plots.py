"""Plots show the data they are given, describe it in words, and refuse what cannot be drawn."""

from __future__ import annotations

import base64
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from test_measure import some_run

from dlcourse import pictures
from dlcourse.horovod_timeline import (
    COPY_IN,
    EXCHANGE,
    NEGOTIATION,
    FusedMessage,
    TensorActivity,
    Timeline,
)
from dlcourse.phases import Utilisation
from dlcourse.pictures.communication import COLOURS, COMPUTE
from dlguide import plots

ROWS = [{"ranks": p, "images_per_s": s} for p, s in ((4, 300.0), (1, 100.0), (2, 180.0))]


RECORD = Utilisation(
    100.0, (0, 3), (0.2, 0.4, 0.6), ((10.0, 90.0), (20.0, 80.0), (30.0, 70.0)), ((0.1, "go"),)
)


def test_scaling_draws_measured_ideal_and_efficiency():
    left, right = plots.scaling(ROWS).axes
    ideal, measured = left.lines
    assert measured.get_xydata().tolist() == [[1, 100], [2, 180], [4, 300]]
    assert ideal.get_xydata().tolist() == [[0, 0], [4, 400]]
    assert [bar.get_height() for bar in right.patches] == pytest.approx([100, 90, 75])


def test_scaling_counts_the_slowest_of_a_run_s_ranks():
    runs = [some_run(rank=0, images_per_s=200.0), some_run(rank=1, images_per_s=190.0)]
    _ideal, measured = plots.scaling(runs).axes[0].lines
    assert measured.get_xydata().tolist() == [[2, 190]]


def test_training_draws_every_epoch_and_every_second():
    run = some_run()
    loss, accuracy, seconds = plots.training(run).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 2.0], [2, 1.0]]
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 50.0], [2, 75.0]]
    widths = [bar.get_width() for bar in seconds.patches]
    assert widths == [run.setup_s, run.train_s, run.evaluate_s]


def test_utilisation_draws_each_core_under_the_ranks_on_one_clock():
    run = some_run(started_unix_s=100.1, phases=(("setup", 0.0, 0.1), ("train", 0.1, 0.4)))
    ranks, first, second = pictures.utilisation(RECORD, run).axes
    assert [bar.get_x() for bar in ranks.patches] == pytest.approx([0.1, 0.2])
    assert [bar.get_width() for bar in ranks.patches] == pytest.approx([0.1, 0.3])
    assert first.patches[0].get_data().values.tolist() == [10, 20, 30]
    assert second.patches[0].get_data().values.tolist() == [90, 80, 70]
    assert first.patches[0].get_data().edges.tolist() == [0, 0.2, 0.4, 0.6]
    assert len({axes.get_xlim() for axes in (ranks, first, second)}) == 1


def shown(figure):
    """Give what a notebook shows of a figure: its MIME types, and the HTML."""
    from IPython.core.formatters import DisplayFormatter

    data, _metadata = DisplayFormatter().format(figure)
    return set(data), data["text/html"]


def test_a_notebook_shows_the_picture_and_reads_its_labels_aloud():
    kinds, html = shown(plots.scaling(ROWS))
    assert kinds == {"text/plain", "text/html"}
    assert "Throughput: images/s over all ranks against ranks; ideal, from 1 rank: 0 at 0" in html
    assert "measured: 100 at 1, 180 at 2, 300 at 4" in html
    assert "bars 100, 90, 75" in html
    encoded = html.split("base64,")[1].split('"')[0]
    assert base64.b64decode(encoded).startswith(b"\x89PNG")


def test_drawing_touches_nothing_global():
    script = (
        "import sys\n"
        "from dlguide import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.scaling([{'ranks': 1, 'images_per_s': 1.0}])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def event(tensor, phase, start_s, end_s):
    return TensorActivity(tensor, "allreduce", phase, start_s, end_s)


def recorded():
    """Two tensors in one message from 20 to 30 ms and a third one alone from 30 to 32 ms."""
    fused = [
        each
        for tensor in ("net_a", "net_b")
        for each in (
            event(tensor, NEGOTIATION, 0.010, 0.020),
            event(tensor, COPY_IN, 0.020, 0.022),
            event(tensor, EXCHANGE, 0.022, 0.030),
        )
    ]
    messages = (
        FusedMessage("allreduce", ("net_a", "net_b"), 0.020, 0.030),
        FusedMessage("allreduce", ("net_c",), 0.030, 0.032),
    )
    events = (*fused, event("net_c", EXCHANGE, 0.030, 0.032))
    return Timeline(None, events, messages, ())


def bars_of(axes, colour):
    """Return (lane, begin, width) of the bars of a colour, in milliseconds."""
    found = []
    for collection in axes.collections:
        for path in collection.get_paths():
            if to_hex(collection.get_facecolor()[0]) == colour.lower():
                (left, bottom), (right, top) = path.get_extents().get_points()
                found.append((round((bottom + top) / 2), left, right - left))
    return found


def test_bars_lie_in_their_lanes_where_the_events_were():
    figure = pictures.timeline(recorded(), steps=[(0.0, 0.04)])
    (axes,) = figure.axes
    exchanges = sorted(bars_of(axes, COLOURS[EXCHANGE]))
    assert np.allclose(exchanges, [(1, 22, 8), (2, 22, 8), (3, 30, 2)])
    assert np.allclose(sorted(bars_of(axes, COLOURS[NEGOTIATION])), [(1, 10, 10), (2, 10, 10)])
    # lane 0: the step without what happened from 10 to 32 ms
    assert np.allclose(sorted(bars_of(axes, COLOURS[COMPUTE])), [(0, 0, 10), (0, 32, 8)])


@pytest.mark.parametrize(
    ("draw", "argument", "text"),
    [
        (plots.scaling, [], "`runs` must hold at least one TrainingResult"),
        (
            pictures.timeline,
            Timeline(None, (), (), ()),
            "`recorded` must hold an event, got",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, argument, text):
    with pytest.raises(ValueError, match=text):
        draw(argument)
