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
    for prediction in fitted.predict([16, 32]):
        row = next(
            line for line in done.output.splitlines() if f"│ {prediction.workers:>7} │" in line
        )
        for part in (prediction.images_per_s, prediction.low, prediction.high):
            assert f"{part:.0f}" in row
        assert prediction.limited_by in row
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
    (prediction,) = predict.fit({1: 100, 2: 200, 4: 400}).predict([10])
    assert hours == pytest.approx(9e7 / prediction.images_per_s / 3600, rel=0.01)
    assert (nodes, node_hours) == (3, pytest.approx(3 * hours, rel=0.01))
    assert energy == pytest.approx(1.5 * node_hours, rel=0.01)


def test_picture_has_the_points_and_the_prediction():
    predictions = predict.fit(POINTS).predict([1, 2, 4, 8, 16, 32])
    drawn = plots.prediction(POINTS, predictions)
    lines = {line.get_label(): line for line in drawn.axes[0].lines}
    assert dict(zip(*lines["measured"].get_data(), strict=True)) == POINTS
    rates = [each.images_per_s for each in predictions]
    assert list(lines["predicted"].get_ydata()) == rates
    assert "efficiency" in drawn._repr_html_()
    with pytest.raises(ValueError, match="`predictions` must be two"):
        plots.prediction(POINTS, predictions[:1])
