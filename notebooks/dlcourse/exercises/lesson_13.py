"""Exercises of lesson 13: parameters, clipping, causes, attention, a policy."""

from functools import partial

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

RANDOM = np.random.default_rng(13)
LAYERS = [
    (kind, n, units, False) for kind in ("rnn", "lstm", "gru") for n, units in ((1, 32), (40, 7))
]
LONG = [RANDOM.normal(size=(4, 3)), RANDOM.normal(size=3), 100 * RANDOM.normal(size=(2, 2))]


def parameters(kind, features, units, both, gates=None, biases=None):
    gates = gates or {"rnn": 1, "lstm": 4, "gru": 3}[kind]
    biases = 1 + (kind == "gru") if biases is None else biases
    return (1 + both) * gates * units * (features + units + biases)


def clip(gradients, limit, most=1.0):
    norm = np.sqrt(sum(np.sum(each**2) for each in gradients))
    factor = min(most, limit / norm) if norm else 1.0
    return [factor * each for each in gradients]


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def attention(queries, keys, values, width=0, before=-np.inf, after=1, softmax=softmax):
    """`before` is the score of a later step, `after` the factor of its weight."""
    later = np.triu(np.ones((len(queries), len(keys)), bool), 1)
    scores = queries @ keys.T / np.sqrt(width or keys.shape[1])
    weights = softmax(np.where(later & (before != 0), before, scores)) * np.where(later, after, 1)
    return weights @ values, weights


def gradient(table, lights, buttons, rewards, critic=1):
    advantages = rewards - table[lights, 2] * critic
    logits = advantages[:, None] * (softmax(table[:, :2])[lights] - np.eye(2)[buttons])
    total = np.zeros_like(table)
    np.add.at(total, lights, np.c_[logits, table[lights, 2] - rewards])
    return total / len(lights)


def learn(comm, seed):
    world, table = np.random.default_rng([seed, comm.rank]), np.zeros((2, 3))
    for _ in range(150):
        lights = world.integers(0, 2, 16)
        buttons = (world.random(16) > softmax(table[:, :2])[lights, 0]).astype(int)
        paid = np.where(lights == 1, buttons == 0, (buttons == 1) & (world.random(16) < 0.5))
        table -= 0.5 * comm.allreduce(gradient(table, lights, buttons, paid)) / comm.size
    return table


def policy(tables):
    """What is good about the tables of all ranks: shapes, equality, both buttons."""
    if any(np.shape(each) != (2, 3) for each in tables):
        return f"shapes {[np.shape(each) for each in tables]}"
    shares = softmax(np.asarray(tables[0])[:, :2])
    equal = all(np.array_equal(each, tables[0]) for each in tables)
    return equal, shares[1, 0] > 0.8, shares[0, 1] > 0.7


def tables(lit=2.0, dark=2.0, apart=0.0):
    """A table for each rank: logits for the left button when lit, for the right one when dark."""
    table = np.array([[0.0, dark, 0.5], [lit, 0.0, 1.0]])
    return lambda inputs: [table + apart * rank for rank in range(len(inputs))]


EXERCISES = {
    "13-1": Exercise(
        parameters,
        cases=[*LAYERS, ("gru", 3, 5, True), ("rnn", 128, 64, True)],
        hint="A gate has kernels for input and state, features + units weights for each unit.",
        mistakes={
            "Two layers read: one from the front, one from the back.": (
                lambda kind, n, units, both: parameters(kind, n, units, False)
            ),
            "Keras' GRU has two biases for each gate.": partial(parameters, biases=1),
            "And the biases?": partial(parameters, biases=0),
            "Each gate has its own kernels; LSTM and GRU have several.": partial(
                parameters, gates=1
            ),
        },
        remark="Nothing depends on the length: the same weights are used at every step.",
    ),
    "13-2": Exercise(
        clip,
        call=lambda answer, *given: (old := repr(given), answer(*given), old == repr(given))[1:],
        cases=[
            *(([np.array([3.0, 4.0])], 1.0), ([np.array([0.3, -0.4])], 1.0), (LONG, 5.0)),
            *(([np.array([0.0, 3.0]), np.array([[4.0]])], 4.5), ([np.zeros(3)], 1.0)),
        ],
        hint="Multiply all arrays by limit / norm, with one norm over all values of all arrays.",
        mistakes={
            "What is not longer than the limit stays as it is.": lambda *a: clip(*a, np.inf),
            "Cutting each value turns the gradient: its direction must stay.": (
                lambda gradients, limit: [np.clip(each, -limit, limit) for each in gradients]
            ),
            "One norm for all arrays together, not one for each.": (
                lambda gradients, limit: [clip([each], limit)[0] for each in gradients]
            ),
            "Return new arrays.": lambda a, limit: [clip(a, limit), a[0].fill(7)][0],
        },
        remark="The direction stays, only the length is cut. In data parallel training clip after "
        "the allreduce: then all ranks cut the same gradient.",
    ),
    "13-3": Letters(
        {
            "too good": ("C", "What may a position see that should be predicted?"),
            "shuffled": ("E", "Which part of a transformer represents which step came first?"),
            "not a number": ("A", "Factors above 1, multiplied over many steps."),
            "forgets": ("B", "Factors below 1, multiplied over many steps."),
            "good past": ("D", "What has a forecaster that was chosen by its test years seen?"),
            "cores rest": ("F", "Which results must wait for which?"),
        },
        remark="Two of the six make results look better than they are: beware of those.",
    ),
    "13-4": Exercise(
        attention,
        cases=[
            (*scale * RANDOM.normal(size=(2, steps, width)), RANDOM.normal(size=(steps, to)))
            for steps, width, to, scale in ((4, 3, 3, 1), (6, 16, 2, 1), (5, 4, 4, 300))
        ],
        hint="softmax over each row of queries @ keys.T / sqrt(width), later steps hidden.",
        mistakes={
            "Subtract the largest score of each row before `exp`: exp(800) is infinite.": (
                partial(attention, softmax=lambda s: np.exp(s) / np.exp(s).sum(1, keepdims=True))
            ),
            "Step 0 may look at step 0 only: later ones get -inf.": partial(attention, before=0),
            "Each row has the sum 1: hide the later steps before the softmax, not after it.": (
                partial(attention, before=0, after=0)
            ),
            "The scores are divided by the square root of the width.": partial(attention, width=1),
            "The result of a step is the mean of the values, weighted by its row of weights.": (
                lambda q, k, v: (np.cumsum(v, axis=0), attention(q, k, v)[1])
            ),
        },
        remark="No step waited for another one: all rows come out of the same three products.",
    ),
    "13-5": [
        Exercise(
            gradient,
            cases=[
                (RANDOM.normal(size=(2, 3)), *RANDOM.integers(0, 2, (2, n)), RANDOM.normal(size=n))
                for n in (1, 7, 50)
            ],
            hint="For each play add to the row of its light, then divide by the number of plays.",
            mistakes={
                "The server subtracts the gradient: it must be that of a loss, not of a gain.": (
                    lambda *a: -gradient(*a)
                ),
                "The critic's loss is (reward - value)^2 / 2. Its derivative is value - reward.": (
                    lambda *a: gradient(*a) * [1, 1, -1]
                ),
                "The logits get (reward - value) * (share of the button - 1 if it was pressed).": (
                    lambda *a: gradient(*a, critic=0)
                ),
                "The mean over the plays, not the sum.": lambda *a: len(a[1]) * gradient(*a),
            },
        ),
        Exercise(
            learn,
            ranks=(3,),
            cases=lambda ranks: [[(13,)] * ranks],
            view=policy,
            serial=tables(),
            hint="Left when the light is on, right when it is off, on every rank.",
            mistakes={
                "Are these the weights that the worker got? Does the rate fit?": tables(0, 0),
                "The table must be the same on all ranks.": tables(apart=1.0),
            },
            remark="Two workers and a server: the policy is learned although no worker waits.",
        ),
    ],
}
