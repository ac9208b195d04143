"""Checks of the exercises of notebook 50: traces, contradictions, honest ratios, choice, ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

WAYS = ("numbers", "tensors", "lists", "any list")
# What the survey's text and footnotes say of the GPUs behind the last column of its Table 1.
GPUS = {
    "TensorFlow": (512, "8 GPUs cannot be spread over 64 nodes: so 8 are in each node."),
    "Caffe": (256, "The footnote says 4 GPUs a node, and 4 x 64 is the first number itself."),
    "Torch": (256, "The footnote says 4 GPUs a node, and 4 x 64 is the first number itself."),
    "MXNet": (256, "The footnote says P2.16xlarge: 16 GPUs in each of 16 nodes."),
    "Microsoft Cognitive Toolkit": (8, "Section 2.2 has 8 nodes with one GPU each."),
    "PyTorch": ("unknown", "8/8 allows 8 and 64, and there is no footnote."),
}
_NEEDS = {
    "sentences": ("C", "Every sentence has its own graph: which of them needs none in advance?"),
    "three backends": ("A", "One source text for several frameworks: whose idea is that?"),
    "MPI cluster": ("E", "mpiexec is there; which of them asks for a few lines and an MPI?"),
    "slow workers": ("B", "Nobody shall wait for the slowest: which of them has no allreduce?"),
    "data in Spark": ("F", "The data shall stay where they are, and so shall the job's master."),
    "only inference": ("D", "No training at all: which of them is made for that?"),
}


def exercise_50_1(traces: Callable[..., Any]) -> str:
    """Check the predicted number of traces of a `tf.function`.

    Args:
        traces: called with the sentences in the order of the calls and the way in which they are
            given, one of `WAYS`; returns how often the function is traced.

    Returns:
        str: what it means.
    """
    expect_function(traces)
    cases = {
        "one sentence read three times": [(1, 2)] * 3,
        "other words in the same tree": [(1, 2), (3, 4), (1, 2), (2, 1)],
        "two trees of the same length": [((1, 2), 3), (1, (2, 3)), ((4, 4), 4)],
        "all of it": [(1, 2), ((1, 2), 3), (1, (2, 3)), (5, 6), (1, 2), ((7, 8), (9, 9)), 4],
    }
    for name, trees in cases.items():
        for way in WAYS:
            came = answered(traces(list(trees), way))
            keys = {each: {_key(tree, each) for tree in trees} for each in WAYS}
            hint = {
                "numbers": "A Python number is part of the key: a new number, a new trace.",
                "tensors": "A tensor's value is no part of the key; how they are nested is.",
                "lists": "An array's shape is part of the key, its values are not.",
                "any list": "The signature says (None, 3): what could be new about a call?",
            }[way]
            if came == len(trees) and len(keys[way]) < len(trees):
                hint = "A call whose key was there before needs no new trace."
            elif way == "tensors" and came == len(keys["lists"]):
                hint = "Sentences of one length can have different trees."
            elif way == "tensors" and came == len(keys["numbers"]):
                hint = "The words are tensors here: other words, the same trace."
            expect(came == len(keys[way]), f"the traces for {name}, given as {way}", came, hint)
    return "Count the keys, not the calls. What you give as a tensor is data; the rest is program."


def exercise_50_2(contradictions: Callable[..., Any], gpus: Mapping[str, Any]) -> str:
    """Check the comparison of a table with statements of its text, and the numbers of GPUs.

    Args:
        contradictions: called with the rows of a table and statements (framework, column,
            value); returns the list of those that the table contradicts.
        gpus: for each framework with numbers how many GPUs there were in all, or "unknown".

    Returns:
        str: what it means.
    """
    expect_function(contradictions)
    table = [
        {"framework": "A", "modes": "sync async", "gan": "yes"},
        {"framework": "B", "modes": "sync", "gan": "no"},
    ]
    order = "`sync async` and `async sync` say the same: compare sets of words."
    cases: list[tuple[list[tuple[str, str, str]], list[int], str]] = [
        ([("A", "modes", "sync"), ("B", "modes", "sync")], [0], "One word fewer is another claim."),
        ([("A", "modes", "async sync"), ("B", "gan", "no")], [], order),
        ([("B", "gan", "yes"), ("A", "gan", "no"), ("A", "gan", "yes")], [0, 1], "In their order."),
        ([("B", "modes", "sync async")], [0], "One word more is another claim."),
    ]
    for statements, places, hint in cases:
        came = answered(contradictions([dict(row) for row in table], list(statements)))
        expect(isinstance(came, list | tuple), "a list of statements", came)
        right = [statements[place] for place in places]
        whole = all(isinstance(each, list | tuple) for each in came)
        expect(whole, "a list of statements", came, "Return them as they came.")
        case = f"the contradictions in {statements}"
        expect([tuple(each) for each in came] == right, case, came, hint)
    expect(isinstance(gpus, Mapping), "a dictionary from framework to GPUs", gpus)
    for framework, (right, hint) in GPUS.items():
        said = answered(gpus.get(framework))
        if isinstance(said, str):
            said = said.strip().lower()
            hint = hint if said == "unknown" else "A number, no text."
        expect(said == right, f"the GPUs of {framework} in all", said, hint)
    return "One column, two units, and a number that nobody can read any more."


def exercise_50_3(times_as_fast: Callable[..., Any]) -> str:
    """Check the speed-up of a row under each unit that its numbers may have.

    Args:
        times_as_fast: called with a row that has `gpus_1` and `gpus_8` and with a unit, "img/s" or
            "steps/s" (each GPU keeps its batch); returns how many times as many images per second
            8 GPUs compute.

    Returns:
        str: what it means.
    """
    expect_function(times_as_fast)
    rows = [(168.334, 843.348), (4.865, 4.227), (29.901, 58.175), (10.0, 80.0)]
    for one, eight in rows:
        for unit, batches in (("img/s", 1), ("steps/s", 8)):
            came = answered(times_as_fast({"gpus_1": one, "gpus_8": eight}, unit))
            right = batches * eight / one
            hint = "The images per second of 8 GPUs, divided by those of one."
            if unit == "steps/s" and near(came, eight / one):
                hint = "A step on 8 GPUs holds eight batches."
            elif near(came, right / 8):
                hint = "That is the efficiency, the share of 8. How many times as fast is it?"
            elif near(came, 1 / right):
                hint = "Upside down: a speed-up above 1 means that 8 GPUs do more."
            expect_close(came, right, f"the ratio of {eight} to {one} {unit}", hint, 1e-6)
    return (
        "Under the printed unit eight GPUs would train the Transformer more slowly than one; in "
        "steps/s they are 7.0 (Paddle) and 3.9 (TensorFlow) times as fast. Ask for the unit."
    )


def exercise_50_4(choice: Mapping[str, str]) -> str:
    """Check which tool fits which need.

    Args:
        choice: for each need a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(choice, _NEEDS)
    return "Nobody has asked which is the fastest: a need decides, and then a measurement."


def exercise_50_5(gradient: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks the gradient of sentences that lie on different ranks.

    Args:
        gradient: called with the communicator, this rank's sentences, the weights and a function
            (sentences, weights) -> gradients summed over them; returns the mean over all
            sentences of all ranks, a dictionary of arrays.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(gradient)
    random = np.random.default_rng(50)
    net = {"words": random.normal(size=(6, 3)), "bias": random.normal(size=3)}
    # rank r has r + 1 sentences, so a mean of the ranks' means is not the mean
    parts = [
        [(int(random.integers(6)), int(random.integers(6))) for _ in range(rank + 1)]
        for rank in range(cluster.ranks)
    ]
    came = results(cluster, gradient, [(trees, net, _pairs_gradient) for trees in parts])
    sums = [_pairs_gradient(trees, net) for trees in parts]
    count = sum(map(len, parts))
    for rank, each in enumerate(came):
        named = isinstance(each, Mapping) and set(each) == set(net)
        expect(named, f"a dictionary with {', '.join(net)}", each)
        for name in net:
            total = sum(one[name] for one in sums)
            means = [one[name] / len(trees) for one, trees in zip(sums, parts, strict=True)]
            hint = "Add the sums of all ranks, then divide by the sentences of all ranks."
            if cluster.ranks > 1 and _alike(each[name], total):
                hint = "That is the sum: divide it by the number of all sentences."
            elif cluster.ranks > 1 and _alike(each[name], sum(means) / len(parts)):
                hint = "The mean of the ranks' means: but the ranks have unequal numbers."
            elif cluster.ranks > 1 and _alike(each[name], sums[rank][name] / len(parts[rank])):
                hint = "That is this rank's own mean: nothing was exchanged."
            elif cluster.ranks > 1 and _alike(each[name], total / cluster.ranks):
                hint = "Divided by the ranks; divide by the sentences."
            case = f"the mean gradient of `{name}` on rank {rank}"
            expect_close(each[name], total / count, case, hint, 1e-9)
    return (
        f"{count} sentences of other lengths and numbers on {cluster.ranks} ranks, one gradient: "
        "an allreduce asks for equal shapes of the weights, never of the data."
    )


def _key(tree: Any, way: str) -> Any:
    if way == "any list":
        return "one"
    if way == "lists":
        return _words(tree)
    if isinstance(tree, tuple):
        return tuple(_key(half, way) for half in tree)
    return tree if way == "numbers" else "word"


def _words(tree: Any) -> int:
    return sum(map(_words, tree)) if isinstance(tree, tuple) else 1


class _PairsGradient:
    """A gradient that can travel to the ranks: sum over pairs of words of (left - 2 right)."""

    def __call__(
        self, trees: Sequence[tuple[int, int]], net: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        found = {name: np.zeros_like(array) for name, array in net.items()}
        for left, right in trees:
            found["words"][left] += net["words"][right]
            found["words"][right] -= 2 * net["words"][left]
            found["bias"] += net["bias"] * (1 + left)
        return found


_pairs_gradient = _PairsGradient()


def _alike(came: Any, value: np.ndarray) -> bool:
    return np.shape(came) == np.shape(value) and bool(np.allclose(came, value))
