"""A learner's guesses are kept, locked by the measurement and set beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import dlcourse
from dlcourse import commands, guesses
from dlcourse.exercises import record
from dlcourse.exercises.record import Guess


@pytest.fixture(autouse=True)
def own_record(monkeypatch, tmp_path):
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DLCOURSE_STRICT", raising=False)


def held(name="20-speed"):
    return record.load().guesses.get(name)


def test_guess_is_kept_and_the_last_one_before_the_measurement_counts():
    dlcourse.guess("20-speed", images_per_s=9000)
    dlcourse.guess("20-speed", images_per_s=5000)
    shown = dlcourse.outcome("20-speed", images_per_s=[4000, 4200, 4100], model=4510)
    assert (shown.guess, shown.model, shown.measured) == (5000, 4510, 4100)
    assert (shown.low, shown.high) == (4000, 4200)
    assert (held().guess, held().model, held().measured) == (5000, 4510, 4100)
    assert held().unit == "images_per_s"
    for text in ("1.22 times the measurement", "1.10 times the measurement", "4,000 to 4,200"):
        assert text in str(shown)  # 5000 / 4100, 4510 / 4100


def test_a_computed_value_is_not_called_a_measurement():
    dlcourse.guess("93-tensor-bytes", tensor_against_data_times=13)
    shown = dlcourse.outcome("93-tensor-bytes", tensor_against_data_times=26, computed=True)
    assert "0.50 times the computed value" in str(shown)
    assert "measure" not in str(shown)


def test_measurement_locks_the_guess(capsys):
    dlcourse.guess("20-speed", images_per_s=5000)
    dlcourse.outcome("20-speed", images_per_s=4000)
    dlcourse.guess("20-speed", images_per_s=4000)
    assert "stays 5,000" in capsys.readouterr().out
    again = dlcourse.outcome("20-speed", images_per_s=3900)
    assert (again.guess, again.measured) == (5000, 3900)
    assert held().measured == 4000  # the first measurement is the one that was guessed


@pytest.mark.parametrize("value", ["fast", None, True, -1, math.nan, [5]])
def test_invalid_guess_is_one_line_that_names_what_is_expected(value, capsys):
    dlcourse.guess("20-speed", images_per_s=value)
    (line,) = capsys.readouterr().out.splitlines()
    assert "must be a number that is not negative (images per second)" in line
    assert repr(value) in line
    assert held() is None


@pytest.mark.parametrize("number", [np.float32(3), np.int64(3)])
def test_numbers_of_numpy_are_numbers(number):
    dlcourse.guess("20-speed", images_per_s=number)
    assert held().guess == 3
    assert dlcourse.outcome("20-speed", images_per_s=number).measured == 3
    assert dlcourse.outcome("20-speed", images_per_s=np.array([2, number, 4])).measured == 3


@pytest.mark.parametrize(
    ("guess", "measured", "factor"),
    [(2, 4, 2), (4, 2, 2), (3, 3, 1), (0, 0, 1), (0, 5, math.inf), (5, None, None)],
)
def test_factor_by_which_a_guess_is_off(guess, measured, factor):
    assert guesses.factor(Guess(guess, "a_s", 0.0, None, measured)) == factor


def learner(factors):
    record.path().unlink(missing_ok=True)
    for count, factor in enumerate(factors):
        dlcourse.guess(f"20-{count}", step_ms=10 * factor)
        dlcourse.outcome(f"20-{count}", step_ms=10)
    record.passed("20-1")


def test_calibration_counts_each_guess_once():
    learner([1, 1.2, 3, 0])
    text = guesses.calibration(record.load().guesses)
    counts = [int(line.split()[-1]) for line in text.splitlines()[1:-1]]
    assert counts == [1, 1, 0, 0, 1, 1]
    assert "4 guesses measured" in text
    assert "20 2.1" in text  # the median of 1, 1.2, 3 and infinity


def test_the_command_shows_guesses():
    learner([1, 3])
    app = typer.Typer()
    app.command()(commands.progress)
    assert "2 guesses measured" in CliRunner().invoke(app, []).output
