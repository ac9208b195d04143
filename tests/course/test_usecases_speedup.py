"""Parts of a step on ranks: checked to be equal work with one process before they are timed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks

from dlcourse.bench import scaling


def lines_apart(faults):
    """Take the step of a line through points apart; its update is known in closed form."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dlcourse.bench import scaling
    from dlguide.training import connect

    many = connect(True)

    def build(fault, comm):

        start = float(many.rank) if fault == "ranks" else 0.5
        scale = "gamma" if fault == "over the batch" else "w"
        weight = keras.Variable(np.full(2, start, np.float64), dtype="float64", name=scale)
        plain = keras.optimizers.SGD(0.125)
        rule = plain if fault == "no exchange" else comm.distribute(plain)
        rule.build([weight])
        whole = 1 if fault == "sum" else comm.size

        @tf.function(autograph=False)
        def one(x, y):
            if fault == "over the batch":
                x = x / tf.math.reduce_std(x, axis=0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, weight.value) - y) ** 2) / whole
            found = tape.gradient(loss, [weight.value])
            if fault == "first rank" and comm.size > 1:
                found = [each * (0.0 if comm.rank else comm.size) for each in found]
            if fault != "still":
                rule.apply(found, [weight])
            return loss

        def step(x, y):
            taken[comm.size, len(x)] = x.numpy().tolist()  # the last of each kind
            return float(one(x, y))

        return scaling.StepWorker(step, ((rule, [weight]),))

    taken = {}

    def samples(count, seed):
        random = np.random.default_rng(seed)
        return random.random((count, 2)), random.random(count)

    def apart(fault):
        step = scaling.TimedStep("line", 4, lambda comm: build(fault, comm), samples)
        try:
            found = scaling.measure_parts(step, 4 * many.size, 2, 3, float("inf"))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        timed = {str(kind): each for kind, each in taken.items()}
        # once more, by hand: one step of all ranks, each with its own samples
        fresh = step.build(many)
        fresh.step(*[tf.constant(each) for each in samples(4, many.rank)])
        return {
            "counts": {part: len(found[part]) for part in scaling.PARTS},
            "nbytes": found["nbytes"],
            "work": found["work"],
            "taken": timed,
            "weights": [each.tolist() for each in fresh.weights()],
        }

    return [apart(fault) for fault in faults]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_on_ranks_is_the_mean_over_all_samples_and_every_part_has_its_turns(ranks, tmp_path):
    together = [np.random.default_rng(seed) for seed in range(ranks)]
    drawn = [(random.random((4, 2)), random.random(4)) for random in together]
    x, y = (np.concatenate(each) for each in zip(*drawn, strict=True))
    weight = np.full(2, 0.5)
    weight -= 0.125 * 2 * x.T @ (x @ weight - y) / len(y)
    results = on_ranks(ranks, lines_apart, tmp_path, faults=[""])
    whole = results[0][0]["taken"][str((1, 4 * ranks))]
    assert whole == np.random.default_rng(1).random((4 * ranks, 2)).tolist()  # one after seed 0
    assert whole == [x for (each,) in results for x in each["taken"][str((ranks, 4))]]
    for rank, (found,) in enumerate(results):
        assert found["weights"][0] == pytest.approx(weight, rel=1e-12)
        alone = 6 if rank == 0 else 0
        assert found["counts"] == {**dict.fromkeys(scaling.PARTS, 6), "alone": alone}
        assert found["nbytes"] == 16
        assert found["work"][0] < 1e-12
        assert found["work"][1] is None


FAULTS = {
    "no exchange": "`step` must lead to the weights of one process .* got 'others for line'",
    "sum": "The update differs by 100 %",
    "ranks": "The weights of rank 1 are not those of rank 0 before the first step",
    "still": "`step` must change the weights, got 'none of line'",
    "first rank": "`step` must lead to the weights of one process with the same samples",
}


def test_ranks_that_do_not_do_the_work_of_one_process_are_refused(tmp_path):
    results = on_ranks(2, lines_apart, tmp_path, faults=list(FAULTS))
    assert results[0] == results[1]
    for result, (fault, words) in zip(results[0], FAULTS.items(), strict=True):
        assert re.search(words, result["error"]), fault


def test_normalising_over_each_rank_s_batch_is_reported_as_another_update(tmp_path):
    results = on_ranks(2, lines_apart, tmp_path, faults=["over the batch"])
    for (found,) in results:
        difference, equal = found["work"]
        assert difference == results[0][0]["work"][0] > scaling.ROUNDING
        assert equal < 1e-12
