"""A game of two nets: its losses and steps by hand, p ranks as one process, samples that learn.

Tests dlcourse.adversarial.
"""

import numpy as np
import pytest
from lanes import TRAINED
from on_ranks import on_ranks

from dlcourse import adversarial
from dlcourse.adversarial import frechet_distance

RATE = 0.01


def sigmoid(logits):
    return 1 / (1 + np.exp(-np.asarray(logits)))


def test_losses_are_the_logarithms_of_the_paper():
    real, fake = np.array([[0.5], [-1.0], [3.0]]), np.array([[2.0], [-0.3], [0.1]])
    judged = -np.log(sigmoid(real)).mean() - np.log(1 - sigmoid(fake)).mean()
    losses = judged, -np.log(sigmoid(fake)).mean()
    assert np.allclose(adversarial.non_saturating(real, fake), losses)


def test_the_nets_of_a_pair_start_differently():
    generator, judge = (net.get_weights()[0] for net in adversarial.dense_pair(1, 3, 3, 3))
    assert generator.shape == judge.shape
    assert not np.allclose(generator, judge)


def test_a_condition_is_passed_on_behind_the_sample_and_seen_by_both():
    generator, judge = adversarial.dense_pair(features=2, latent=3, conditions=4)
    given = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
    made = np.asarray(generator(given))
    assert made.shape == (5, 6)
    assert np.array_equal(made[:, 2:], given[:, 3:])
    other = given.copy()
    other[:, 3:] = np.roll(given[:, 3:], 1, axis=1)
    assert np.abs(np.asarray(generator(other))[:, :2] - made[:, :2]).min() > 0
    assert np.asarray(judge(made)).shape == (5, 1)


def scaled(start, name):
    """A net of a single weight: x -> w x."""
    import keras

    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)], name=name)
    net.set_weights([np.array([[start]])])
    return net


def difference(real, fake):
    import tensorflow as tf

    return tf.reduce_mean(fake) - tf.reduce_mean(real), -tf.reduce_mean(fake)


def single(steps=1, **settings):
    """Play with nets of one weight, true samples of 5, codes of 1: all by hand."""
    import tensorflow as tf

    generator, judge = scaled(7.0, "generator"), scaled(0.005, "judge")
    game = adversarial.Game(
        generator,
        judge,
        lambda seed, samples: 5 * tf.ones((samples, 1)),
        4,
        difference,
        (RATE, RATE),
        lambda seed, samples: tf.ones((samples, 1)),
        **settings,
    )
    losses = game.play(steps)
    return losses, float(generator.get_weights()[0][0, 0]), float(judge.get_weights()[0][0, 0])


def test_judge_moves_first_and_the_generator_follows_the_judge_as_it_is_then():
    # The judge's loss is d (g - 5) with g = 7, so d falls below 0, and so the generator falls too;
    # Adam's first step is the whole rate.
    losses, made, judged = single()
    assert judged == pytest.approx(0.005 - RATE, rel=1e-3)
    assert made == pytest.approx(7.0 - RATE, rel=1e-4)
    wanted = 0.005 * (7 - 5), -(0.005 - RATE) * 7
    assert losses == pytest.approx(np.array([wanted]), rel=1e-3)


def test_judge_is_updated_as_often_as_asked_and_clipped_each_time():
    assert single(judge_steps=3)[2] == pytest.approx(0.005 - 3 * RATE, rel=1e-3)
    assert single(judge_steps=3, clip=0.02)[2] == pytest.approx(-0.02)


def plays(batch, parallel):
    import numpy as np

    import dlguide.distributed as dd
    from dlcourse import adversarial
    from dlcourse.adversarial import Ring

    dd.init()
    seed = dd.rank() if parallel else 0  # ranks start apart, rank 0's weights must win
    nets = adversarial.dense_pair(seed, hidden=8, dtype="float64")
    game = adversarial.Game(*nets, Ring().draw, batch, judge_steps=2, parallel=parallel)
    game.play(4)
    return [np.concatenate([w.ravel() for w in net.get_weights()]).tolist() for net in nets]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return on_ranks(1, plays, tmp_path_factory.mktemp("alone"), batch=12, parallel=False)[0]


@pytest.mark.parametrize("ranks", TRAINED)
def test_ranks_play_the_game_of_one_process_with_the_global_batch(ranks, alone, tmp_path):
    found = on_ranks(ranks, plays, tmp_path, batch=12, parallel=True)
    for net in (0, 1):
        assert all(each[net] == found[0][net] for each in found)
        assert np.allclose(found[0][net], alone[net], rtol=0, atol=1e-10)


# --- distance of two sets of samples ---


def test_distance_of_covariances_that_do_not_commute_is_that_of_their_matrix_root():
    random = np.random.default_rng(1)
    sets = [random.normal(size=(40, 3)) @ random.normal(size=(3, 3)) for _ in range(2)]
    one, two = (np.cov(each, rowvar=False) for each in sets)
    # tr (C1^1/2 C2 C1^1/2)^1/2 is the sum of the roots of the eigenvalues of C1 C2
    roots = np.sqrt(np.linalg.eigvals(one @ two).real).sum()
    wanted = ((sets[0].mean(0) - sets[1].mean(0)) ** 2).sum()
    wanted += np.trace(one) + np.trace(two) - 2 * roots
    assert frechet_distance(*sets) == pytest.approx(wanted)
