"""The command for use cases: trains, resumes, times a step, and ends when interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import tiny_usecase
from interruptible import default_interrupt

from dlcourse import commands
from dlcourse.usecases import run as cases
from dlcourse.usecases import video
from dlguide import cluster
from dlguide.cluster import processes
from dlguide.training import checkpoint as checkpoints


@pytest.fixture
def dlguide(monkeypatch, capfd):
    """Give a function that runs the command with the tiny case and returns its output."""
    monkeypatch.setattr(commands, "find_case", lambda name: tiny_usecase)

    def run(*words):
        import typer
        from typer.testing import CliRunner

        app = typer.Typer()
        app.command()(commands.usecase)
        done = CliRunner().invoke(app, [*map(str, words)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output + capfd.readouterr().out

    return run


def outcomes(folder):
    return json.loads((folder / "outcome.json").read_text())


def test_command_trains_on_all_ranks_and_says_what_it_wrote(dlguide, tmp_path):
    said = dlguide("tiny", "--ranks", 2, "--output", tmp_path, "--seed", 3)
    first = outcomes(tmp_path)
    assert [each["ranks"] for each in first] == [2] * 2
    assert len({each["digest"] for each in first}) == 1
    for name in ("outcome.json", "findings.json"):
        assert str(tmp_path / name) in said


def test_a_second_call_goes_on_from_the_first_and_a_third_finds_it_finished(
    shared_clusters, tmp_path, capfd
):
    digests = []
    for epochs, folder in ((1, "parts"), (2, "parts"), (2, "parts"), (2, "whole")):
        cases.run(tiny_usecase, shared_clusters(2), tmp_path / folder, own={"epochs": epochs})
        digests.append(outcomes(tmp_path / folder)[0]["digest"])
    said = capfd.readouterr().out
    assert said.count("Resuming from") == said.count("finished training") == 1
    assert digests[0] != digests[1]
    assert digests[1] == digests[2] == digests[3]


def test_command_times_the_step_after_writing_the_results(dlguide, tmp_path):
    said = dlguide("tiny", "--output", tmp_path, "--speedup", "--set", "samples=80")
    record = json.loads((tmp_path / "speedup.json").read_text())
    assert (record["ranks"], record["batch"]) == (2, 8)
    assert "predicted from parts" in said
    assert len(outcomes(tmp_path)) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", 4096], "`ranks` must be at most the"),
        (["--real", "/nowhere"], "`real` must be a file or folder that is there, got '/nowhere'"),
        (["--set", "sample=3"], "Did you mean samples?"),
        (["--output", "/dev/null/build"], "`output` must be a folder this process can write to"),
    ],
)
def test_bad_arguments_are_refused_before_ranks_start(
    words, message, dlguide, monkeypatch, tmp_path
):
    monkeypatch.setattr(cluster, "Cluster", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        dlguide("tiny", *words)


@pytest.mark.parametrize(("ranks", "each"), [(2, 8), (3, 6), (4, 4)])
def test_timed_step_has_a_rank_s_share_of_the_global_batch(ranks, each):
    step = cases.timed_step(video, {"global_batch": 16}, None, 0, ranks)
    assert step.batch_per_rank == each  # clips of one rank


COMMAND = """
import sys, tiny_usecase
from dlcourse import commands
from dlguide import cli
commands.find_case = lambda name: tiny_usecase
sys.argv = ["dlguide", "usecase", "tiny", "--epochs", "100000", "--output", sys.argv[1]]
cli.main()
"""


def test_an_interrupted_command_leaves_a_checkpoint_and_no_process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.path.dirname(__file__),
        preexec_fn=default_interrupt,
    )  # fmt: skip
    owner = processes.identity(process.pid)
    deadline = time.monotonic() + 90
    while checkpoints.latest(tmp_path / "checkpoint") is None:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    mine = [each for each in processes.living() if each.owner == owner]
    assert len(mine) >= 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert checkpoints.read(checkpoints.latest(tmp_path / "checkpoint"))[0].epoch >= 1
    deadline = time.monotonic() + 15
    while left := [each for each in processes.living() if each.owner == owner]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
