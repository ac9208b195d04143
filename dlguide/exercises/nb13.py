"""Checks of the exercises of notebook 13: parameters, clipping, causes, attention, a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
CAUSES = {
    "too good": ("C", "What may a position see that should be predicted?"),
    "shuffled": ("E", "Which part of a transformer knows which step came first?"),
    "not a number": ("A", "Factors above 1, multiplied over many steps."),
    "forgets": ("B", "Factors below 1, multiplied over many steps."),
    "good past": ("D", "What has a forecaster that was chosen by its test years already seen?"),
    "cores rest": ("F", "Which results must wait for which?"),
}


def exercise_13_1(parameters: Callable[..., Any]) -> str:
    """Check the parameters of a recurrent layer.

    Args:
        parameters: called with the kind ("rnn", "lstm", "gru"), the features of a step, the units,
            and whether the layer reads in both directions; returns the count.

    Returns:
        str: what it means.
    """
    expect_function(parameters)
    for kind, features, units, both in (
        ("rnn", 1, 32, False),
        ("lstm", 1, 32, False),
        ("gru", 1, 32, False),
        ("lstm", 40, 7, False),
        ("gru", 3, 5, True),
        ("rnn", 128, 64, True),
    ):
        came = answered(parameters(kind, features, units, both))
        one = _parameters(kind, features, units)
        hint = "A gate has kernels for input and state, features + units numbers for each unit."
        if both and came == one:
            hint = "Two layers read: one from the front, one from the back."
        elif kind == "gru" and came in (one - 3 * units, 2 * (one - 3 * units)):
            hint = "Keras' GRU has two biases for each gate."
        elif came in (one - units * GATES[kind], 2 * (one - units * GATES[kind])):
            hint = "And the biases?"
        elif kind != "rnn" and came in (one // GATES[kind], 2 * one // GATES[kind]):
            hint = f"The {kind} has several gates, each with kernels of its own."
        case = f"a layer {kind!r} of {units} units for {features} features"
        right = (1 + both) * one
        words = f"the parameters of {case}{', in both directions' if both else ''}"
        expect(came == right, words, came, hint)
    return "Nothing depends on the length: the same weights are used at every step."


def _parameters(kind: str, features: int, units: int) -> int:
    biases = 2 if kind == "gru" else 1
    return GATES[kind] * units * (features + units + biases)


def exercise_13_2(clip: Callable[..., Any]) -> str:
    """Check the clipping of gradients by their common norm.

    Args:
        clip: called with a list of arrays and the largest allowed norm; returns the list of
            clipped arrays.

    Returns:
        str: what it means.
    """
    expect_function(clip)
    random = np.random.default_rng(13)
    long = [random.normal(size=(4, 3)), random.normal(size=3), 100 * random.normal(size=(2, 2))]
    cases = {
        "one array that is too long": ([np.array([3.0, 4.0])], 1.0),
        "one that is short enough": ([np.array([0.3, -0.4])], 1.0),
        "three arrays, one of them large": (long, 5.0),
        "two that are too long only together": ([np.array([0.0, 3.0]), np.array([[4.0]])], 4.5),
        "zeros": ([np.zeros(3)], 1.0),
    }
    for name, (gradients, limit) in cases.items():
        before = [each.copy() for each in gradients]
        came = answered(clip(gradients, limit))
        expect(isinstance(came, list | tuple), "a list of arrays", came)
        expect(len(came) == len(before), f"{len(before)} arrays", f"{len(came)}")
        kept = all(np.array_equal(*both) for both in zip(gradients, before, strict=True))
        expect(kept, "the gradients as they were given", "changed ones", "Return new arrays.")
        norm = float(np.sqrt(sum((each**2).sum() for each in before)))
        factor = min(1.0, limit / norm) if norm else 1.0
        hint = "Multiply all arrays by limit / norm, with one norm over all numbers of all arrays."
        if factor == 1:
            hint = "What is not longer than the limit stays as it is."
        elif all(
            np.allclose(each, np.clip(one, -limit, limit))
            for each, one in zip(came, before, strict=True)
        ):
            hint = "Cutting each number turns the gradient: its direction must stay."
        elif name.startswith("two"):
            hint = "One norm for all arrays together, not one for each."
        for one, (each, old) in enumerate(zip(came, before, strict=True)):
            expect_close(each, factor * old, f"array {one} of {name}, limit {limit}", hint, 1e-5)
    return (
        "The direction stays, only the length is cut. In data parallel training clip after the "
        "allreduce: then all ranks cut the same gradient."
    )


def exercise_13_3(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which symptom.

    Args:
        causes: for each of the six symptoms a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return (
        "Two of the six make the numbers look better than they are: those are the dangerous ones."
    )


def exercise_13_4(attention: Callable[..., Any]) -> str:
    """Check causal attention by hand.

    Args:
        attention: called with queries (steps, width), keys (steps, width) and values (steps,
            value width); returns the results (steps, value width) and the weights (steps, steps).

    Returns:
        str: what it means.
    """
    expect_function(attention)
    random = np.random.default_rng(13)
    for steps, width, value_width, scale in ((4, 3, 3, 1.0), (6, 16, 2, 1.0), (5, 4, 4, 300.0)):
        queries, keys = scale * random.normal(size=(2, steps, width))
        values = random.normal(size=(steps, value_width))
        came = answered(attention(queries.copy(), keys.copy(), values.copy()))
        two = isinstance(came, tuple | list) and len(came) == 2
        expect(two, "two arrays: results and weights", came)
        result, weights = (np.asarray(each, float) for each in came)
        case = f"{steps} steps of width {width}"
        shape = weights.shape == (steps, steps)
        expect(shape, f"weights ({steps}, {steps})", f"shape {weights.shape}")
        finite = bool(np.isfinite(weights).all())
        hint = "Subtract the largest score of each row before `exp`: exp(800) is infinite."
        expect(finite, f"finite weights for {case} and large scores", weights, hint)
        right = _softmax(np.where(_past(steps), queries @ keys.T / np.sqrt(width), -np.inf))
        hint = "softmax over each row of queries @ keys.T / sqrt(width), later steps hidden."
        later = float(np.abs(np.triu(weights, 1)).max())
        if later > 1e-9:
            hint = "Step 0 may look at step 0 only: give later steps the score -inf."
        elif not np.allclose(weights.sum(axis=1), 1):
            hint = "Each row has the sum 1: hide the later steps before the softmax, not after it."
        elif np.allclose(weights, _softmax(np.where(_past(steps), queries @ keys.T, -np.inf))):
            hint = "The scores are divided by the square root of the width."
        expect_close(weights, right, f"the weights of {case}", hint, 1e-9)
        hint = "The result of a step is the mean of the values, by its row of weights."
        expect_close(result, right @ values, f"the results of {case}", hint, 1e-9)
    return "No step waited for another one: all rows come out of the same three products."


def _past(steps: int) -> np.ndarray:
    return np.tril(np.ones((steps, steps), bool))


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def exercise_13_5(gradient: Callable[..., Any], learn: Callable[..., Any], cluster: Any) -> str:
    """Check the gradient of an actor with a critic, and what asynchronous workers learn with it.

    Args:
        gradient: called with the table (2 lights, 2 logits and a value), and for each play its
            light, its button and its reward; returns the gradient, shaped as the table.
        learn: called on each rank with the communicator and a seed; returns the final table.
        cluster: the learner's cluster; its last rank is the server.

    Returns:
        str: what it means.
    """
    expect_function(gradient)
    random = np.random.default_rng(13)
    for plays in (1, 7, 50):
        table = random.normal(size=(2, 3))
        lights, buttons = random.integers(0, 2, size=(2, plays))
        rewards = random.normal(size=plays)
        came = answered(gradient(table.copy(), lights.copy(), buttons.copy(), rewards.copy()))
        right = actor_critic_gradient(table, lights, buttons, rewards)
        hint = "For each play add to the row of its light, then divide by the number of plays."
        close = np.shape(came) == (2, 3)
        if close and np.allclose(came, -right):
            hint = "The server goes against the gradient: it must be that of a loss, not of a gain."
        elif close and np.allclose(np.asarray(came)[:, 2], -right[:, 2]):
            hint = "The critic's loss is (reward - value)^2 / 2. Its derivative is value - reward."
        elif close and np.allclose(np.asarray(came)[:, 2], right[:, 2]):
            hint = "The logits get (reward - value) * (share of the button - 1 if it was pressed)."
        elif close and np.allclose(np.asarray(came) / plays, right):
            hint = "The mean over the plays, not the sum."
        expect_close(came, right, f"the gradient of {plays} plays", hint, 1e-9)
    tables = [np.asarray(each, float) for each in results(cluster, learn, [(13,)] * cluster.ranks)]
    for rank, table in enumerate(tables):
        shape = table.shape == (2, 3)
        expect(shape, "the table (2, 3) on every rank", f"shape {table.shape} on rank {rank}")
        same = bool(np.array_equal(table, tables[0]))
        expect(same, "the same table on all ranks", f"another one on rank {rank}")
    shares = _softmax(tables[0][:, :2])
    lit, dark = float(shares[1, 0]), float(shares[0, 1])
    hint = "Does the worker play with the weights that it was given? Does the rate fit?"
    expect(lit > 0.8, "the left button when the light is on", f"share {lit:.2f}", hint)
    expect(dark > 0.7, "the right button when it is off", f"share {dark:.2f}", hint)
    return (
        f"{cluster.ranks - 1} workers, one server: left when lit {lit:.0%}, right when dark "
        f"{dark:.0%}. The critic expects {tables[0][1, 2]:.2f} and {tables[0][0, 2]:.2f} bananas."
    )


def actor_critic_gradient(
    table: np.ndarray, lights: np.ndarray, buttons: np.ndarray, rewards: np.ndarray
) -> np.ndarray:
    """Compute the gradient of the mean loss of an actor and its critic.

    With the share pi of the button that was pressed, the value V of the light, and the advantage
    A = reward - V, which counts as a constant for the actor:

        loss = - A log(pi) + (reward - V)^2 / 2

    Args:
        table: for each light two logits and a value, shape (2, 3).
        lights: of each play, 0 or 1.
        buttons: of each play, 0 or 1.
        rewards: of each play.

    Returns:
        ndarray: of the table's shape.

    Source:
        Mnih et al. 2016 (arXiv:1602.01783), section 4, without the entropy and for one step.
    """
    shares = _softmax(table[:, :2])[lights]
    advantages = rewards - table[lights, 2]
    pressed = np.eye(2)[buttons]
    each = np.c_[advantages[:, None] * (shares - pressed), -advantages]
    total = np.zeros_like(table)
    np.add.at(total, lights, each)
    return total / len(lights)
