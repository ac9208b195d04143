"""Notebook 53's checks tick what is right on 1 to 3 ranks and name the usual mistakes."""

import numpy as np
import pytest

from dlguide import exercises
from dlguide.parallel import pytorch_buckets, pytorch_weights


def within(nbytes, cap):
    """Horovod's rule, which closes a message before it grows beyond the threshold."""
    found = []
    for size in nbytes:
        if found and found[-1] + size <= cap:
            found[-1] += size
        else:
            found.append(size)
    return found


def carried(kernel, height, width, channels):
    blocks = kernel.reshape(height, width, channels, -1)
    return blocks.transpose(3, 2, 0, 1).reshape(kernel.shape[1], -1)


def turned(kernel, height, width, channels):
    blocks = kernel.reshape(height, width, channels, -1)
    return blocks.transpose(3, 2, 1, 0).reshape(kernel.shape[1], -1)


LETTERS = {symptom: letter for symptom, (letter, _) in exercises._module("53").CAUSES.items()}
RIGHT = {"53-1": pytorch_buckets.sizes, "53-2": carried, "53-4": LETTERS}
EMPTY = {"53-4": [dict.fromkeys(LETTERS, ...)]}
WRONG = {
    "Horovod's rule": ("53-1", within, "at least"),
    "rest forgotten": ("53-1", lambda n, c: pytorch_buckets.sizes(n, c)[:-1], "leaves too"),
    "backwards": ("53-1", lambda n, c: pytorch_buckets.sizes(n, c)[::-1], "leaves first"),
    "an empty one": ("53-1", lambda n, c: [*pytorch_buckets.sizes(n, c), 0], "is empty"),
    "a count": ("53-1", lambda n, c: len(pytorch_buckets.sizes(n, c)), "each bucket"),
    "transposed only": ("53-2", lambda k, h, w, c: k.T, "alone leaves"),
    "as it is": ("53-2", lambda k, h, w, c: k, "outputs x inputs"),
    "height and width exchanged": ("53-2", turned, "changed places"),
    "channels first, wrongly cut": (
        "53-2",
        lambda k, h, w, c: k.reshape(c, h, w, -1).transpose(3, 1, 2, 0).reshape(k.shape[1], -1),
        "first; then move",
    ),
    "no function": ("53-2", 3, "with `def`"),
    "first batch for exchange": ("53-4", LETTERS | {"images/s": "D"}, "first batch"),
    "memory": ("53-4", LETTERS | {"memory": "B"}, "helpers do not"),
    "stale file": ("53-4", LETTERS | {"hangs": "C"}, "no longer live"),
    "no letter": ("53-4", LETTERS | {"early": "G"}, "fits once"),
}


def test_oracles_of_the_checks_agree_with_the_package():
    nb53 = exercises._module("53")
    sizes = dict(
        zip(pytorch_weights.SHAPES, map(np.prod, pytorch_weights.SHAPES.values()), strict=True)
    )
    assert [4 * sizes[name] for name in pytorch_weights.READY] == nb53.MNIST_CNN
    assert sorted(LETTERS.values()) == list("ABCDEF")
    kernel = np.random.default_rng(0).normal(size=(1024, 128))
    arrays = [np.zeros(shape) for shape in pytorch_weights.SHAPES.values()]
    arrays[4] = kernel
    assert np.array_equal(pytorch_weights.to_pytorch(arrays)[4], carried(kernel, 4, 4, 64))


def right(comm, rows, average):
    samples = comm.allreduce(len(rows))
    return average(rows.sum(axis=0) * comm.size / samples)


def mean_of_means(comm, rows, average):
    return average(rows.mean(axis=0) if len(rows) else np.zeros(3))


def too_small(comm, rows, average):
    return average(rows.sum(axis=0) / comm.allreduce(len(rows)))


def without_the_others(comm, rows, average):
    return rows.sum(axis=0) / comm.allreduce(len(rows))


def test_scaled_part_is_ticked(cluster, capsys):
    ticked = exercises.check("53-3", right, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (mean_of_means, "mean of the ranks' means"),
        (too_small, "that much larger"),
        (without_the_others, "equally often"),
    ],
)
def test_wrong_mean_is_named_on_more_than_one_rank(answer, hint, cluster, capsys):
    ticked = exercises.check("53-3", answer, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and answer is not without_the_others:
        assert ticked
    else:
        assert not ticked
        assert hint in out


def test_empty_function_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("53-3", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
