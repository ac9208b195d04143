"""Lesson 54: its programs have the faults that it says, and absent backends are named."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from dlcourse import three_backends
from dlcourse.exercises import lesson_54

LENGTH = 6
# Programs of exercise 54-2: the loss of a rank, and how the gradients of ranks are combined.
PROGRAMS = {
    "own mean": (lambda comm, losses, valid: (losses * valid).sum() / valid.sum(), "mean"),
    "summed": (
        lambda comm, losses, valid: (losses * valid).sum() / comm.allreduce(valid.sum()),
        "sum",
    ),
    "averaged": (
        lambda comm, losses, valid: (losses * valid).sum() / comm.allreduce(valid.sum()),
        "mean",
    ),
    "scaled": (
        lambda comm, losses, valid: (
            (losses * valid).sum() / comm.allreduce(valid.sum()) * comm.size
        ),
        "mean",
    ),
    "by sentences": (
        lambda comm, losses, valid: (
            (losses * valid).sum() / valid.sum() * len(losses) / comm.allreduce(len(losses))
        ),
        "sum",
    ),
    "padded": (lambda comm, losses, valid: (losses * valid).mean(), "mean"),
}


class Ranks:
    """The communicator of one of several ranks that are computed one after the other."""

    def __init__(self, size, sums=None):
        self.size, self.sums, self.sent = size, sums, []

    def allreduce(self, value):
        self.sent.append(value)
        return 1 if self.sums is None else self.sums[len(self.sent) - 1]


def combined(program, exchange, parts):
    """What a program makes of the losses and marks of all ranks."""
    size, sent = len(parts), []
    for part in parts:  # what each rank hands to its allreduces
        comm = Ranks(size)
        program(comm, *part)
        sent.append(comm.sent)
    sums = [sum(values) for values in zip(*sent, strict=True)]
    results = [program(Ranks(size, sums), *part) for part in parts]
    return sum(results) / (size if exchange == "mean" else 1)


def parts_of(counts):
    """Three sentences per rank with so many valid tokens in all."""
    random = np.random.default_rng(54)
    for count in counts:
        valid = np.zeros(3 * LENGTH)
        valid[:count] = 1
        yield random.random((3, LENGTH)) + 1, random.permutation(valid).reshape(3, LENGTH)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_program_has_the_letter_that_its_numbers_give(name, ranks):
    def right(counts):
        parts = list(parts_of(counts))
        losses, valid = (np.concatenate(each) for each in zip(*parts, strict=True))
        truth = losses[valid == 1].mean()
        return combined(*PROGRAMS[name], parts) == pytest.approx(truth, rel=1e-12)

    equal, unequal = right([9] * ranks), right([9, 1, 5][:ranks])
    letter = "A" if equal and unequal else "B" if equal else "C"
    assert letter == lesson_54.EXERCISES["54-2"].right[name][0]


def test_table_of_programs_is_the_one_of_the_lesson():
    path = three_backends_lesson()
    for name in PROGRAMS:
        assert f'`"{name}"`' in path.read_text().replace('\\"', '"')


def three_backends_lesson():
    from dlcourse import NOTEBOOKS

    (path,) = NOTEBOOKS.glob("54_*.ipynb")
    return path


def test_absent_backends_are_named_with_their_commands(monkeypatch, capsys):
    find = importlib.util.find_spec
    absent = {"jax", "torch", "horovod"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )
    assert three_backends.here() == ["tensorflow"]
    said = capsys.readouterr().out
    for text in ("jax is not installed (`make jax`)", "`make pytorch`", "Horovod is not installed"):
        assert text in said


def test_apart_is_the_largest_difference():
    first = [np.zeros(3, "f4"), np.array([[1.0, 5.0]], "f4")]
    second = [np.array([0, 0.5, 0]), np.array([[1.0, 3.0]])]
    assert three_backends.apart(first, second) == 2.0
