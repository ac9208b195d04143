"""The small net's gradient is right, and on ranks it is the same training as in one process.

Tests dlcourse.small_mlp.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks

from dlcourse import small_mlp


def trainings():
    import numpy as np
    from mpi4py import MPI

    from dlcourse import small_mlp
    from dlguide.data.datasets import Dataset
    from dlguide.parallel import compression, local_sgd

    comm, random = MPI.COMM_WORLD, np.random.default_rng(0)
    labels = random.integers(0, 10, 301).astype("uint8")  # shared evenly by no number of ranks
    images = random.random((301, 28, 28, 1), "float32") * 0.2
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] += 0.3
    data = Dataset("stripes", images[:220], labels[:220], images[220:], labels[220:])

    def train(way, on=comm, batch=6, **more):
        asked = {"steps": 30, "look_every": 7, "every_steps": 4, "rate": 0.05, "momentum": 0.5}
        return small_mlp.train_on_ranks(way, on, data, batch=batch, **asked | more)

    whole = train(compression.none(), MPI.COMM_SELF, 6 * comm.size)
    shared = train(compression.none())
    met = train(local_sgd.LocalSGD(), momentum=0.0, every_steps=1, steps=9)
    plain = train(compression.none(), momentum=0.0, steps=9)
    one = train(compression.none(), momentum=0.0, steps=1, decay=True)
    calm = train(compression.none(), momentum=0.0, steps=1)
    falling = train(compression.none(), decay=True)
    split = train(compression.none(), alike=False, batch=5)
    seldom = train(local_sgd.LocalSGD(), alike=False, batch=5, every_steps=30)
    own = small_mlp._epoch(data.train_labels, 5, comm, 1, 0, alike=False)
    classes = {int(c) for part, _ in own for c in data.train_labels[part]}
    kept = all(size == 5 * comm.size for _, size in own)
    kept = kept and {c % comm.size for c in classes} == {comm.rank}
    shapes = small_mlp.initial_weights(0)
    ways = [
        compression.fp16(), compression.top_k(0.05), compression.one_bit(),
        compression.power_sgd(2), compression.threshold(0.01),
    ]  # fmt: skip
    told = {}
    for way in ways:
        trial = train(way)
        right = [step * way.step_nbytes(shapes, comm.size) for step in trial.step]
        told[way.name] = (list(trial.sent_nbytes) == right, trial.accuracy[-1])
    for way in (
        local_sgd.LocalSGD(),
        local_sgd.BlockMomentum(0.25),
        local_sgd.ElasticAveraging(0.2),
    ):
        trial = train(way)
        right = [step // 4 * way.nbytes(shapes, comm.size) for step in trial.step]
        told[way.name] = (list(trial.sent_nbytes) == right, trial.accuracy[-1])
    wrong = {}
    for name, call in {
        "way": lambda: train("top_k"),
        "steps": lambda: train(compression.none(), steps=0),
        "look_every": lambda: train(compression.none(), look_every=0),
        "batch": lambda: train(compression.none(), alike=False, batch=10**4),
    }.items():
        try:
            call()
        except ValueError as error:
            wrong[name] = str(error)
    return {
        "whole": whole.accuracy, "shared": shared.accuracy, "met": met.accuracy,
        "plain": plain.accuracy, "step": shared.step, "seconds": shared.seconds, "told": told,
        "wrong": wrong, "way": shared.way, "ranks": shared.ranks,
        "split": split.accuracy[-1], "seldom": seldom.accuracy[-2], "kept": kept,
        "falling": falling.accuracy[-1], "first_as_without": one.accuracy == calm.accuracy,
    }  # fmt: skip


@pytest.mark.parametrize("ranks", RANKS)
def test_trainings_on_ranks(ranks, tmp_path):
    came = on_ranks(ranks, trainings, tmp_path, env={"OPENBLAS_NUM_THREADS": "1"})
    for told in came:
        # one image of 81 may stand on the edge, and rounding puts it on this side or that
        assert np.allclose(told["shared"], told["whole"], atol=1.1 / 81)
        assert np.allclose(told["met"], told["plain"], atol=1.1 / 81)
        assert told["shared"][-1] > 0.9
        assert told["step"] == [7, 14, 21, 28, 30]
        assert told["seconds"] == sorted(told["seconds"])
        assert (told["way"], told["ranks"]) == ("none", ranks)
        # with gradients at every step the parts make one batch
        assert told["split"] > 0.9
        assert told["seldom"] <= told["split"]
        assert told["kept"]
        assert told["first_as_without"]
        assert told["falling"] > 0.9
        assert "samples of some rank" in told["wrong"]["batch"]
        for name, (as_predicted, accuracy) in told["told"].items():
            assert as_predicted, name
            assert accuracy > 0.5, name
        assert told["wrong"]["way"].startswith("`way` must be a compressor or a scheme")
        assert "`steps` must" in told["wrong"]["steps"]
        assert "`look_every` must" in told["wrong"]["look_every"]
        for name in ("shared", "met", "told"):
            assert told[name] == came[0][name]


def test_gradient_is_the_slope_of_the_loss():
    random = np.random.default_rng(1)
    weights = [each.astype("float64") for each in small_mlp.initial_weights(3, hidden=5)]
    images, labels = random.random((4, 784)), np.array([1, 0, 9, 1])

    def loss():
        inner, inner_bias, outer, outer_bias = weights
        scores = np.maximum(images @ inner + inner_bias, 0) @ outer + outer_bias
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return -np.log(shares[np.arange(4), labels]).sum()

    found, step = small_mlp.gradients(weights, images, labels), 1e-6
    for weight, gradient in zip(weights, found, strict=True):
        for place in random.integers(0, weight.size, 20):
            kept = weight.flat[place]
            weight.flat[place] = kept + step
            above = loss()
            weight.flat[place] = kept - step
            slope = (above - loss()) / (2 * step)
            weight.flat[place] = kept
            assert slope == pytest.approx(gradient.flat[place], rel=1e-4, abs=1e-6)


def a_trial(accuracy, sent_nbytes=(40, 80, 120, 160), seconds=(2.0, 2.5, 3.0, 3.5)):
    return small_mlp.SchemeRun("none", 2, 0, (5, 10, 15, 20), accuracy, sent_nbytes, seconds)


@pytest.mark.parametrize(
    ("accuracy", "first"),
    [
        ((0.9, 0.9, 0.95, 0.9), 0),
        ((0.95, 0.89, 0.95, 0.9), 2),
        ((0.1, 0.2, 0.3, 0.9), 3),
        ((0.95, 0.95, 0.95, 0.89), None),
    ],
)
def test_an_accuracy_is_held_from_the_look_after_which_none_is_below(accuracy, first):
    assert a_trial(accuracy).held(0.9) == first
