"""The driver of the benchmarks: rows, verdicts, what fails or cannot be measured, the page."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def loaded(monkeypatch):
    """The driver's module as it is."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("benchmarks_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """The driver, which writes into a folder of the test, with scripts that measure nothing."""
    module = loaded(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path))
    scripts = {
        "steady": "report('a, b', [1.02, 1.0, 1.01], least=1, share=0.5)",
        "missed": "compare('slower', [2.0, 2.0, 2.1], [1.0, 1.0, 1.0], least=0.98)",
        "unclear": "compare('equal', [1.0, 2.0, 1.0], [1.0, 1.0, 2.0], least=0.9)",
        "noisy": "compare('slower', [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], least=0.98)",
        "none_lost": "report('lost', [0.0, 0.0, 0.0], most=0)",
        "failing": "report('first', [1.0]); raise RuntimeError('no | disk')",
        "silent": "pass",
        "hanging": "import time; time.sleep(60)",
    }
    for name, line in scripts.items():
        (tmp_path / f"{name}.py").write_text(f"from report import compare, report\n{line}\n")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(module, "BENCHMARKS", dict.fromkeys(scripts, module.Benchmark(cores=1)))
    return module


@pytest.mark.parametrize(
    ("name", "verdict", "value"),
    [
        ("steady", "kept", 1.01),
        ("missed", "missed", 0.5),
        ("unclear", "unclear", 1.0),
        ("noisy", "missed", 0.5),
        ("none_lost", "kept", 0.0),
        ("silent", "failed", ""),
    ],
)
def test_verdict_follows_from_promise_and_spread(driver, tmp_path, name, verdict, value):
    (row,) = driver.run(name, driver.Benchmark(cores=1), tmp_path)
    assert (row["benchmark"], row["verdict"], row["value"]) == (name, verdict, value)


@pytest.mark.parametrize(
    ("low", "high", "least", "most", "expected"),
    [
        (0.5, 0.7, 0.9, 1.1, "missed"),
        (1.2, 1.3, 0.9, 1.1, "missed"),
        (0.9, 1.1, 0.9, 1.1, "kept"),
        (0.8, 1.0, 0.9, 1.1, "unclear"),
        (0.8, 1.2, 0.9, 1.1, "unclear"),
        (1.0, 2.0, None, 0, "missed"),
        (-1.0, 1.0, 0, None, "unclear"),
        (1.0, 2.0, None, None, ""),
    ],
)
def test_a_promise_is_judged_by_both_quartiles(driver, low, high, least, most, expected):
    assert sys.modules["report"].verdict(low, high, least, most) == expected


def test_failing_and_hanging_scripts_have_a_row_that_says_so(driver, tmp_path):
    first, failed = driver.run("failing", driver.Benchmark(cores=1), tmp_path)
    assert first["value"] == 1.0
    assert failed["verdict"] == "failed: RuntimeError: no | disk"
    (hung,) = driver.run("hanging", driver.Benchmark(cores=1), tmp_path, limit_s=2)
    assert hung["verdict"] == "failed: did not end in 2 s"


def test_what_cannot_be_measured_here_is_reported_and_no_failure(driver, tmp_path, monkeypatch):
    (row,) = driver.run("failing", driver.Benchmark(cores=1, needs="not_there"), tmp_path)
    assert row["verdict"] == "not measured: not_there is not installed"
    one_core = SimpleNamespace(usable_cores=1)
    monkeypatch.setattr(driver.machine, "describe", lambda: one_core)
    (row,) = driver.run("failing", driver.Benchmark(), tmp_path)
    assert row["verdict"] == "not measured: needs 2 cores, there is 1"


def test_page_keeps_the_rows_of_what_is_not_measured_again(driver, capsys):
    assert driver.main(["unclear", "steady"]) == 0
    assert driver.main(["steady", "missed"]) == driver.MISSED_STATUS == 3
    assert driver.main(["missed", "failing"]) == driver.FAILED_STATUS == 1
    assert "RuntimeError" in capsys.readouterr().out
    lines = [line for line in driver.PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == [
        *("steady", "missed", "unclear", "failing", "failing")
    ]
    assert "| a, b | 1.01 (1 to 1.02) | at least 1 | kept | 0.5 | 1% |" in lines[0]
    assert "no / disk" in lines[-1]
    assert all(line.count("|") == 9 for line in lines)
    assert driver.measured.load("benchmarks").about["machine"] in driver.PAGE.read_text()
    with pytest.raises(SystemExit):
        driver.main(["stedy"])


# Each script with sizes that show whether it runs, not how fast.
TINY = {
    "packed_reading": "--nbytes 1000000 --large 1000000 --repeats 2 --sizes 110000 --only 2 3",
    "fit_against_hand_written": "--batch 20 --steps 12 --turns 1",
    "pipeline_feeds_mnist": "--batch 20 --steps 12 --epochs 2",
    "two_ranks_against_one": "--samples 1200 --turns 1",
    "step_prediction": "--nets mlp=20 --steps 6",
    "horovod_against_ddp": "--samples 1200 --turns 1",
    "kmeans": "--turns 1 --clusters 4",
    "pipeline_bubble": "--microbatches 4 --samples 8 --width 64 --repeats 2",
    "overlap_by_way": "--nbytes 100000 --compute-s 0.002 --repeats 3",
    "auto_allreduce": "--repeats 1",
    "checkpoint_kills": "--times 1",
    "tuner_against_grid": "--budget 25 --effort 0.3 --turns 2",
}


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "name",
    [name if place == 0 else pytest.param(name, marks=pytest.mark.long)
     for place, name in enumerate(TINY)],
)  # fmt: skip
def test_benchmark_runs_and_reports(name, monkeypatch):
    driver = loaded(monkeypatch)
    benchmark = replace(driver.BENCHMARKS[name], arguments=tuple(TINY[name].split()))
    rows = driver.run(name, benchmark, FOLDER, limit_s=250)
    assert rows
    assert not [row for row in rows if row["verdict"].startswith("failed")]
