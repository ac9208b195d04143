"""The loss of many labels: weighted as documented, and its gradients those of the closed form."""

from functools import partial

import numpy as np
import pytest
from sklearn.metrics import log_loss

from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import model as nets
from dlcourse.usecases.chest_xray.train import label_accuracy, optimizer, weighted_loss
from dlguide.collectives.communicator import SingleProcess
from dlguide.training.step import Gradients


def test_both_kinds_count_equally_and_one_on_the_mean():
    rng = np.random.default_rng(0)
    labels = rng.random((400, 14)) < rng.uniform(0.02, 0.7, 14)
    negative, positive = chest_xray.class_weights(labels)
    positives, negatives = labels.sum(0), (~labels).sum(0)
    assert positive * positives == pytest.approx(negative * negatives)
    each = np.where(labels, positive, negative)
    assert each.mean() == pytest.approx(1)


def test_loss_is_the_weighted_cross_entropy_of_scikit_learn():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(30, 3)), rng.random((30, 3)) < 0.3
    weights = chest_xray.class_weights(labels)
    ours = np.asarray(weighted_loss(labels, logits, weights))
    theirs = [
        log_loss(labels[:, k], 1 / (1 + np.exp(-logits[:, k])), normalize=False,
                 sample_weight=np.where(labels[:, k], weights[1, k], weights[0, k]))
        for k in range(3)
    ]  # fmt: skip
    assert ours.shape == (30,)
    assert ours.sum() == pytest.approx(sum(theirs) / 3, rel=1e-10)


def gradients_of(model, ranks, weights):
    import tensorflow as tf
    from keras import optimizers

    labels = tf.TensorSpec([None, weights.shape[1]], tf.int32)
    loss, metrics = (
        partial(weighted_loss, weights=weights),
        {"right": label_accuracy},
    )
    return Gradients(model, optimizers.SGD(), ranks, loss, metrics, labels)


def test_gradient_of_the_last_bias_is_the_closed_form():
    import tensorflow as tf

    model = nets.build(outputs=3, seed=0, dtype="float64")
    rng = np.random.default_rng(2)
    images = rng.normal(size=(6, 32, 32, 1)).astype(np.float32)
    labels = (rng.random((6, 3)) < 0.4).astype(np.int32)
    weights = np.array([[0.5, 1.0, 2.0], [3.0, 1.5, 0.25]])
    gradients = gradients_of(model, 1, weights)
    numbers, found = gradients(
        tf.constant(images), tf.constant(labels), tf.constant(1 / 6, "float64")
    )
    logits = np.asarray(model(images))
    chance = 1 / (1 + np.exp(-logits))
    closed = np.where(labels, weights[1] * (chance - 1), weights[0] * chance).sum(0) / (6 * 3)
    assert np.asarray(found[-1]) == pytest.approx(closed, rel=1e-9)
    assert float(numbers[1]) == pytest.approx(6 * np.mean((logits > 0) == labels))


def test_step_to_be_timed_trains_the_net_on_samples_it_makes():
    one = chest_xray.step(batch_per_rank=4)
    samples = one.samples(8, 3)
    assert [each.shape for each in samples] == [(8, 32, 32, 1), (8, 14)]
    assert samples[1].dtype == np.int32
    assert (one.samples(8, 3)[0] == samples[0]).all()
    worker = one.build(SingleProcess())
    (_, variables), before = worker.optimizers[0], worker.weights()
    loss = worker.step(*samples)
    assert isinstance(loss, float)
    assert all((np.asarray(a) != b).any() for a, b in zip(variables, before, strict=True))
    again = one.build(SingleProcess())
    assert all((a == b).all() for a, b in zip(again.weights(), before, strict=True))


def test_last_layer_takes_longer_steps():
    import keras

    moved = []
    for times in (1.0, 10.0):
        model = nets.build(outputs=2, seed=0)
        before = [np.asarray(one).copy() for one in model.trainable_weights]
        made = optimizer(0.01, head_times=times)
        made.apply([keras.ops.ones_like(one) for one in model.trainable_weights],
                   model.trainable_weights)  # fmt: skip
        pairs = zip(model.trainable_weights, before, strict=True)
        moved.append([float(np.max(np.abs(np.asarray(one) - was))) for one, was in pairs])
    head = [one.path.startswith("logits") for one in model.trainable_weights]
    for one, ten, last in zip(*moved, head, strict=True):
        assert ten == pytest.approx(one * (10 if last else 1), rel=1e-3)
