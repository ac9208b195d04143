"""Stopping on nan: what carries it to other ranks, what is said, and what is left alone.

On ranks: `test_fit_resume.py`. Tests dlguide.training.checkpoint and dlguide.training.feed too.
"""

import io
import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from fitting import arguments, fit
from PIL import Image

from dlguide import models
from dlguide.collectives.communicator import SingleProcess
from dlguide.data import datasets, formats
from dlguide.data import input_pipeline as ip
from dlguide.training import checkpoint
from dlguide.training.checkpoint import Saver
from dlguide.training.config import TrainingJob
from dlguide.training.divergence import DivergedError, DivergenceMonitor, propagate_nan
from dlguide.training.feed import ArrayFeed, PipelineFeed, class_numbers


@pytest.fixture(scope="module")
def mnist():
    return datasets.load("mnist").first(41, 50)


@pytest.mark.parametrize("loss", [0.0, 3.0, 3.4e38])
def test_finite_loss_leaves_gradients_bit_by_bit(loss):
    import tensorflow as tf

    variables = [tf.zeros([3, 4]), tf.zeros([2])]
    gradients = [tf.fill([3, 4], 0.5), tf.constant([-0.0, 1e-45])]
    found = propagate_nan(gradients, variables, tf.constant(loss))
    for one, other in zip(found, gradients, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_is_carried_by_the_smallest_gradient(loss):
    import tensorflow as tf

    variables = [tf.zeros([3, 4]), tf.zeros([2]), tf.zeros([5])]
    gradients = [tf.fill([3, 4], 0.5), tf.constant([1.0, 2.0]), None]
    large, small, none = propagate_nan(gradients, variables, tf.constant(loss))
    assert np.isnan(small.numpy()).all()
    assert large.numpy().tobytes() == gradients[0].numpy().tobytes()
    assert none is None


class Weight:
    """As much of a Keras variable as `DivergenceMonitor` needs."""

    def __init__(self, path, value):
        self.path, self.value = path, np.asarray(value, np.float32)
        self.dtype, self.shape = "float32", self.value.shape

    def __array__(self, dtype=None, copy=None):
        return self.value


def watched(*values, **optimizer):
    """A Watch over weights and an optimizer of rate 0.25 that has made 7 updates."""
    weights = [Weight(f"weight{n}", value) for n, value in enumerate(values)]
    model = SimpleNamespace(weights=weights, trainable_variables=weights)
    rule = SimpleNamespace(iterations=7, _learning_rate=Weight("rate", 0.25), **optimizer)
    rule._learning_rate.assign = None
    return DivergenceMonitor(model, rule, SingleProcess(), 6, lambda: "Kept: step 5."), rule


def test_sound_steps_pass_without_a_word_to_other_ranks():
    watch, rule = watched([1.0, 2.0], [3.0])
    asked = []
    watch.settle = lambda: asked.append(1)
    for step in range(1, 9):
        rule.iterations += 1
        watch.after(0.5, epoch=1, step=step)
    assert asked == []


def test_step_epoch_rate_and_last_checkpoint_are_named():
    watch, _rule = watched([1.0, 2.0], [math.nan])
    words = (
        r"The loss is nan on rank 0 at step 7 \(step 3 of epoch 2\), with learning rate 0.25\. "
        r"Kept: step 5\. Try a lower `learning_rate`"
    )
    with pytest.raises(DivergedError, match=words):
        watch.after(math.nan, epoch=2, step=3)


def test_weights_that_are_not_finite_stop_though_the_loss_is():
    watch, _rule = watched([math.inf, 2.0], [3.0])
    watch.after(0.5, epoch=1, step=1)  # the large weight is looked at when ranks meet
    with pytest.raises(DivergedError, match="finite, but weight0 is not any more, at step 7"):
        watch.settle()


def test_loss_of_a_step_that_the_sum_did_not_carry_is_reported_at_the_next_exchange():
    watch, rule = watched([1.0, 2.0], [3.0])
    watch.after(math.inf, epoch=1, step=1)
    rule.iterations += 1
    watch.after(0.5, epoch=1, step=2)
    with pytest.raises(DivergedError, match="loss is inf on rank 0 at step 7 "):
        watch.settle()


def test_folder_that_cannot_be_read_keeps_nobody_waiting():
    watch, _rule = watched([math.nan, 2.0])

    def unreadable():
        raise OSError(5, "Input/output error", "/saves")

    watch._last_good = unreadable
    words = r"The checkpoints cannot be read: .*Input/output error.*/saves.*\. Try a lower"
    with pytest.raises(DivergedError, match=words):
        watch.settle()


def test_step_left_out_by_a_loss_scale_is_none_to_stop_at():
    watch, rule = watched([1.0, 2.0], [3.0], dynamic_scale=64.0)
    watch.after(0.5, epoch=1, step=1)  # no update was made
    rule.iterations += 1
    watch.after(0.5, epoch=1, step=2)
    with pytest.raises(DivergedError, match="loss is inf on rank 0 at step 9"):
        watch.after(math.inf, epoch=1, step=3)


def stored(folder, mnist, name="train"):
    """MNIST's first digits as PNG files in TFRecord."""
    with formats.create(folder / name, "tfrecord", shard_samples=30) as writer:
        for image, label in zip(mnist.train_images, mnist.train_labels, strict=True):
            file = io.BytesIO()
            Image.fromarray((image[..., 0] * 255).round().astype(np.uint8)).save(file, "png")
            writer.append(formats.Sample(file.getvalue(), (int(label),)))
    return ip.Pipeline(folder / name, 10, channels=1, augment=(ip.PaddedCrop(28, 28, 2),))


def test_feeds_begun_in_the_middle_give_what_a_whole_epoch_gives(mnist, tmp_path):
    # 41 = 2 * 20 + 1: one rank has nothing in the last step, and takes an image it has seen.
    model, empty = models.build("mlp", seed=0), 0
    pipeline = stored(tmp_path, mnist)
    for rank in (0, 1):
        mine = {"rank": rank, "ranks": 2}
        arrays = ArrayFeed(mnist, 10, 3, True, **mine, check=class_numbers(model))
        files = PipelineFeed(pipeline.replace(seed=3, shuffle=True, **mine), SingleProcess(), model)
        for feed in (arrays, files):
            whole = list(feed.batches(1))
            empty += whole[-1][2] == 0
            for first in range(len(whole) + 1):
                rest = list(feed.batches(1, first))
                assert len(rest) == len(whole) - first
                for got, expected in zip(rest, whole[first:], strict=True):
                    for one, other in zip(got, expected, strict=True):
                        np.testing.assert_array_equal(one, other)
    assert empty == 2


def test_pipeline_resumed_within_an_epoch_is_bitwise_the_uninterrupted_one(mnist, tmp_path, capsys):
    ways = {
        "model": "mnist_cnn_bn",
        "data": stored(tmp_path, mnist),
        "batch_per_rank": 10,
        "dropout": 0.5,
    }
    ways |= {"evaluate": False, "epochs": 2, "seed": 1}
    whole = fit(**ways)
    assert fit(**ways, checkpoint=tmp_path / "saves", every_steps=2).weights_digest == (
        whole.weights_digest
    )
    for end in (tmp_path / "saves").glob("checkpoint-?????????.dlguide"):
        end.unlink()
    capsys.readouterr()
    resumed = fit(**ways, checkpoint=tmp_path / "saves")
    assert "step 9, epoch 1 of 2 and 4 steps of the next." in capsys.readouterr().out
    assert (resumed.first_epoch, len(resumed.step_s)) == (1, 1)
    assert (resumed.weights_digest, resumed.loss[-1]) == (whole.weights_digest, whole.loss[-1])


def test_a_folder_without_room_is_refused_before_training(mnist, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"`checkpoint` must be a folder .* got '.*file/x'"):
        fit("mlp", mnist, batch_per_rank=10, checkpoint=tmp_path / "file" / "x")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(ValueError, match=r"room for \d+\.\d MB \(3 checkpoints\).*0.1 MB free"):
        fit("mlp", mnist, batch_per_rank=10, checkpoint=tmp_path)


def job(folder, every):
    return TrainingJob(model="mlp", data="mnist", **arguments(checkpoint=folder, every_steps=every))


def test_damaged_folder_never_leads_to_a_training_from_the_start(mnist, tmp_path):
    ways = {
        "model": "mlp",
        "data": mnist,
        "batch_per_rank": 10,
        "checkpoint": tmp_path,
        "evaluate": False,
    }
    fit(**ways, every_steps=2)
    for path in tmp_path.glob("*.dlguide"):
        path.write_bytes(path.read_bytes()[:-7])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.dlguide")}
    assert len(before) == 2
    with pytest.raises(checkpoint.CheckpointError, match="is damaged: expected SHA-256"):
        fit(**ways, epochs=2)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.dlguide")} == before
    asked = job(str(tmp_path), 2)
    assert Saver(asked, SingleProcess()).last_good() == f"There is no checkpoint in {tmp_path} yet."


def test_last_good_checkpoint_is_one_that_loads(mnist, tmp_path):
    fit("mlp", mnist, batch_per_rank=10, checkpoint=tmp_path, every_steps=2, evaluate=False)
    good, damaged = sorted(tmp_path.glob("*.dlguide"))
    damaged.write_bytes(damaged.read_bytes()[:-7])
    asked = job(str(tmp_path), 2)
    assert Saver(asked, SingleProcess()).last_good() == (
        f"The last good checkpoint is {good}, after step 4."
    )
    asked = TrainingJob(model="mlp", data="mnist")
    assert json.dumps(Saver(asked, SingleProcess()).last_good()).startswith(
        '"There is no checkpoint: '
    )
