"""Ranks against one process: equal work is shown first, and the numbers fit together.

Tests dlcourse.usecases.speedup and dlguide.training.step_breakdown, but no speed.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks

from dlcourse.usecases import speedup
from dlguide.cluster import Cluster
from dlguide.training import step_breakdown

pytestmark = pytest.mark.ranks


def lines_apart(faults):
    """Take the step of a line through points apart; its update is known in closed form."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dlguide.horovod.communicator import HorovodCommunicator
    from dlguide.training import step_breakdown

    many = HorovodCommunicator()

    def build(fault, comm):

        start = {"first": float(comm.size), "ranks": float(many.rank)}.get(fault, 0.5)
        scale = "gamma" if fault in ("over the batch", "double") else "w"
        weight = keras.Variable(np.full(2, start, np.float64), dtype="float64", name=scale)
        plain = keras.optimizers.SGD(0.125)
        rule = plain if fault == "no exchange" else comm.distribute(plain)
        rule.build([weight])
        whole = 1 if fault == "sum" else comm.size

        @tf.function(autograph=False)
        def one(x, y):
            if fault in ("over the batch", "nameless"):
                x = x / tf.math.reduce_std(x, axis=0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, weight.value) - y) ** 2) / whole
            found = tape.gradient(loss, [weight.value])
            if fault in ("first rank", "double") and comm.size > 1:
                # with equal samples on all ranks nothing can be seen of the first one
                twice = 2.0 if fault == "double" else 1.0
                found = [each * (0.0 if comm.rank else twice * comm.size) for each in found]
            if fault != "still":
                rule.apply(found, [weight])
            return loss

        def step(x, y):
            taken[comm.size, len(x)] = x.numpy().tolist()  # the last of each kind
            return float(one(x, y))

        return step_breakdown.StepWorker(step, ((rule, [weight]),))

    taken = {}

    def samples(count, seed):
        random = np.random.default_rng(seed)
        return random.random((count, 2)), random.random(count)

    def apart(fault):
        step = step_breakdown.TimedStep("line", 4, lambda comm: build(fault, comm), samples)
        try:
            found = step_breakdown.measure_parts(step, 4 * many.size, 2, 3)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        timed = {str(kind): each for kind, each in taken.items()}
        # once more, by hand: one step of all ranks, each with samples of its own
        fresh = step.build(many)
        fresh.step(*[tf.constant(each) for each in samples(4, many.rank)])
        return {
            "counts": {part: len(found[part]) for part in step_breakdown.PARTS},
            "nbytes": found["nbytes"],
            "work": found["work"],
            "taken": timed,
            "weights": [each.tolist() for each in fresh.weights()],
            "positive": min(min(found[part]) for part in step_breakdown.PARTS[1:]) > 0,
        }

    return [apart(fault) for fault in faults]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_on_ranks_is_the_mean_over_all_samples_and_every_part_has_its_turns(ranks, tmp_path):
    together = [np.random.default_rng(seed) for seed in range(ranks)]
    drawn = [(random.random((4, 2)), random.random(4)) for random in together]
    x, y = (np.concatenate(each) for each in zip(*drawn, strict=True))
    weight = np.full(2, 0.5)
    weight -= 0.125 * 2 * x.T @ (x @ weight - y) / len(y)
    told = on_ranks(ranks, lines_apart, tmp_path, faults=[""])
    whole = told[0][0]["taken"][str((1, 4 * ranks))]
    assert whole == np.random.default_rng(1).random((4 * ranks, 2)).tolist()  # one after seed 0
    assert whole == [x for (each,) in told for x in each["taken"][str((ranks, 4))]]
    for rank, (found,) in enumerate(told):
        assert found["weights"][0] == pytest.approx(weight, rel=1e-12)
        alone = 6 if rank == 0 else 0
        assert found["counts"] == {**dict.fromkeys(step_breakdown.PARTS, 6), "alone": alone}
        assert found["nbytes"] == 16
        assert found["work"][0] < 1e-12
        assert found["work"][1] is None
        assert found["positive"]


FAULTS = {
    "no exchange": "`step` must lead to the weights of one process .* got 'others for line'",
    "sum": "The update differs by 100 %",
    "first": "`build` must give the same initial weights",
    "ranks": "The weights of rank 1 are not those of rank 0 before the first step",
    "still": "`step` must change the weights, got 'none of line'",
    "first rank": "`step` must lead to the weights of one process with the same samples",
    "double": "The update differs by 100 %",
    "nameless": "`step` must lead to the weights of one process with the same samples",
}


def test_ranks_that_do_not_do_the_work_of_one_process_are_refused(tmp_path):
    told = on_ranks(2, lines_apart, tmp_path, faults=list(FAULTS))
    assert told[0] == told[1]
    for said, (fault, words) in zip(told[0], FAULTS.items(), strict=True):
        assert re.search(words, said["error"]), fault


def test_normalising_over_each_rank_s_batch_is_another_update_and_said_to_be(tmp_path):
    told = on_ranks(2, lines_apart, tmp_path, faults=["over the batch"])
    for (found,) in told:
        difference, equal = found["work"]
        assert difference == told[0][0]["work"][0] > step_breakdown.ROUNDING
        assert equal < 1e-12


def gan(batch, hidden):
    """Give the step of a small GAN whose nets are of different size."""
    build = partial(_game, hidden)
    return step_breakdown.TimedStep(f"gan {hidden}", batch, build, _points)


def _game(hidden, comm):
    import keras
    import tensorflow as tf

    from dlcourse.adversarial import dense_pair, non_saturating

    judge = dense_pair(hidden=hidden, latent=2)[1]
    maker = dense_pair(hidden=4 * hidden, latent=2)[0]
    rules = []
    for net in (judge, maker):
        rule = comm.distribute(keras.optimizers.Adam(1e-3))
        rule.build(net.trainable_variables)
        rules.append((rule, net.trainable_variables))

    @tf.function(autograph=False)
    def one(real, codes):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = maker(codes, training=True)
            judged, made = non_saturating(judge(real, training=True), judge(fake, training=True))
            judged, made = judged / comm.size, made / comm.size
        for tape, loss, (rule, variables) in zip(
            (first, second), (judged, made), rules, strict=True
        ):
            rule.apply(tape.gradient(loss, [each.value for each in variables]), variables)
        return judged

    return step_breakdown.StepWorker(lambda *arrays: float(one(*arrays)), tuple(rules))


def _points(samples, seed):
    random = np.random.default_rng(seed)
    return tuple(random.normal(size=(samples, 2)).astype(np.float32) for _ in range(2))


@pytest.mark.long  # the command's own test measures once
def test_measure_times_two_nets_on_ranks_and_everything_fits_together():
    step = gan(8, 16)
    with Cluster(ranks=2, magics=False) as cluster:
        found = speedup.measure(step, cluster, seconds=0.5)
    assert (found.ranks, found.batch, found.name) == (2, 8, "gan 16")
    weights = 2 * 16 + 16 + 16 * 16 + 16 + 16 + 1  # discriminator
    weights += 2 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2  # generator
    assert found.nbytes == 4 * weights
    assert found.difference < step_breakdown.ROUNDING
    assert found.equal is None
    assert len(found.step.seconds) == len(found.alone.seconds) >= 2
    assert found.speedup == pytest.approx(found.alone.median / found.step.median)
    assert found.efficiency == pytest.approx(found.speedup / 2)
    assert found.ratio == pytest.approx(found.speedup / found.predicted_speedup)
    record = json.loads(json.dumps(asdict(found)))
    assert record["step"]["seconds"] == list(found.step.seconds)
    for text in ("gan 16, 16 samples a step", "1 process", "2 ranks of", "speed-up"):
        assert text in str(found)
