"""The plots draw what was measured: their lines are held against the formulas.

Tests dlguide.plots.figures and dlguide.plots.training.
"""

import base64
import subprocess
import sys
from dataclasses import replace

import pytest
from test_measure import some_run

from dlguide import plots
from dlguide.measure import Utilisation

ROWS = [{"ranks": p, "images_per_s": s} for p, s in ((4, 300.0), (1, 100.0), (2, 180.0))]
RECORD = Utilisation(
    100.0, (0, 3), (0.2, 0.4, 0.6), ((10.0, 90.0), (20.0, 80.0), (30.0, 70.0)), ((0.1, "go"),)
)


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_scaling_draws_measured_ideal_and_efficiency():
    left, right = plots.scaling(ROWS).axes
    ideal, measured = left.lines
    assert measured.get_xydata().tolist() == [[1, 100], [2, 180], [4, 300]]
    assert ideal.get_xydata().tolist() == [[0, 0], [4, 400]]
    assert [bar.get_height() for bar in right.patches] == pytest.approx([100, 90, 75])
    assert texts(right) == ["100 %", "90 %", "75 %"]
    assert left.get_ylabel() == "images/s over all ranks"
    assert right.get_ylabel() == "parallel efficiency (%)"


def test_scaling_is_relative_to_the_fewest_ranks_there_are():
    _left, right = plots.scaling(ROWS[::2]).axes
    assert texts(right) == ["100 %", f"{100 * 300 / 360:.0f} %"]


def test_scaling_counts_the_slowest_of_a_run_s_ranks():
    runs = [some_run(rank=0, images_per_s=200.0), some_run(rank=1, images_per_s=190.0)]
    _ideal, measured = plots.scaling(runs).axes[0].lines
    assert measured.get_xydata().tolist() == [[2, 190]]


def test_scaling_refuses_nothing():
    with pytest.raises(ValueError, match=r"`runs` must hold at least one Run"):
        plots.scaling([])


def test_training_draws_every_epoch_and_every_second():
    run = some_run()
    loss, accuracy, seconds = plots.training(run).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 2.0], [2, 1.0]]
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 50.0], [2, 75.0]]
    widths = [bar.get_width() for bar in seconds.patches]
    assert widths == [run.setup_s, run.train_s, run.evaluate_s]


def test_training_that_went_on_begins_at_its_epoch():
    run = some_run(first_epoch=3, epochs=5)
    loss, accuracy, _seconds = plots.training([run]).axes
    assert loss.lines[0].get_xdata().tolist() == [4, 5]
    assert accuracy.lines[0].get_xdata().tolist() == [4, 5]


def test_training_that_was_finished_shows_the_accuracy_of_its_last_epoch():
    run = some_run(first_epoch=2, loss=(), test_accuracy=(0.9,), step_s=(), wait_s=())
    _loss, accuracy, _seconds = plots.training(run).axes
    assert accuracy.lines[0].get_xydata().tolist() == [[2, 90.0]]


def test_utilisation_draws_each_core_under_the_ranks_on_one_clock():
    run = some_run(started_unix_s=100.1, phases=(("setup", 0.0, 0.1), ("train", 0.1, 0.4)))
    ranks, first, second = plots.utilisation(RECORD, run).axes
    assert [bar.get_x() for bar in ranks.patches] == pytest.approx([0.1, 0.2])
    assert [bar.get_width() for bar in ranks.patches] == pytest.approx([0.1, 0.3])
    assert first.patches[0].get_data().values.tolist() == [10, 20, 30]
    assert second.patches[0].get_data().values.tolist() == [90, 80, 70]
    assert first.patches[0].get_data().edges.tolist() == [0, 0.2, 0.4, 0.6]
    assert (first.get_ylabel(), second.get_ylabel()) == ("core 0\nbusy (%)", "core 3\nbusy (%)")
    assert texts(first) == ["go"]
    assert len({axes.get_xlim() for axes in (ranks, first, second)}) == 1


def test_names_of_marks_that_lie_close_stand_side_by_side():
    drawn = plots.utilisation(replace(RECORD, marks=((0.30, "idle"), (0.32, "warm"))))
    drawn.canvas.draw()
    idle, warm = (text.get_window_extent() for text in drawn.axes[0].texts)
    assert idle.x1 <= warm.x0


def test_utilisation_without_runs_has_only_cores():
    assert len(plots.utilisation(RECORD).axes) == 2


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_path_gets_the_picture(ending, tmp_path):
    path = tmp_path / f"scaling.{ending}"
    plots.scaling(ROWS, path)
    assert path.stat().st_size > 1000


def shown(figure):
    """Give what a notebook shows of a figure: its MIME types, and the HTML."""
    from IPython.core.formatters import DisplayFormatter

    data, _metadata = DisplayFormatter().format(figure)
    return set(data), data["text/html"]


def test_a_notebook_shows_the_picture_and_reads_its_labels_aloud():
    kinds, html = shown(plots.scaling(ROWS))
    assert kinds == {"text/plain", "text/html"}
    assert "Throughput: images/s over all ranks against ranks; Efficiency: " in html
    encoded = html.split("base64,")[1].split('"')[0]
    assert base64.b64decode(encoded).startswith(b"\x89PNG")


def test_own_words_for_a_picture_are_escaped():
    figure, panels = plots.figure(rows=2, columns=2, alt='a <curve> that "falls"')
    assert len(panels) == 4
    assert 'alt="a &lt;curve&gt; that &quot;falls&quot;"' in shown(figure)[1]


def test_drawing_touches_nothing_global():
    script = (
        "import sys\n"
        "from dlguide import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.scaling([{'ranks': 1, 'images_per_s': 1.0}])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
