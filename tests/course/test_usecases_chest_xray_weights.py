"""Weights of another training: chosen as the guide says, brought along whole or refused."""

import h5py
import numpy as np
import pytest

from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import model as nets
from dlguide.training import checkpoint, optimizers
from dlguide.training.checkpoint import CheckpointError

STEPS = 10


def saved(folder, epochs=8, model=None):
    """Checkpoints of a pre-training in which nothing was trained."""
    recipe = chest_xray.pretraining_schedule(0.03, epochs)
    model = nets.build(outputs=5, seed=1) if model is None else model
    rule = optimizers.MomentumSGD(0.1)
    rule.build(model.trainable_variables)
    for epoch in range(1, epochs + 1):
        rate = float(recipe.to_steps(STEPS).rate(STEPS * epoch - 1))
        about = {"schedule": recipe.config(), "global_batch": 64, "rate": rate}
        checkpoint.save(folder, model, rule, STEPS * epoch, epoch, about, keep=epochs)
    return model


def test_chosen_is_the_latest_that_could_still_move(tmp_path):
    saved(tmp_path)
    # the stairs hold three quarters of 8 epochs
    assert chest_xray.choose_checkpoint(tmp_path).name == f"checkpoint-{6 * STEPS:09d}.dlguide"
    assert (
        chest_xray.choose_checkpoint(tmp_path, "last").name == f"checkpoint-{8 * STEPS:09d}.dlguide"
    )


def test_all_layers_but_the_last_come_along(tmp_path):
    old = saved(tmp_path)
    new = nets.build(seed=2)
    head = [np.asarray(each).copy() for each in new.get_layer("logits").weights]
    origin = nets.transfer(new, tmp_path)
    assert (origin.epoch, origin.rate, origin.global_batch) == (6, pytest.approx(0.03), 64)
    for name in ("conv1", "conv2", "conv3", "hidden"):
        for one, other in zip(
            new.get_layer(name).weights, old.get_layer(name).weights, strict=True
        ):
            assert (np.asarray(one) == np.asarray(other)).all()
    for one, was in zip(new.get_layer("logits").weights, head, strict=True):
        assert (np.asarray(one) == was).all()


def test_keras_file_without_the_last_layer_is_read(tmp_path):
    import keras
    from keras.src.legacy.saving import legacy_h5_format

    published = keras.applications.DenseNet121(
        include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
    )
    path = tmp_path / "densenet121_weights_notop.h5"
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, published)
    new = nets.build("densenet121", 32, seed=4)
    head = np.asarray(new.get_layer("logits").kernel).copy()
    assert nets.transfer(new, path).rate is None
    for one, other in zip(new.weights, published.weights, strict=False):
        assert (np.asarray(one) == np.asarray(other)).all()
    assert (np.asarray(new.get_layer("logits").kernel) == head).all()


def test_weights_of_another_net_are_refused(tmp_path):
    model = nets.build(nets.REAL, 32)
    assert (model.input_shape, model.output_shape) == ((None, 32, 32, 3), (None, 14))
    saved(tmp_path, 1, model=nets.build(nets.REAL, 32, outputs=10))
    with pytest.raises(CheckpointError, match="another net than chest_cnn"):
        nets.transfer(nets.build(), tmp_path)
