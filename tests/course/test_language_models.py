"""The GPTs of lesson 90: windows, loss and gradient, rates, and the noise of gradients.

Tests dlcourse.language_models.
"""

from __future__ import annotations

import numpy as np
import pytest

from dlcourse import language_models as lm
from dlcourse.nets import GPTShape

TINY = GPTShape(lm.LENGTH, 79, 16, 1, 1, hidden=16, layers=1)


@pytest.fixture(scope="module")
def text():
    return lm.Text.load()


@pytest.fixture(scope="module")
def net():
    return lm.FlatGPT(TINY, seed=0, dtype="float64")


def test_windows_follow_each_other_and_the_end_is_kept_apart(text):
    windows = text.learned
    assert windows.shape[1] == lm.LENGTH + 1
    np.testing.assert_array_equal(windows[:-1, -1], windows[1:, 0])  # only the label is shared
    assert len(text.held_out) == lm.HELD_OUT_WINDOWS
    known = {each.tobytes() for each in windows}
    assert not any(each.tobytes() in known for each in text.held_out)
    order = text.order(3)
    assert sorted(map(bytes, order)) == sorted(map(bytes, windows))
    assert (order != text.order(4)).any()


def test_loss_is_that_of_the_net_and_the_gradient_its_slope(net, text):
    windows = text.learned[:6]
    pieces = np.split(net.start, np.cumsum([np.prod(each.shape) for each in net.net.weights])[:-1])
    for weight, piece in zip(net.net.weights, pieces, strict=True):
        weight.assign(piece.reshape(weight.shape))
        if len(weight.shape) > 1 and weight.path.split("/")[-2] != "logits":
            depth = 2**-0.5 if weight.path.split("/")[-2].endswith("_out") else 1
            assert piece.std() == pytest.approx(16**-0.5 * depth, rel=0.15)
    logits = np.array(net.net(windows[:, :-1]), float)
    logits -= logits.max(axis=-1, keepdims=True)
    of_label = np.take_along_axis(logits, windows[:, 1:, None], -1)[..., 0]
    right = float((np.log(np.exp(logits).sum(axis=-1)) - of_label).mean())
    assert net.loss(net.start, windows) == pytest.approx(right, rel=1e-6)

    loss, gradient = net.gradient(net.start, windows)
    assert loss == pytest.approx(right, rel=1e-6)
    direction = np.random.default_rng(0).normal(size=len(net.start))
    ends = [net.loss(net.start + sign * 1e-6 * direction, windows) for sign in (1, -1)]
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(gradient @ direction, rel=1e-4)


def test_a_training_learns_and_repeats_itself(net, text):
    run = lm.train(net, text, 80, 8, 0.01, seed=1)
    assert run.held_out_nats < net.loss(net.start, text.held_out) - 0.3
    assert lm.train(net, text, 80, 8, 0.01, seed=1).held_out_nats == run.held_out_nats


def test_steps_to_a_loss_are_counted_or_refused(net, text):
    easy, harder = (lm.steps_to(net, text, t, 8, 0.02, 0, most=60) for t in (4.2, 3.8))
    assert 0 < easy < harder < 60
    assert lm.steps_to(net, text, 0.5, 8, 0.02, 0, most=5) is None
    assert lm.steps_to(net, text, 0.5, 8, 1e200, 0, most=5) is None


def test_best_rate_is_the_bottom_of_a_parabola_and_stays_inside():
    rates = np.array([0.008, 0.002, 0.004, 0.016])
    bowl = lambda at: 2 + (np.log(rates) - np.log(at)) ** 2  # noqa: E731
    assert lm.best_rate(rates, bowl(0.005)) == pytest.approx(0.005)
    assert lm.best_rate(rates, bowl(0.1)) == pytest.approx(0.016)
    assert lm.best_rate(rates, -np.log(rates)) == pytest.approx(0.016)


def test_rate_plane_goes_through_the_best_rates(text):
    def best(width, tokens):
        return (tokens / 1000) ** -0.25 * lm.shape(text, width).multiplied ** -0.5

    rows = [
        {"part": "choice", "width": width, "multiplied": lm.shape(text, width).multiplied,
         "tokens": tokens, "rate": rate, "held_out_nats": np.log(rate / best(width, tokens)) ** 2}
        for width in (16, 32, 64) for tokens in (1000, 4000) for rate in (0.001, 0.003, 0.012)
    ]  # fmt: skip
    rate = lm.rate_plane([*rows, rows[0] | {"part": "result", "held_out_nats": -9.0}])
    for width, tokens in ((32, 1000), (128, 1000), (32, 2000)):
        assert rate(width, tokens) == pytest.approx(best(width, tokens), rel=0.02)


@pytest.mark.parametrize("ranks", [2, 4])
def test_noise_scale_is_noise_over_gradient(ranks):
    random, batch, size = np.random.default_rng(ranks), 8, 50
    gradient, noise = random.normal(size=size), 2.0
    each = gradient + noise * random.normal(size=(4000, batch, size))
    of_ranks = each.reshape(4000, ranks, batch // ranks, size).mean(axis=2)
    small = (of_ranks**2).sum(axis=2).mean(axis=1)
    large = (of_ranks.mean(axis=1) ** 2).sum(axis=1)
    right = size * noise**2 / (gradient @ gradient)
    assert lm.noise_scale(small, large, ranks, batch) == pytest.approx(right, rel=0.03)
