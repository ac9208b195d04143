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


def test_rate_is_that_of_the_last_step_before_the_checkpoint(tmp_path):
    saved(tmp_path, with_rate=False)
    found, _ = checkpoint.read(chest_xray.choose_checkpoint(tmp_path))
    recipe = chest_xray.pretraining_schedule(0.03, 8)
    assert nets.rate_of(found) == pytest.approx(float(recipe.to_steps(STEPS).rate(6 * STEPS - 1)))
    assert nets.rate_of(found) == pytest.approx(0.03)


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


def test_weights_of_another_net_say_what_was_looked_for_and_found(tmp_path):
    saved(tmp_path / "small", model=nets.build(image=48, outputs=5))
    new = nets.build(seed=2)
    before = [np.asarray(each).copy() for each in new.weights]
    said = r"another net than chest_cnn .*looked for hidden/kernel of shape \(768, 96\), found one"
    with pytest.raises(CheckpointError, match=said):
        nets.transfer(new, tmp_path / "small")
    nets.build(image=48).save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(CheckpointError, match=r"another net than chest_cnn .*looked for its 8 arr"):
        nets.transfer(new, tmp_path / "other.weights.h5")
    assert all((np.asarray(a) == b).all() for a, b in zip(new.weights, before, strict=True))


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
    pictures.save_weights(tmp_path / "pictures.weights.h5")
    with pytest.raises(CheckpointError, match="another net than chest_cnn"):
        nets.transfer(nets.build(), tmp_path / "pictures.weights.h5")
    if net != nets.REAL:
        with pytest.raises(ValueError, match="files of this net expect other images"):
            nets.transfer(model, tmp_path / "pictures.weights.h5")


@pytest.mark.parametrize("top", [True, False])
def test_keras_own_densenet_files_are_read(top, tmp_path):
    import keras

    theirs = keras.applications.DenseNet121(weights=None, include_top=top, input_shape=None if top
                                            else (32, 32, 3))  # fmt: skip
    path = tmp_path / "densenet121_weights_tf_dim_ordering_tf_kernels.h5"
    theirs.save_weights(tmp_path / "new.weights.h5")
    legacy_h5_format = pytest.importorskip("keras.src.legacy.saving.legacy_h5_format")
    import h5py

    with h5py.File(path, "w") as file:  # the form in which Keras gives its files out
        legacy_h5_format.save_weights_to_hdf5_group(file, theirs)
    ours = nets.build(nets.REAL, 32, seed=5)
    nets.transfer(ours, path)
    images = np.random.default_rng(0).normal(size=(1, 32, 32, 3)).astype(np.float32)
    if not top:
        from keras import Model

        body = Model(ours.inputs, ours.get_layer("logits").input)
        pooled = np.asarray(theirs(images)).mean((1, 2))
        assert np.asarray(body(images)) == pytest.approx(pooled, rel=1e-4, abs=1e-5)
