"""A trial notes on real ranks what a program did: losses, distances, samples, evidence.

Tests dlcourse.trial; one launch for each number of ranks.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import long
from on_ranks import on_ranks

SAMPLES, TEST = 12, 9


def trials(samples, test, names):
    import os

    import numpy as np

    from dlcourse import trial
    from dlguide.data.datasets import Dataset

    draw = np.random.default_rng(0)
    images = draw.normal(size=(samples + test, 5)).astype(np.float32)
    labels = draw.integers(0, 3, samples + test).astype(np.int32)
    data = Dataset("small", images[:samples], labels[:samples], images[samples:], labels[samples:])

    ends = []  # weights and evaluation at the end of a program

    def program(data, watch, callbacks, seed=None, broadcast=True):
        import keras
        import tensorflow as tf

        import dlguide.horovod as hvd

        rank, ranks = hvd.rank(), hvd.size()
        if seed is not None:
            keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
        batches = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
        batches = batches.shard(ranks, rank).batch(2)
        start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcast else []
        model.fit(watch(batches), epochs=2, verbose=0, shuffle=False, callbacks=start + callbacks)
        evaluated = model.evaluate(data.test_images, data.test_labels, verbose=0)
        ends.append([np.concatenate([np.ravel(w) for w in model.get_weights()]), evaluated])

    def outcome(program):
        one = trial.run(program, data, 0.1)
        weights, evaluated = ends.pop()
        return {
            "loss": one.loss,
            "distance": one.distance,
            "taken": one.taken,
            "accuracy": one.accuracy,
            "result": [weights.tolist(), evaluated],
        }

    def apart(data, watch, callbacks):
        program(data, watch, callbacks, broadcast=False)

    def seeded(data, watch, callbacks):
        program(data, watch, callbacks, seed=5, broadcast=False)

    programs = {"sound": program, "seeded": seeded, "apart": apart}
    result = {name: outcome(programs[name]) for name in names if name in programs}
    result["switch"] = os.environ.get("DLGUIDE_HVD_CHECK_EVERY", "")
    return result


# Each training costs a second on each rank: what concerns one rank alone runs on few.
NAMES = {
    1: ("sound",),
    2: ("sound", "seeded", "apart"),
    3: ("sound", "apart"),
}


@pytest.mark.parametrize("ranks", [2, 3, *long(1)])
def test_a_trial_reports_what_the_program_did(ranks, tmp_path):
    names = NAMES[ranks]
    everyone = on_ranks(ranks, trials, tmp_path, 240, samples=SAMPLES, test=TEST, names=names)
    steps = 2 * SAMPLES // ranks // 2
    for rank, result in enumerate(everyone):
        for name in {"sound", "seeded", "apart"} & set(names):
            one = result[name]

            assert len(one["loss"]) == len(one["distance"]) == steps
            assert one["taken"] == list(range(rank, SAMPLES, ranks))
            # Keras itself evaluates the same test images.
            loss, accuracy = one["result"][1]
            assert one["loss"][-1] == pytest.approx(loss, rel=1e-5)
            assert one["accuracy"] == pytest.approx(accuracy)
            # The largest difference between any two ranks, by NumPy from the last weights.
            weights = np.array([each[name]["result"][0] for each in everyone], np.float32)
            spread = float((weights.max(axis=0) - weights.min(axis=0)).max())
            assert one["distance"][-1] == pytest.approx(spread, rel=1e-6)
        assert set(result["sound"]["distance"]) == {0.0}
        assert result["switch"] == ""
    assert len({str(result["sound"]["loss"]) for result in everyone}) == 1
    first = everyone[0]
    if "seeded" in names:
        # A seed that one program sets is not left to the next one.
        assert set(first["seeded"]["distance"]) == {0.0}
    if "apart" in names:
        assert min(first["apart"]["distance"]) > 0
