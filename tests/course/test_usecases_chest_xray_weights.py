"""Weights of another training: chosen as the guide says, brought along whole or refused."""

import numpy as np
import pytest

from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import model as nets
from dlguide.training import checkpoint, optimizers
from dlguide.training.checkpoint import CheckpointError

STEPS = 10


def saved(folder, epochs=8, recipe=None, with_rate=True, model=None, keep=None):
    """Checkpoints of a pre-training in which nothing was trained."""
    recipe = chest_xray.pretraining_schedule(0.03, epochs) if recipe is None else recipe
    model = nets.build(outputs=5, seed=1) if model is None else model
    rule = optimizers.MomentumSGD(0.1)
    rule.build(model.trainable_variables)
    for epoch in range(1, epochs + 1):
        about = {"schedule": recipe.config(), "global_batch": 64}
        if with_rate:
            about["rate"] = float(recipe.to_steps(STEPS).rate(STEPS * epoch - 1))
        checkpoint.save(
            folder, model, rule, STEPS * epoch, epoch, about, keep=epochs if keep is None else keep
        )
    return model


@pytest.mark.parametrize("with_rate", [True, False])
def test_chosen_is_the_latest_that_could_still_move(tmp_path, with_rate):
    saved(tmp_path, with_rate=with_rate)
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


def test_keras_file_of_any_number_of_classes_is_read(tmp_path):
    old = nets.build(outputs=1000, seed=3)
    old.save_weights(tmp_path / "pictures.weights.h5")
    new = nets.build(seed=4)
    origin = nets.transfer(new, tmp_path / "pictures.weights.h5")
    assert origin.rate is None
    assert (np.asarray(new.get_layer("hidden").kernel) == np.asarray(old.get_layer("hidden").kernel)
            ).all()  # fmt: skip
    assert new.get_layer("logits").kernel.shape == (96, 14)


@pytest.mark.parametrize("net", nets.LARGE)
def test_large_nets_give_14_logits_and_take_weights_of_their_kind(net, tmp_path):
    model = nets.build(net, 32, seed=5)
    assert model.output_shape == (None, 14)
    assert model.input_shape == (None, 32, 32, 3)
    pictures = nets.build(net, 32, outputs=10, seed=6)
    saved(tmp_path, 1, model=pictures)
    nets.transfer(model, tmp_path)
    kernels = [
        next(v for v in each.weights if v.path.endswith("kernel")) for each in (model, pictures)
    ]
    assert (np.asarray(kernels[0]) == np.asarray(kernels[1])).all()
    with pytest.raises(CheckpointError, match="another net than chest_cnn"):
        nets.transfer(nets.build(), tmp_path)
