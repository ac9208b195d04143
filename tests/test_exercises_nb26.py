"""Notebook 26's checks tick what is right and say which usual mistake was made.

The program of 26-5 runs on real ranks; what it could have done wrong is told by made-up trials.
"""

import math
import sys
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.data import datasets
from dlguide.exercises import nb26
from dlguide.training import audit, trial
from dlguide.training.evidence import Evidence, Metric


def last_step(images, ranks, batch):
    share = -(-images // ranks)
    last = share % batch or batch
    return last, batch / last


def odd_rows(rows):
    rules = [0.05 * workers * batch / 128 for workers, batch, _ in rows]
    return [i for i, row in enumerate(rows) if not math.isclose(row[2], rules[i], rel_tol=0.01)]


MISTAKES = {
    "A": "same order",
    "B": "no broadcast",
    "C": "batch normalisation",
    "D": "collectives",
    "E": "checkpoints",
    "F": "learning rate",
}


def detect(seen, samples):
    taken = [sample for rank in seen for sample in rank]
    return samples - len(set(taken)), len(taken) - len(set(taken))


EMPTY = {"26-3": [dict.fromkeys("ABCDEF", ...)]}
RIGHT = {"26-1": last_step, "26-2": odd_rows, "26-3": MISTAKES, "26-4": detect}
WRONG = {
    "nothing left over": ("26-1", lambda n, p, b: (-(-n // p) % b, 1.0), "a full one"),
    "rounded down": (
        "26-1",
        lambda n, p, b: (n // p % b or b, b / (n // p % b or b)),
        "rounded up",
    ),
    "inverse ratio": (
        "26-1",
        lambda n, p, b: (last_step(n, p, b)[0], last_step(n, p, b)[0] / b),
        "divide that by what the step has",
    ),
    "one number": ("26-1", lambda n, p, b: last_step(n, p, b)[0], "two numbers"),
    "workers only": (
        "26-2",
        lambda rows: [i for i, (p, _, r) in enumerate(rows) if abs(r / (0.05 * p) - 1) > 0.01],
        "a quarter of the rate",
    ),
    "exactly": (
        "26-2",
        lambda rows: [i for i, (p, b, r) in enumerate(rows) if r != 0.05 * p * b / 128],
        "allow 1 %",
    ),
    "none": ("26-2", lambda rows: [], "global batch"),
    "a number": ("26-2", lambda rows: 3, "a list of row numbers"),
    "weights for shards": ("26-3", MISTAKES | {"A": "weights differ"}, "Which samples has each"),
    "exchange for broadcast": ("26-3", MISTAKES | {"B": "weights differ"}, "was it ever 0"),
    "metrics for statistics": ("26-3", MISTAKES | {"C": "metrics"}, "what else is saved"),
    "metrics for a hang": ("26-3", MISTAKES | {"D": "metrics"}, "who makes it"),
    "one left open": ("26-3", MISTAKES | {"E": ...}, "How many ranks write"),
    "seeds for a rate": ("26-3", MISTAKES | {"F": "seeds"}, "what must each make up"),
    "one letter": ("26-3", {"A": "same order"}, "a mistake for each of A, B"),
    "doubles thrown away": (
        "26-4",
        lambda seen, n: detect([set(rank) for rank in seen], n),
        "A rank can also meet itself",
    ),
    "one rank only": ("26-4", lambda seen, n: detect(seen[:1], n), "all ranks together"),
    "taken several times": (
        "26-4",
        lambda seen, n: (
            detect(seen, n)[0],
            sum(count > 1 for count in np.unique(np.concatenate(seen), return_counts=True)[1]),
        ),
        "taken again two times",
    ),
    "no function": ("26-4", (0, 0), "Write it with `def`"),
}


def test_an_open_name_is_not_answered_yet(capsys):
    assert not exercises.check("26-5", ..., lambda *arguments: ..., 0, trial.run, DATA)
    out = capsys.readouterr().out
    assert out == "… Exercise 26-5 is not answered yet.\n"


def test_names_that_are_asked_for_are_the_detectors():
    assert {name for name, _ in nb26.OBSERVED.values()} | nb26.ALONG <= set(audit.KINDS)


@pytest.mark.parametrize("gpus", [8, 16, 24, 32])
def test_the_detector_agrees_on_the_last_step(gpus):
    last, factor = last_step(nb26.IMAGENET, gpus, 128)
    sizes = (128,) * (-(-nb26.IMAGENET // gpus) // 128) + (last,)
    found = audit.examine([Evidence(rank, gpus, batches=(sizes,)) for rank in range(gpus)])
    assert [f"{factor:.3g} times" in one.evidence for one in found] == [True] * (factor >= 4)


# --- 26-5: the program on ranks ------------------------------------------------------------------

NAMED = {"overlap", "learning rate"}
DATA = "nobody looks at it"


class Given:
    """A cluster whose ranks have already answered."""

    def __init__(self, trials):
        self.trials = trials

    def run(self, watched, limit_s, run, given):
        assert given[-1] == 0.001  # the rate of one rank
        return self.trials


def trials(ranks, samples=240):
    share = samples // ranks
    sizes = (20,) * (share // 20) + (share % 20,) * (share % 20 > 0)
    orders = [np.random.default_rng(epoch).permutation(samples) for epoch in range(2)]
    return [
        trial.Trial(
            rank=rank, ranks=ranks, loss=(2.0, 1.0), distance=(0.0, 0.0), taken=(),
            samples=samples, accuracy=0.5, seconds=1.0, result=None,
            evidence=Evidence(
                rank=rank, ranks=ranks, optimizer="adam", learning_rate=0.001 * ranks**0.5,
                seen=tuple(tuple(map(int, order[rank::ranks])) for order in orders),
                batches=(sizes, sizes), metrics=(Metric("loss", 0.5, share, None),),
            ),
        )
        for rank in range(ranks)
    ]  # fmt: skip


def with_evidence(ranks, change):
    found = trials(ranks)
    return [replace(one, evidence=replace(one.evidence, **change(one.evidence))) for one in found]


def whole_set(one):
    orders = [np.random.default_rng([one.rank, epoch]).permutation(240) for epoch in range(2)]
    return {"seen": tuple(tuple(map(int, order)) for order in orders)}


FAULTS = {
    "sgd's rule": (lambda one: {"learning_rate": 0.001 * one.ranks}, "the rule of SGD"),
    "no rule": (lambda one: {"learning_rate": 0.001}, "Which rule fits"),
    "another optimizer": (lambda one: {"optimizer": "sgd"}, "Keep the optimizer"),
    "no shards": (whole_set, "nobody cuts it"),
    "too few steps": (lambda one: {"seen": tuple(e[:40] for e in one.seen)}, "are not"),
    "one epoch": (lambda one: {"seen": one.seen[:1], "batches": one.batches[:1]}, "2 epochs"),
    "larger batches": (lambda one: {"batches": ((40, 40, 40),) * 2}, "batches of 20"),
    "own metrics": (
        lambda one: {"metrics": (Metric("loss", 0.5 + one.rank, 9, None),)},
        "MetricAverageCallback",
    ),
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sound_trials_are_ticked(ranks, capsys):
    ticked = exercises.check("26-5", NAMED, program, Given(trials(ranks)), trial.run, DATA)
    assert ticked, capsys.readouterr().out
    assert exercises.check("26-5", [*NAMED, "missed"], program, Given(trials(ranks)), 0, DATA)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("change", "hint"), FAULTS.values(), ids=FAULTS)
def test_fault_of_a_trial_gets_its_hint(change, hint, ranks, capsys):
    given = Given(with_evidence(ranks, change))
    assert not exercises.check("26-5", NAMED, program, given, trial.run, DATA)
    assert hint in capsys.readouterr().out


def test_distance_and_names_are_looked_at(capsys):
    apart = [replace(one, distance=(0.0, 0.1)) for one in trials(2)]
    assert not exercises.check("26-5", NAMED, program, Given(apart), trial.run, DATA)
    assert "broadcast was right" in capsys.readouterr().out
    for named in ({"overlap"}, {"same order", "learning rate"}, "overlap"):
        assert not exercises.check("26-5", named, program, Given(trials(2)), trial.run, DATA)
        assert "names" in capsys.readouterr().out


def program(data, watch, callbacks, mended=True):
    import keras
    import tensorflow as tf

    import dlguide.horovod as hvd

    rank, ranks = hvd.rank(), hvd.size()
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    adam = keras.optimizers.Adam(0.001 * (ranks**0.5 if mended else ranks))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(adam), loss, metrics=["accuracy"], jit_compile=False)
    samples = len(data.train_labels)
    batches = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
    if mended:
        batches = batches.shuffle(samples, seed=7).shard(ranks, rank).batch(20)
    else:
        batches = batches.shuffle(samples).batch(20).take(samples // 20 // ranks)
    callbacks = [hvd.callbacks.MetricAverageCallback(), *callbacks]
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
    model.fit(watch(batches), epochs=2, shuffle=False, verbose=0, callbacks=callbacks)


def workshop(data, watch, callbacks):
    program(data, watch, callbacks, mended=False)


def test_on_real_ranks_the_mended_program_is_ticked_and_the_workshops_is_not(capsys):
    data = datasets.load().first(240, 20)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        assert not exercises.check("26-5", NAMED, workshop, cluster, trial.run, data)
        assert "no sample taken twice" in capsys.readouterr().out
        ticked = exercises.check("26-5", NAMED, program, cluster, trial.run, data)
        assert ticked, capsys.readouterr().out
        # What the detector calls the workshop's mistakes is what the exercise asks for.
        found = cluster.run(trial.run, workshop, data, 0.001)
        kinds = {each.kind for each in audit.examine([one.evidence for one in found])}
        assert kinds - nb26.ALONG == NAMED
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
