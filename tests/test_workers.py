"""Several workers on each rank: the same training as with that many ranks."""

import json

import numpy as np
import pytest
from on_ranks import on_ranks

# (ranks, workers) by the workers there are in all
WAYS = {2: [(2, 1), (1, 2)], 3: [(3, 1), (1, 3)], 4: [(4, 1), (2, 2), (1, 4)]}


def training(saves, cases):
    """Train with dropout, batch normalisation, weight decay, warmup and a short last batch."""
    import functools
    import os

    import keras
    import numpy as np

    from dlguide.data import datasets
    from dlguide.training import fit, schedules

    layers = keras.layers
    mnist = datasets.load("mnist").first(101, 200)
    models = []

    def net(normalise=True, dropout=0.5):
        start = keras.initializers.GlorotUniform(seed=1)
        model = keras.Sequential([keras.Input((28, 28, 1), dtype="float64")])
        # A bias before batch normalisation does nothing: its gradient is rounding alone.
        first = layers.Conv2D(
            4, 3, strides=3, use_bias=False, kernel_initializer=start, dtype="float64"
        )
        model.add(first)
        if normalise:
            model.add(layers.BatchNormalization(momentum=0.9, dtype="float64"))
        model.add(layers.ReLU(dtype="float64"))
        model.add(layers.Flatten(dtype="float64"))
        model.add(layers.Dropout(dropout, seed=1, dtype="float64"))
        rule = keras.regularizers.L2(0.01)
        model.add(
            layers.Dense(10, kernel_initializer=start, kernel_regularizer=rule, dtype="float64")
        )
        models.append(model)
        return model

    recipe = schedules.warmup("gradual", 0.1, 1, start=0.02).over(schedules.cosine(0.1, 2))
    told = {}
    for name, workers, batch, normalise, dropout in cases:
        run = fit(
            functools.partial(net, normalise, dropout), mnist, epochs=2, batch=batch,
            optimizer="sgd", schedule=recipe, workers=workers, evaluate=True,
        )  # fmt: skip
        if run.rank == 0:
            weights = {v.path: np.asarray(v) for v in models[-1].weights}
            arrays = {f"a{n}": value for n, value in enumerate(weights.values())}
            np.savez(os.path.join(saves, f"{name}.npz"), **arrays)
        told[name] = run.as_dict()
    return told


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run every way of playing 2, 3 and 4 workers; give weights and Run of each."""
    folder = tmp_path_factory.mktemp("workers")
    found = {}
    for ranks in (1, 2, 3, 4):
        cases = [
            (f"{total} as {ranks} x {workers}", workers, 9, True, 0.5)
            for total, ways in WAYS.items()
            for there, workers in ways
            if there == ranks
        ]
        if ranks == 1:
            cases += [("together", 1, 36, True, 0.0), ("apart", 4, 9, True, 0.0)]
            cases += [("together plain", 1, 36, False, 0.0), ("apart plain", 4, 9, False, 0.0)]
        told = on_ranks(ranks, training, folder, 200, saves=str(folder), cases=cases)
        for name, *_rest in cases:
            arrays = np.load(folder / f"{name}.npz")
            found[name] = (
                [arrays[key] for key in arrays],
                [json.loads(json.dumps(one[name])) for one in told],
            )
    return found


def difference(one, other):
    pairs = zip(one, other, strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("total", WAYS)
def test_workers_on_fewer_ranks_train_as_that_many_ranks(trained, total):
    ways = [f"{total} as {ranks} x {workers}" for ranks, workers in WAYS[total]]
    weights, runs = trained[ways[0]]
    for way in ways[1:]:
        there, runs_there = trained[way]
        assert difference(there, weights) < 1e-12
        for name in ("loss", "train_accuracy", "test_accuracy"):
            assert runs_there[0][name] == pytest.approx(runs[0][name], rel=1e-12)
        for name in ("global_batch", "steps_per_epoch", "samples", "learning_rate"):
            assert runs_there[0][name] == runs[0][name]
        assert runs_there[0]["workers"] * runs_there[0]["ranks"] == total


@pytest.mark.timeout(400)
def test_two_workers_equal_two_ranks_to_the_bit(trained):
    digests = {trained[f"2 as {r} x {k}"][1][0]["weights_digest"] for r, k in WAYS[2]}
    assert len(digests) == 1


@pytest.mark.timeout(400)
def test_batch_normalisation_sees_the_batch_of_its_worker_alone(trained):
    assert difference(trained["apart plain"][0], trained["together plain"][0]) < 1e-12
    assert difference(trained["apart"][0], trained["together"][0]) > 1e-3


@pytest.mark.timeout(400)
def test_all_ranks_hold_equal_weights(trained):
    for _weights, runs in trained.values():
        assert len({run["weights_digest"] for run in runs}) == 1
