"""The command for use cases: from a bad folder to a second call."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny_usecase
from interruptible import default_interrupt
from lanes import long
from PIL import Image

from dlcourse import commands
from dlcourse.usecases import kmeans, video
from dlcourse.usecases import run as cases
from dlguide import cluster
from dlguide.cluster import processes
from dlguide.training import checkpoint as checkpoints

pytestmark = pytest.mark.ranks


@pytest.fixture
def dlguide(monkeypatch, capfd):
    """Give a function that runs the command with the tiny case and returns what it says."""
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


@pytest.mark.parametrize("ranks", long(1, 3))
def test_all_ranks_of_a_cluster_train(ranks, shared_clusters, tmp_path):
    cases.run(tiny_usecase, shared_clusters(ranks), tmp_path, seed=3)
    first = outcomes(tmp_path)
    assert [each["ranks"] for each in first] == [ranks] * ranks
    assert len({each["digest"] for each in first}) == 1


def test_command_trains_on_all_ranks_and_says_what_it_wrote(dlguide, tmp_path):
    said = dlguide("tiny", "--ranks", 2, "--output", tmp_path, "--seed", 3)
    first = outcomes(tmp_path)
    assert [each["ranks"] for each in first] == [2] * 2
    assert len({each["digest"] for each in first}) == 1
    for text in ("tiny, 2 ranks", "tiny: loss", "2.8 times", "2 ranks"):
        assert text in said
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
    assert record["ranks"] == 2
    assert record["batch"] == 8
    found = json.loads((tmp_path / "findings.json").read_text())
    assert found[0]["ours"].endswith("times")
    assert "predicted from parts" in said
    assert len(outcomes(tmp_path)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", 0], "`ranks` must be a whole number"),
        (["--ranks", 4096], "`ranks` must be at most the"),
        (["--seed", -1], "`seed` must be a whole number of at least 0"),
        (["--ranks", 1, "--speedup"], "`speedup` must not be given for 1 rank"),
        (["--real", "/nowhere"], "`real` must be a file or folder that is there, got '/nowhere'"),
        (["--real", "/"], "`real` must hold tiny.txt, got '/'. Get it again."),
        (["--epochs", 0], "`epochs` must be at least 1, got 0"),
        (["--set", "sample=3"], "Did you mean samples?"),
        (["--set", "samples"], "`set` must be NAME=VALUE, got 'samples'"),
        (["--set", "samples=3", "--set", "samples=4"], "`set` must name each setting once"),
        (["--set", "checkpoint=x"], "`set` must be one of"),
        (["--set", "samples=x"], "`samples` must be a number, got 'x'"),
        (["--set", "samples=true"], "`samples` must be a number, got True"),
        (["--set", "epochs=3", "--epochs", 5], "`epochs` must be given once, by --epochs or by"),
        (["--set", "device=gpu", "--device", "cpu"], "`device` must be given once"),
        (["--output", "/dev/null/build"], "`output` must be a folder this process can write to"),
    ],
)
def test_command_says_what_is_wrong_before_ranks_start(words, said, dlguide, monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "Cluster", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        dlguide("tiny", *words)


def test_other_settings_than_those_of_the_checkpoint_are_refused_with_both_values(
    dlguide, monkeypatch, shared_clusters, tmp_path
):
    cases.run(tiny_usecase, shared_clusters(1), tmp_path, own={"samples": 80})
    record = json.loads((tmp_path / "settings.json").read_text())
    assert record == {
        "real": None, "seed": 0, "epochs": 1, "samples": 80, "device": "cpu", "ranks": None
    }  # fmt: skip
    written = (tmp_path / "outcome.json").read_bytes()
    monkeypatch.setattr(cluster, "Cluster", None)
    (tmp_path / "tiny.txt").write_text("")
    for words, said in (
        (["--set", "samples=100"], "`samples` must be 80 as in the training that {}, got 100."),
        ([], "`samples` must be 80 as in the training that {}, got 200."),
        (
            ["--set", "samples=80", "--seed", 3],
            "`seed` must be 0 as in the training that {}",
        ),
        (["--set", "samples=80", "--real", tmp_path], "`real` must be None as in the training"),
    ):
        with pytest.raises(ValueError, match=re.escape(said.format(f"{tmp_path} holds"))):
            dlguide("tiny", "--output", tmp_path, *words)
    assert (tmp_path / "outcome.json").read_bytes() == written


def test_a_longer_training_and_an_empty_checkpoint_are_no_other_settings(tmp_path):
    first = cases.require_settings(tiny_usecase, tmp_path, None, 0, {"samples": 80})
    (tmp_path / "settings.json").write_text(json.dumps(first))
    other = cases.require_settings(tiny_usecase, tmp_path, None, 1, {"samples": 100})
    assert (other["seed"], other["samples"]) == (1, 100)
    (tmp_path / "checkpoint" / "epoch-1").mkdir(parents=True)
    longer = cases.require_settings(tiny_usecase, tmp_path, None, 0, {"samples": 80, "epochs": 9})
    assert longer == {**first, "epochs": 9}
    with pytest.raises(ValueError, match=r"`samples` must be 80 .* got 100\. Choose another"):
        cases.require_settings(tiny_usecase, tmp_path, None, 0, {"samples": 100})


def test_settings_are_of_the_kind_that_the_case_takes():
    chest = commands.find_case("chest_xray")
    words = ["weights=5", "net=7", "image=64", "archive=300",
             "learning_rate=null"]  # fmt: skip
    assert cases.assigned(words, chest.OPTIONS) == {
        "weights": "5", "net": "7", "image": 64, "archive": 300,
        "learning_rate": None,
    }  # fmt: skip
    for own, said in (
        ({"head_times": "x"}, "`head_times` must be a number, got 'x'"),
        ({"batch_per_rank": None}, "`batch_per_rank` must be a number, got None"),
        ({"weights": 5}, "`weights` must be null or text, got 5"),
        ({"archive": [1]}, "`archive` must be a number or null or text, got [1]"),
        ({"device": "tpu"}, "`device` must be one of"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            cases.check(chest, "chest_xray", None, own, False)
    for name in commands.CASES:
        case = commands.find_case(name)
        own = {one: option.default for one, option in case.OPTIONS.items()}
        cases.check(case, name, None, own, False)


@pytest.mark.parametrize(("ranks", "each"), [(2, 8), (3, 6), (4, 4)])
def test_the_timed_step_has_a_rank_s_share_of_the_training_s_global_batch(ranks, each):
    step = cases.timed_step(video, {"global_batch": 16}, None, 0, ranks)
    assert step.batch_per_rank == each  # clips of one rank
    assert cases.timed_step(video, {}, None, 0, 2).batch_per_rank == 8  # of the 16 that train takes


def test_a_case_without_epochs_or_step_says_so_and_lists_its_settings():
    with pytest.raises(
        ValueError,
        match=r"`epochs` must not be given for kmeans, got 3\. kmeans "
        r"has no such setting; it has: colours, iterations",
    ):
        cases.check(kmeans, "kmeans", None, {"epochs": 3}, False)
    with pytest.raises(ValueError, match="`speedup` must not be given for kmeans"):
        cases.check(kmeans, "kmeans", None, {}, True)


@pytest.mark.parametrize("name", commands.CASES)
def test_every_case_has_what_the_command_calls(name):
    case = commands.find_case(name)
    assert callable(case.train)
    assert callable(case.write)
    arguments = inspect.signature(case.train).parameters
    own = any(one.kind is one.VAR_KEYWORD for one in arguments.values())
    for known, option in case.OPTIONS.items():
        assert own or arguments[known].default == option.default, known
    for taken in ("real", "seed", "checkpoint", "report"):
        assert taken in case.train.__code__.co_varnames[: case.train.__code__.co_argcount]


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


def picture(path, side=12):
    shades = np.linspace(0, 255, side).astype(np.uint8)
    pixels = np.stack([*np.broadcast_arrays(shades[:, None], shades[None], np.uint8(7))], -1)
    Image.fromarray(pixels).save(path)
    return pixels


def test_kmeans_draws_a_picture_with_few_colours(shared_clusters, tmp_path):
    given = tmp_path / "given.png"
    pixels = picture(given)
    own = {"colours": 5, "iterations": 7}
    found = cases.run(kmeans, shared_clusters(2), tmp_path, given, own=own)
    record = outcomes(tmp_path)
    drawn = np.asarray(Image.open(tmp_path / "quantised.png").convert("RGB"))
    assert drawn.shape == pixels.shape
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == 5 == len(record["palette"])
    off = np.sqrt(np.mean((drawn.astype(float) - pixels) ** 2))
    assert record["error"] == pytest.approx(off)
    assert record["nbytes"] == (tmp_path / "quantised.png").stat().st_size
    assert f"5 colours for {12 * 12} pixels" in found.outcomes[0].summary()
    assert found.findings == ()
    assert set(found.paths) == {tmp_path / "outcome.json", tmp_path / "quantised.png"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"colours": 257}, "`colours` must be at most 256"),
        ({"colours": 200}, "`colours` must be at most the colours of the photograph, got 200"),
        ({"iterations": 0}, "`iterations` must"),
        ({"real": "/nowhere.png"}, "`photograph` must be a file that is there"),
    ],
)
def test_kmeans_refuses_what_it_cannot_draw(asked, words, tmp_path):
    picture(tmp_path / "given.png")
    with pytest.raises(ValueError, match=words):
        kmeans.check(**{"real": tmp_path / "given.png", **asked})
