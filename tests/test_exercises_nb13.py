"""Notebook 13's checks tick what is right and say which usual mistake was made.

Tests dlguide.exercises.nb13, dlguide.exercises.matching.
"""

import numpy as np
import pytest

from dlguide import exercises
from dlguide.exercises import nb13


@pytest.fixture(scope="module", params=[3])
def cluster_ranks(request):
    return request.param


def parameters(kind, features, units, both, gates=None, biases=None, directions=2):
    gates = gates or {"rnn": 1, "lstm": 4, "gru": 3}[kind]
    biases = (2 if kind == "gru" else 1) if biases is None else biases
    one = gates * units * (features + units + biases)
    return directions * one if both else one


def clip(gradients, limit, together=True, always=False):
    if not together:
        return [clip([one], limit)[0] for one in gradients]
    norm = np.sqrt(sum(np.sum(one**2) for one in gradients))
    if not always and norm <= limit:
        return [one.copy() for one in gradients]
    return [one * limit / norm if norm else one for one in gradients]


def in_place(gradients, limit):
    for one, new in zip(gradients, clip(gradients, limit), strict=True):
        one[...] = new
    return gradients


def attention(queries, keys, values, scaled=True, hide="before", safe=True):
    scores = queries @ keys.T / (np.sqrt(queries.shape[1]) if scaled else 1)
    later = np.triu(np.ones_like(scores), 1) > 0
    if hide == "before":
        scores[later] = -np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(scores - (scores.max(axis=1, keepdims=True) if safe else 0))
        weights = powers / powers.sum(axis=1, keepdims=True)
    if hide == "after":
        weights[later] = 0
    return weights @ values, weights


CAUSES = {
    "too good": "C",
    "shuffled": "E",
    "not a number": "A",
    "forgets": "B",
    "good past": "D",
    "cores rest": "F",
}
RIGHT = {"13-1": parameters, "13-2": clip, "13-3": CAUSES, "13-4": attention}
EMPTY = {"13-3": [dict.fromkeys(CAUSES, ...)]}
WRONG = {
    "one direction": ("13-1", lambda *a: parameters(*a, directions=1), "Two layers read"),
    "one bias in a gru": ("13-1", lambda *a: parameters(*a, biases=1), "two biases"),
    "no biases": ("13-1", lambda *a: parameters(*a, biases=0), "And the biases"),
    "no gates": ("13-1", lambda *a: parameters(*a, gates=1), "several gates"),
    "times the steps": ("13-1", lambda *a: 32 * parameters(*a), "features + units"),
    "cut number by number": (
        "13-2",
        lambda gradients, limit: [np.clip(one, -limit, limit) for one in gradients],
        "direction must stay",
    ),
    "each alone": ("13-2", lambda *a: clip(*a, together=False), "one norm"),
    "made longer": ("13-2", lambda *a: clip(*a, always=True), "stays as it is"),
    "in place": ("13-2", in_place, "Return new arrays"),
    "one array": ("13-2", lambda gradients, limit: gradients[0], "a list of arrays"),
    "first is lost": ("13-2", lambda *a: clip(*a)[1:], "arrays"),
    "leak": ("13-3", {**CAUSES, "too good": "E"}, "should be predicted"),
    "exploding is vanishing": ("13-3", {**CAUSES, "not a number": "B"}, "above 1"),
    "vanishing is exploding": ("13-3", {**CAUSES, "forgets": "A"}, "below 1"),
    "no letter": ("13-3", {**CAUSES, "shuffled": "positions"}, "from A to F"),
    "no dictionary": ("13-3", ["A", "B"], "a dictionary"),
    "sees the future": ("13-4", lambda *a: attention(*a, hide=""), "score -inf"),
    "hidden too late": ("13-4", lambda *a: attention(*a, hide="after"), "before the softmax"),
    "not scaled": ("13-4", lambda *a: attention(*a, scaled=False), "square root"),
    "exp of large scores": ("13-4", lambda *a: attention(*a, safe=False), "Subtract the largest"),
    "results only": ("13-4", lambda *a: attention(*a)[0], "two arrays"),
    "values forgotten": (
        "13-4",
        lambda q, k, v: (np.cumsum(v, axis=0), attention(q, k, v)[1]),
        "mean of the values",
    ),
    "no function": ("13-4", 3.0, "Write it with `def`"),
}


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_parameters_are_those_of_keras(kind):
    import keras

    layer = {"rnn": keras.layers.SimpleRNN, "lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
    one = layer[kind](5)
    one.build((None, 7, 3))
    assert one.count_params() == nb13._parameters(kind, 3, 5)


def test_clipping_may_round_or_guard_the_division(capsys):
    def in_float32(gradients, limit):
        return [one.astype("float32") for one in clip(gradients, limit)]

    def guarded(gradients, limit):  # as PyTorch does
        factor = min(1.0, limit / (np.sqrt(sum(np.sum(one**2) for one in gradients)) + 1e-6))
        return [factor * one for one in gradients]

    for answer in (in_float32, guarded):
        ticked = exercises.check("13-2", answer)
        assert ticked, capsys.readouterr().out


def test_attention_is_that_of_keras():
    import keras

    random = np.random.default_rng(0)
    queries, keys, values = random.normal(size=(3, 1, 6, 4))
    layer = keras.layers.Attention(use_scale=False)
    inputs = [queries * 0.5, values, keys]  # this layer does not divide by the root of the width
    theirs = np.asarray(layer(inputs, use_causal_mask=True))[0]
    mine, weights = attention(queries[0], keys[0], values[0])
    assert np.allclose(mine, theirs, atol=1e-5)
    assert np.allclose(weights.sum(axis=1), 1)


def loss(table, lights, buttons, rewards, constant):
    """The mean loss written out play by play; `constant` are the advantages, not differentiated."""
    total = 0.0
    for light, button, reward, advantage in zip(lights, buttons, rewards, constant, strict=True):
        logits = table[light, :2]
        log_share = logits[button] - np.log(np.exp(logits).sum())
        total += -advantage * log_share + (reward - table[light, 2]) ** 2 / 2
    return total / len(lights)


def test_gradient_of_actor_and_critic_is_that_of_finite_differences():
    random = np.random.default_rng(1)
    table = random.normal(size=(2, 3))
    lights, buttons = random.integers(0, 2, size=(2, 20))
    rewards = random.normal(size=20)
    constant = rewards - table[lights, 2]
    numeric = np.zeros_like(table)
    for place in np.ndindex(table.shape):
        step = np.zeros_like(table)
        step[place] = 1e-5
        ends = [loss(table + s, lights, buttons, rewards, constant) for s in (step, -step)]
        numeric[place] = (ends[0] - ends[1]) / 2e-5
    came = nb13.actor_critic_gradient(table, lights, buttons, rewards)
    assert np.allclose(came, numeric, atol=1e-8)


def gradient(table, lights, buttons, rewards, fault=""):
    total = np.zeros_like(table)
    for light, button, reward in zip(lights, buttons, rewards, strict=True):
        shares = np.exp(table[light, :2]) / np.exp(table[light, :2]).sum()
        gain = reward if fault == "no critic" else reward - table[light, 2]
        total[light, :2] += gain * (shares - np.eye(2)[button])
        total[light, 2] += gain if fault == "critic turned" else table[light, 2] - reward
    if fault == "gain":
        total *= -1
    return total if fault == "sum" else total / len(lights)


def learn(comm, seed, rate=0.5, steps=150):
    from dlguide.parallel import server

    random = np.random.default_rng([seed, comm.rank])

    def play(weights, worker, step):
        table = weights.reshape(2, 3)
        lights = random.integers(0, 2, 16)
        shares = np.exp(table[:, 1]) / np.exp(table[:, :2]).sum(axis=1)
        buttons = (random.random(16) < shares[lights]).astype(int)
        rewards = np.where(lights == 1, buttons == 0, (buttons == 1) * (random.random(16) < 0.5))
        return gradient(table, lights, buttons, rewards * 1.0).ravel(), 16

    def update(part, mean):
        part -= rate * mean

    return server.train(comm, np.zeros(6), play, steps, update, "asynchronous")[0].reshape(2, 3)


def test_workers_and_a_server_learn_the_policy(cluster, capsys):
    ticked = exercises.check("13-5", gradient, learn, cluster)
    out = capsys.readouterr().out
    assert ticked, out
    assert "2 workers, one server" in out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "gain": "against the gradient",
        "no critic": "share of the button",
        "critic turned": "value - reward",
        "sum": "not the sum",
    }.items(),
)
def test_fault_in_the_gradient_is_named(fault, hint, cluster, capsys):
    def faulty(*arguments):
        return gradient(*arguments, fault=fault)

    assert not exercises.check("13-5", faulty, learn, cluster)
    assert hint in capsys.readouterr().out


@pytest.mark.parametrize(
    ("faulty", "hint"),
    [
        (lambda comm, seed: learn(comm, seed, rate=0.0), "Does the rate fit"),
        (lambda comm, seed: learn(comm, seed) + comm.rank, "another one on rank 1"),
        (lambda comm, seed: learn(comm, seed).ravel(), "shape (6,)"),
    ],
)
def test_fault_in_the_learning_is_named(faulty, hint, cluster, capsys):
    assert not exercises.check("13-5", gradient, faulty, cluster)
    assert hint in capsys.readouterr().out


def test_empty_policy_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("13-5", lambda *_: ..., learn, cluster)
    assert not exercises.check("13-5", gradient, lambda *_: ..., cluster)
    assert not exercises.check("13-5", gradient, learn, None)
    assert capsys.readouterr().out.count("not answered yet") == 3
