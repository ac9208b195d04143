"""The command line says what is wrong in one line, before any rank starts.

Tests dlguide.cli and dlguide.cli.training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from made_up_limits import LIMITS

from dlguide import cli
from dlguide.cli import training
from dlguide.errors import DataError
from dlguide.machine import describe
from dlguide.training.compare import ComparisonRow


@pytest.fixture
def dlguide(monkeypatch, capsys):
    """Give a function that runs a command line and returns exit status and error text."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["dlguide", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capsys.readouterr()
        status = left.value.code
        if isinstance(status, str):  # sys.exit(text) prints the text and exits with 1
            return 1, status
        return status, shown.out + shown.err

    return run


TOO_MANY = describe().usable_cores + 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", 0], "`ranks` must be a whole number of at least 1, got 0."),
        (["--ranks", TOO_MANY], f"got {TOO_MANY}. Use fewer ranks or `--oversubscribe`."),
        (["--epochs", -1], "`epochs` must be a whole number of at least 1, got -1."),
        (["--net", "mnist_cn"], "Did you mean mnist_cnn?"),
        (["--data", "cifar"], "`data` must be one of cifar10, fashion_mnist, mnist, got 'cifar'."),
        (
            ["--data", "cifar10"],
            "for mnist_cnn, got 'cifar10 of 32 x 32 x 3'. Use mnist or fashion",
        ),
        (["--device", "tpu"], "`device` must be one of cpu, gpu, got 'tpu'."),
        (["--optimizer", "adm"], "`optimizer` must be one of adam, sgd, got 'adm'."),
        (["--learning-rate", -0.1], "`learning_rate` must be a positive number, got -0.1."),
        (["--samples", 99, "--ranks", 1], "`batch_per_rank` must be at most the 99 samples"),
        (["--samples", 60001], "`samples` must be at most the 60000 of mnist, got 60001."),
        (["--output", "/dev/null/build"], "`output` must be a folder this process can write to"),
        (
            ["--save-every", 5],
            "`save_every` must be None without a folder, got 5. Give one with `--checkpoint`.",
        ),
        (["--net", "resnet99"], "got 'resnet99'. Did you mean resnet110?"),
        (["--ranks", "two"], "it must be a whole number, got 'two'."),
        (["--no-such-option"], "No such option"),
    ],
)
def test_train_says_what_is_wrong_before_ranks_start(dlguide, monkeypatch, words, said):
    monkeypatch.setattr("dlguide.cluster.Cluster", None)  # starting one would fail otherwise
    status, text = dlguide("train", *words)
    assert status not in (0, None)
    assert said in text
    assert "Traceback" not in text


def test_a_damaged_data_file_is_named_with_its_checksums(dlguide, monkeypatch, tmp_path):
    from dlguide.files import data_folder

    (tmp_path / "mnist").mkdir()
    for path in (data_folder() / "mnist").iterdir():
        (tmp_path / "mnist" / path.name).write_bytes(path.read_bytes()[:1000])
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path))
    status, text = dlguide("train", "--ranks", 1)
    assert status == 1
    assert "-ubyte.gz" in text
    assert "checksum" in text or "SHA-256" in text
    assert "`dlguide data fetch mnist`" in text


def test_cleanup_reports_what_it_ended_as_json(dlguide, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dlguide", "cleanup", "--json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code in (0, None)
    ended = json.loads(capsys.readouterr().out)
    assert os.getpid() not in [each["pid"] for each in ended]


def test_every_command_has_help(dlguide):
    status, text = dlguide("--help")
    assert status in (0, None)
    for name in ("train", "run", "doctor", "lab", "notebooks", "cleanup", "install-horovod"):
        assert name in text
        assert dlguide(name, "--help")[0] in (0, None)


def test_notes_of_an_error_are_shown(dlguide, monkeypatch):
    def refuse():
        error = DataError("no room")
        error.add_note("Submitted before it: 17.")
        raise error

    monkeypatch.setattr("dlguide.cluster.processes.cleanup", refuse)
    assert dlguide("cleanup") == (1, "dlguide: DataError: no room\nSubmitted before it: 17.")


def test_a_finished_training_has_no_speed(dlguide, monkeypatch, tmp_path):
    class Finished:
        def __init__(self, plan):
            pass

        def run(self, *_, **__):
            return [SimpleNamespace(images_per_s=0.0)]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("dlguide.cluster.Cluster", Finished)
    status, text = dlguide("train", "--ranks", 1, "--output", tmp_path)
    assert status in (0, None)
    assert "Nothing was trained, so there is no speed to show." in text


def test_an_error_of_another_library_shows_its_traceback(dlguide, monkeypatch):
    monkeypatch.setattr("dlguide.cluster.processes.cleanup", lambda: [1, 2][5])
    with pytest.raises(IndexError):
        dlguide("cleanup")
    monkeypatch.setattr("dlguide.cluster.processes.cleanup", lambda: int("two"))
    with pytest.raises(ValueError, match="invalid literal"):
        dlguide("cleanup")


def test_table_of_trainings_has_the_mfu_where_the_peak_was_measured(capsys):
    def row(threads, images_per_s):
        return ComparisonRow(1, "none", threads, images_per_s, 1.0, 1.0, None, 2.0)

    # 1e8 flops an image: the two cores of these limits could do 1000 images/s, one of them 500
    rows = [row(1, 100.0), row(2, 100.0), row(2, 0.0)]
    training._print_table(rows, [LIMITS.computing(1e8, each.threads) for each in rows])
    said = capsys.readouterr().out
    cells = [line.split("│")[-2].strip() for line in said.splitlines() if line.startswith("│")]
    assert cells == ["0.2", "0.1", "-"]
    assert "MFU: counted flops x images/s over" in said
    training._print_table(rows[:1], [None])
    said = capsys.readouterr().out
    assert "MFU: unknown; `dlguide bench limits` measures" in said


INTERRUPTED = """
import importlib.metadata, sys
class Interrupts:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts)
(command,) = importlib.metadata.entry_points(group="console_scripts", name="dlguide")
command.load()()
"""


@pytest.mark.parametrize("module", ["typer", "dlguide.cli.training", "dlcourse.commands"])
def test_an_interrupt_while_modules_are_loaded_ends_in_one_line(module):
    words = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nInterrupted.\n")
