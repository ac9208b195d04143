"""`dlguide predict` prints what the model says, and draws it.

Tests dlguide.cli.predicting and dlguide.plots.prediction.
"""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from dlguide import plots
from dlguide.cli.app import app
from dlguide.cli.predicting import predict as command
from dlguide.scaling import predict

assert command  # importing it adds the command
POINTS = {1: 210.15, 2: 375.41, 4: 769.49, 8: 1438.07}  # thesis, Tables 1, 4 and 7, batch 32


def run(*words):
    return CliRunner().invoke(app, ["predict", *map(str, words)])


def test_table_is_that_of_the_fit(tmp_path):
    text = ",".join(f"{p}:{rate}" for p, rate in POINTS.items())
    done = run("--points", text, "--workers", "16,32", "--output", tmp_path)
    assert done.exit_code == 0, done.output
    fitted = predict.fit(POINTS)
    for said in fitted.predict([16, 32]):
        row = next(line for line in done.output.splitlines() if f"│ {said.workers:>7} │" in line)
        for part in (said.images_per_s, said.low, said.high):
            assert f"{part:.0f}" in row
        assert said.limited_by in row
    for efficiency in (90, 80, 50):
        count = fitted.falls_below(efficiency / 100)
        assert f"Efficiency below {efficiency} %: from {count} workers on." in done.output
    assert all(each in done.output for each in fitted.assumptions)
    assert (tmp_path / "prediction.png").stat().st_size > 10_000


def test_time_nodes_and_energy_follow_from_the_throughput(tmp_path):
    words = ("--images", 9e7, "--workers-per-node", 4, "--watts-per-node", 1500)
    done = run("--points", "1:100,2:200,4:400", "--workers", "10", "--output", tmp_path, *words)
    assert done.exit_code == 0, done.output
    hours, nodes, node_hours, energy = map(
        float,
        re.search(
            r"10 workers: (\S+) h on (\d+) nodes, (\S+) node-hours, (\S+) kWh", done.output
        ).groups(),
    )
    (said,) = predict.fit({1: 100, 2: 200, 4: 400}).predict([10])
    assert hours == pytest.approx(9e7 / said.images_per_s / 3600, rel=0.01)
    assert (nodes, node_hours) == (3, pytest.approx(3 * hours, rel=0.01))
    assert energy == pytest.approx(1.5 * node_hours, rel=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--points", "1:100", "--workers", "8"), "`points` must have two numbers of workers"),
        (("--points", "1:100,2", "--workers", "8"), "`points` must be pairs such as"),
        (("--points", "1:100,2:x", "--workers", "8"), "`points` must hold a number"),
        (("--points", "1:100,2:-5", "--workers", "8"), "throughput above 0"),
        (("--points", "1:100,2:190", "--workers", "8.5"), "`workers` must hold a whole number"),
        (("--points", "1:100,2:190", "--workers", "0"), "`workers` must be a whole number"),
        (("--points", "1:9,2:18", "--workers", "8", "--images", "0"), "`images` must"),
        (("--points", "1:9,2:18", "--workers", "8", "--batch-factor", "0"), "`batch_factor` must"),
        (("--points", "1:9,2:18", "--workers", "8", "--workers-per-node", "0"), "workers_per_node"),
    ],
)
def test_what_cannot_be_is_said(words, said, tmp_path):
    done = run(*words, "--output", tmp_path)
    assert done.exit_code != 0
    assert isinstance(done.exception, ValueError)
    assert said in str(done.exception)


def test_picture_has_points_interval_and_parts():
    told = predict.fit(POINTS).predict([1, 2, 4, 8, 16, 32])
    drawn = plots.prediction(POINTS, told)
    left, right = drawn.axes
    (dots,) = [line for line in left.lines if line.get_label() == "measured"]
    assert dict(zip(*dots.get_data(), strict=True)) == POINTS
    (line,) = [line for line in left.lines if line.get_label() == "predicted"]
    assert list(line.get_ydata()) == [each.images_per_s for each in told]
    assert (left.get_xlabel(), left.get_ylabel()) == ("workers", "images/s")
    names = {each.get_label() for each in right.collections}
    assert names <= {"start", "bandwidth", "rounds", "stragglers", "servers", "capacity"}
    assert "efficiency" in drawn._repr_html_()
    assert "measured" not in {line.get_label() for line in plots.prediction({}, told).axes[0].lines}
    with pytest.raises(ValueError, match="`predictions` must be two"):
        plots.prediction(POINTS, told[:1])
