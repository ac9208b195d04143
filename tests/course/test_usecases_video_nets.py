"""The nets of the video case are built alike everywhere, grow, and begin with the guess."""

import numpy as np
import pytest

from dlcourse.usecases.video import nets as video


def clips(seed, size, count=2, frames=6):
    return np.random.default_rng(seed).normal(0, 0.3, (count, frames, size, size, 3)).astype("f4")


@pytest.mark.parametrize("volume", [False, True])
def test_untrained_generator_returns_the_guess_at_every_resolution(volume):
    net = video.generator(32, 6, 1, volume=volume)
    past, guess = clips(1, 32), clips(2, 32)
    for frames, size in zip(net([past, guess]), (8, 16, 32), strict=True):
        by = 32 // size
        mean = guess.reshape(2, 6, size, by, size, by, 3).mean(axis=(3, 5))
        assert np.allclose(frames, mean, atol=1e-6)


def test_grown_nets_share_weights_and_leave_the_finer_ones_alone():
    for whole in (video.generator(32, 6, 1), video.discriminator(32, 4)):
        for stage in (1, 2, 3):
            part = video.until(whole, stage)
            assert len(part.outputs) == stage
            assert all(any(a is b for b in whole.weights) for a in part.weights)
        counts = [video.until(whole, stage).count_params() for stage in (1, 2, 3)]
        assert counts == sorted(set(counts))
        assert counts[-1] == whole.count_params()


@pytest.mark.parametrize(("frames", "strides"), [(12, 2), (6, 2), (3, 2), (5, 1), (1, 1)])
def test_convolution_without_onednn_and_its_gradients_are_those_of_keras(
    frames, strides, monkeypatch
):
    import keras
    import tensorflow as tf

    monkeypatch.setattr(video, "in_force", lambda: False)
    clip = np.random.default_rng(0).normal(size=(2, frames, 8, 8, 3))
    results, weights = [], None
    for kind in (keras.layers.Conv3D, video.frame_wise_conv3d()):
        layer = kind(4, 3, strides, "same", activation="tanh", dtype="float64")
        x = tf.constant(clip)
        layer.build(x.shape)
        weights = weights or layer.get_weights()
        layer.set_weights([weights[0], weights[1] + 0.1])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(y**2)
        results.append([y, *tape.gradient(loss, [x, *layer.trainable_variables])])
        assert y.shape == layer.compute_output_shape(x.shape)
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
