"""The pieces of a transparent run in one process, against NumPy and by hand."""

from __future__ import annotations

import builtins
import io
import itertools
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(240)

ranks_and_rows = st.tuples(st.integers(1, 40), st.integers(0, 1000))


@given(ranks_and_rows)
def test_parts_cover_every_row_once_and_differ_by_one_row_at_most(drawn):
    from dlguide.horovod.transparent.parts import bounds

    ranks, rows = drawn
    parts = [bounds(rows, rank, ranks) for rank in range(ranks)]
    assert parts[0][0] == 0
    assert parts[-1][1] == rows
    assert all(here[1] == there[0] for here, there in itertools.pairwise(parts))
    sizes = {end - first for first, end in parts}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_shared_batches_put_together_are_the_batches(ranks):
    import tensorflow as tf

    from dlguide.horovod.transparent.parts import OWN, PRINT, TOTAL, shared

    x = np.arange(22.0).reshape(11, 2)
    names = np.array([f"word {i}" for i in range(11)])
    lengths = np.arange(11) % 3
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()), lengths)
    thin = tf.sparse.from_dense(np.eye(11)[:, :4])
    data = tf.data.Dataset.from_tensor_slices(({"x": x, "thin": thin, "ragged": ragged}, names))
    data = data.batch(5)  # the last batch has one row
    parts = [list(shared(data, rank, ranks)) for rank in range(ranks)]
    for step, (inputs, labels) in enumerate(data):
        sizes = np.array([part[step][0] for part in parts])
        assert sizes[:, OWN].sum() == len(labels)
        assert set(sizes[:, TOTAL]) == {len(labels)}
        assert len(set(sizes[:, PRINT])) == 1  # of the whole batch, so the same on every rank
        own = [part[step][1] for part in parts if part[step][0][OWN]]
        got = np.concatenate([each[0]["x"] for each in own])
        np.testing.assert_array_equal(got, inputs["x"])
        got = np.concatenate([tf.sparse.to_dense(each[0]["thin"]) for each in own])
        np.testing.assert_array_equal(got, tf.sparse.to_dense(inputs["thin"]))
        got = [row for each in own for row in each[0]["ragged"].to_list()]
        assert got == inputs["ragged"].to_list()
        assert np.concatenate([each[1] for each in own]).tolist() == labels.numpy().tolist()
        # A rank without rows has one all the same, which will not count.
        assert all(len(part[step][1][1]) >= 1 for part in parts)


def test_a_fingerprint_depends_on_every_value_and_on_their_order():
    import tensorflow as tf

    from dlguide.horovod.transparent.parts import PRINT, shared

    def prints(x):
        data = tf.data.Dataset.from_tensors((x, np.ones(4)))
        return int(next(iter(shared(data, 0, 2)))[0][PRINT])

    x = np.arange(8.0).reshape(4, 2)
    changed = x.copy()
    changed[3, 1] += 1e-12
    assert prints(x) == prints(x.copy())
    assert len({prints(each) for each in (x, changed, x[::-1], x.astype("float32"))}) == 4
    flags = np.array([True, False, True, False])
    assert prints(flags) != prints(~flags)


def test_rows_that_do_not_match_are_an_error():
    import tensorflow as tf

    from dlguide.horovod.transparent.parts import shared

    data = tf.data.Dataset.from_generator(
        lambda: iter([(np.ones((4, 2)), np.ones(3))]),
        output_signature=(tf.TensorSpec((None, 2)), tf.TensorSpec((None,))),
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have as many rows"):
        list(shared(data, 0, 2))
    with pytest.raises(ValueError, match="nothing in an element has rows"):
        shared(tf.data.Dataset.range(3), 0, 2)


def test_the_report_counts_what_repeats_and_says_what_differs():
    from dlguide.horovod.transparent.report import Report

    report = Report("/somewhere/train.py", 2, 5)
    for _ in range(3):
        report.change("fit", 12, "batches of 64: 32 samples per rank")
        report.differs("Dropout is another.")
    report.change("fit", 13, "batches of 64: 32 samples per rank")
    assert [(each["line"], each["times"]) for each in report.changes] == [(12, 3), (13, 1)]
    text = report.text()
    assert "train.py ran on 2 ranks" in text
    assert "line 12   batches of 64: 32 samples per rank (3 times)" in text
    assert text.count("Dropout is another.") == 1
    assert report.record()["text"] == text


def test_what_a_rank_opens_to_write_is_its_own_and_is_read_again(tmp_path, monkeypatch):
    from dlguide.horovod.transparent.private import Private

    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr(builtins, "open", builtins.open)  # both are put back afterwards
    monkeypatch.setattr(io, "open", io.open)
    old = tmp_path / "old.txt"
    old.write_text("rank 0's\n")
    monkeypatch.setattr(tempfile, "mkdtemp", tempfile.mkdtemp)
    monkeypatch.setattr(tempfile, "_mkstemp_inner", tempfile._mkstemp_inner)
    plain = builtins.open
    copies = Private(SimpleNamespace(folder=private, rank=1))
    copies.install()
    for mode, expected in (("w", "mine"), ("a", "minemine"), ("r+", "minemine")):
        with open(tmp_path / "new.txt", mode) as file:
            file.write("mine")
        assert not (tmp_path / "new.txt").exists()
        with open(tmp_path / "new.txt") as file:
            assert file.read() == expected
    with open(old, "a") as file:
        file.write("and more\n")
    with open(old) as file:
        assert file.read() == "rank 0's\nand more\n"
    np.save(tmp_path / "a.npy", np.arange(3))
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]
    assert not (tmp_path / "a.npy").exists()
    with plain(old) as file:
        assert file.read() == "rank 0's\n"
    # what rank 0 does to its files is followed
    copies.follow("replace", [str(tmp_path / "new.txt"), str(tmp_path / "newer.txt")])
    with open(tmp_path / "newer.txt") as file:
        assert file.read() == "minemine"
    copies.follow("remove", [str(tmp_path / "newer.txt")])
    open(tmp_path / "newer.txt", "x").close()
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/own.txt", "w") as file:
        assert copies.owns(file.name)
        assert os.listdir(folder) == ["own.txt"]


def test_an_outcome_is_the_same_result_or_error_elsewhere(tmp_path):
    # dlguide.horovod.transparent.folders gives all ranks what rank 0 has got
    from dlguide.horovod.transparent.outcomes import Outcome, Outcomes

    class Own(Exception):
        def __init__(self, one, two):
            super().__init__(one)

    here, there = Outcomes(tmp_path), Outcomes(tmp_path)
    assert there.find("a") is None
    here.tell("a", Outcome("path"))
    here.tell("b", Outcome(error=FileExistsError(17, "File exists", "d")))
    here.tell("c", Outcome(error=Own("why", 2)))
    assert there.find("a").give() == "path"
    with pytest.raises(FileExistsError, match="'d'"):
        there.find("b", patience_s=1.0).give()
    with pytest.raises(RuntimeError, match="Own: why"):
        there.find("c").give()


def test_losses_that_are_no_mean_over_the_batch_are_told_apart():
    import tensorflow as tf
    from keras import losses, ops

    from dlguide.horovod.transparent.losses import judge

    def pairs(a, b):
        return ops.mean((b - ops.mean(b)) ** 2 - a * b)

    def masked(a, b):
        counts = ops.cast(a != 0, "float32")
        return ops.sum((a - b) ** 2 * counts) / ops.sum(counts)

    like = tf.zeros([8, 3])
    for wrong in (lambda a, b: ops.sum((a - b) ** 2), pairs, masked, losses.Dice()):
        assert judge(wrong, like, like) is False
    mean, each = (lambda a, b: ops.mean((a - b) ** 2)), (lambda a, b: ops.mean((a - b) ** 2, -1))
    for right in (mean, each, losses.CategoricalCrossentropy(), losses.Huber()):
        assert judge(right, like, like) is True
    labels = tf.zeros([8], tf.int64)
    assert judge(losses.SparseCategoricalCrossentropy(from_logits=True), labels, like) is True
    assert judge(lambda a, b: ops.mean(a) / 0.0, like, like) is None


def test_the_launcher_loads_nothing_heavy_to_read_a_script():
    # dlguide.cli.training and dlguide.cluster.inspection; dlguide.horovod.transparent.files,
    # .models, .patches, .step and .summing are loaded in the ranks only, as are
    # dlguide.horovod.transparent.private and dlguide.horovod.transparent.session
    code = (
        "import sys, dlguide.cli.training, dlguide.cluster.inspection as i\n"
        "i.forbidden(sys.argv[1])\n"
        "assert not {'tensorflow', 'keras', 'horovod', 'mpi4py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, __file__], check=True, timeout=60)


def test_what_ranks_must_bring_together_beside_weights_is_found():
    import keras

    from dlguide.horovod.transparent import step

    layers = [keras.layers.BatchNormalization(name=name) for name in ("trained", "frozen")]
    layers[1].trainable = False
    drop = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((3,)), layers[0], drop, keras.Sequential([layers[1]])])
    model.compile("sgd", "mse", metrics=["mae"])
    model.other_optimizer = keras.optimizers.Adam()
    paths = [variable.path.split("/")[-2:] for variable in step.own_state(model)]
    assert paths == [["trained", "moving_mean"], ["trained", "moving_variance"]]
    assert len(step.metric_state(model)) >= 2  # of the loss: a total and a count
    assert step.optimizers_of(model) == [model.optimizer, model.other_optimizer]
