"""Checks of the exercises of notebook 23: bubbles, orders, cut tensors, pruning, two experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

# The reasons of 23-3 that are wrong.
SPEAKS_AGAINST = {
    "A": "Each rank has its own part of `batch`: look at your function's shape.",
    "B": "Only the gradients could hide there, and they come later. Is there a message to hide?",
    "D": "Which names do the weights have? Is one of them cut?",
}


def exercise_23_1(microbatches: Callable[..., Any]) -> str:
    """Check how many microbatches keep the bubble small.

    Args:
        microbatches: called with the number of stages and the largest share of the step that may
            be bubble, returns the smallest number of microbatches.

    Returns:
        str: what it means.
    """
    expect_function(microbatches)
    for stages, share in ((2, 0.3), (2, 1 / 9), (4, 0.1), (8, 0.25), (1, 0.01), (64, 0.05)):
        came = answered(microbatches(stages, share))
        # rounding must not ask for one more where the division comes out even
        right = max(1, math.ceil((stages - 1) * (1 - share) / share - 1e-9))
        case = f"for {stages} stages and at most {share:.3g} of bubble"
        hint = "Solve (p - 1) / (m + p - 1) <= share for m, and round up."
        if stages == 1:
            hint = "One stage never waits, but it needs one microbatch."
        elif came == math.ceil((stages - 1) / share - 1e-9):
            hint = "The bubble is a share of the whole step, m + p - 1, not of m."
        elif came == right - 1:
            hint = "Rounded up: one microbatch fewer gives a larger bubble than allowed."
        expect(came == right, f"the smallest number {case}", came, hint)
    return (
        "64 stages with 5 % of bubble need 1197 microbatches: so deep a pipeline needs a large "
        "batch, and that has its own price (notebook 25)."
    )


def exercise_23_2(order: Callable[..., Any]) -> str:
    """Check an order of forwards and backwards that holds few microbatches.

    Args:
        order: called with the stage, the number of stages and that of microbatches, returns a
            list of pairs ("F" or "B", microbatch).

    Returns:
        str: what it means.
    """
    expect_function(order)
    for stages, microbatches in ((1, 3), (2, 4), (3, 2), (4, 8), (4, 5)):
        rows = [answered(order(stage, stages, microbatches)) for stage in range(stages)]
        _expect_all_cells(rows, microbatches)
        for stage, row in enumerate(rows):
            held = np.cumsum([1 if kind == "F" else -1 for kind, _ in row])
            early = "A backward stands before the forward of its microbatch."
            seen: set[int] = set()
            for kind, microbatch in row:
                ok = kind == "F" or microbatch in seen
                expect(ok, f"a possible order on stage {stage} of {stages}", row, early)
                seen.add(microbatch)
            most = min(stages - stage, microbatches)
            hint = "Let p - 1 - s go ahead, then take turns: one forward, one backward."
            text = f"at most {most} microbatches held on stage {stage} of {stages}"
            expect(held.max() <= most, text, f"{held.max()}", hint)
        took = _seconds(rows)
        case = f"{stages} stages and {microbatches} microbatches"
        hint = "Some stage waits for what another one sends too late, for ever."
        expect(took is not None, f"an order that ends, for {case}", "a deadlock", hint)
        right = 3 * (microbatches + stages - 1)
        hint = "It holds few, but waits too long: more must go ahead on the first stages."
        expect(took == right, f"{right} forward times for {case}", f"{took:.0f}", hint)
    return "The bubble of GPipe, but p - s microbatches held in place of m."


def exercise_23_3(local: Callable[..., Any], why: Any) -> str:
    """Check the shapes of tensors with named dimensions, and why data parallelism is quiet.

    Args:
        local: called with the two tensors' dimensions (name -> size), the mesh (side -> ranks)
            and the layout (dimension -> side), returns the shape of this rank's part of the
            product over all names that both have, as name -> size, and the sides of the mesh over
            which it must be summed, as a set.
        why: the letter of the reason.

    Returns:
        str: what it means.
    """
    expect_function(local)
    x, w = {"batch": 64, "input": 800}, {"input": 800, "hidden": 128}
    mesh = {"rows": 4, "columns": 2}
    layouts: list[tuple[str, Mapping[str, str]]] = [
        ("nothing cut", {}),
        ("data parallel", {"batch": "rows"}),
        ("by column", {"hidden": "columns"}),
        ("by row", {"input": "columns"}),
        ("data x by column", {"batch": "rows", "hidden": "columns"}),
        ("data x by row", {"batch": "rows", "input": "columns"}),
    ]
    for name, layout in layouts:
        came = answered(local(dict(x), dict(w), dict(mesh), dict(layout)))
        two = isinstance(came, tuple | list) and len(came) == 2
        expect(two, "two things: a shape by names and a set of sides", came)
        right = {
            dimension: size // mesh.get(layout.get(dimension, ""), 1)
            for dimension, size in (("batch", 64), ("hidden", 128))
        }
        hint = "What both tensors share is summed away; the others are divided by their side."
        expect(came[0] == right, f"the part's shape, {name}", came[0], hint)
        sides = {layout["input"]} if "input" in layout else set()
        hint = "A sum over a name that is cut is only a part of the sum on each rank."
        expect(set(came[1]) == sides, f"the sides to sum over, {name}", came[1], hint)
    expect_reason(answered(why), "C", SPEAKS_AGAINST, "why data parallelism is quiet going forward")
    return "Data, column and row parallelism are one rule: it only matters which name is cut."


def exercise_23_4(prune: Callable[..., Any]) -> str:
    """Check which weights pruning keeps, and what it saves.

    Args:
        prune: called with an array of weights and the share to remove, returns the pruned array
            and the bytes it takes when each weight left is stored with its place.

    Returns:
        str: what it means.
    """
    expect_function(prune)
    random = np.random.default_rng(23)
    for shape, share in (((40, 25), 0.9), ((40, 25), 0.2), ((7, 8), 0.5), ((10,), 0.0)):
        weights = random.normal(size=shape).astype("float32")
        before = weights.copy()
        came = answered(prune(weights, share))
        two = isinstance(came, tuple | list) and len(came) == 2
        expect(two, "two things: the pruned array and its bytes", came)
        expect(np.array_equal(weights, before), "the given weights as they were",
               "changed ones", "Work on a copy.")  # fmt: skip
        gone = round(share * weights.size)
        limit = np.sort(np.abs(weights), axis=None)
        right = np.where(np.abs(weights) > (limit[gone - 1] if gone else -1.0), weights, 0)
        pruned = np.asarray(came[0])
        zeros = int((pruned == 0).sum())
        case = f"of {weights.size} weights, {share:.0%} removed"
        expect(pruned.shape == shape, f"an array of shape {shape}", f"{pruned.shape}")
        hint = "How many is that share? The others stay as they are."
        expect(zeros == gone, f"{gone} zeros {case}", f"{zeros}", hint)
        hint = "The smallest by absolute value go: -3 is large."
        expect_close(pruned, right, f"the largest weights {case}", hint, 1e-9)
        hint = "4 bytes for a float32 and 4 for its place, for each weight left."
        expect(came[1] == 8 * (weights.size - gone), f"the bytes {case}", came[1], hint)
    return (
        "Below half removed it takes more memory than before. And training needs all gradients "
        "again, and some more epochs: that is the price."
    )


def exercise_23_5(mixture: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that every token visits its expert and comes back in its place.

    Args:
        mixture: called with the communicator, the tokens of this rank, for each the rank of its
            expert, and this rank's expert (an array of tokens -> an array of the same shape);
            returns for each token what its expert made of it, in the order of the tokens.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(mixture)
    ranks, width = cluster.ranks, 3
    random = np.random.default_rng(24)
    tokens = [random.normal(size=(4 + rank, width)) for rank in range(ranks)]
    choices = [np.arange(len(each))[::-1] % ranks for each in tokens]  # not sorted
    if ranks > 1:
        choices[0] = np.full(
            len(tokens[0]), ranks - 1
        )  # an expert that gets nothing from some rank
    inputs = [(tokens[rank], choices[rank], _Expert(rank)) for rank in range(ranks)]
    came = results(cluster, mixture, inputs)
    for rank, each in enumerate(came):
        array = np.asarray(each, float)
        shape = tokens[rank].shape
        hint = "As many tokens come back as were given, one row each."
        expect(array.shape == shape, f"an array of shape {shape} on rank {rank}",
               f"shape {array.shape}", hint)  # fmt: skip
        right = np.stack([_Expert(int(c))(t[None])[0] for c, t in zip(choices[rank], tokens[rank],
                                                                      strict=True)])  # fmt: skip
        own = _Expert(rank)(tokens[rank])
        hint = "Are the rows in the order of the tokens? What comes back is sorted by experts."
        sums = np.sort(array.sum(1)), np.sort(right.sum(1))
        if ranks > 1 and np.allclose(array, own):
            hint = "Each rank used its own expert for all its tokens: nothing was sent."
        elif np.allclose(array, tokens[rank]):
            hint = "No expert has worked on them."
        elif not np.allclose(*sums):
            hint = "Which rank's expert has which token seen? `choice` holds ranks."
        expect_close(array, right, f"each token from its expert on rank {rank}", hint, 1e-9)
    return (
        "Two alltoalls a layer, whatever the number of experts: so a net can have 137 billion "
        "weights and use a few of them for each token."
    )


class _Expert:
    """What one expert does; another function for each rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        return np.tanh(tokens * (self.rank + 1)) + 10 * self.rank


def _expect_all_cells(rows: list[Any], microbatches: int) -> None:
    wanted = sorted((kind, number) for kind in "BF" for number in range(microbatches))
    for row in rows:
        pairs = isinstance(row, list | tuple) and all(np.shape(each) == (2,) for each in row)
        expect(pairs, 'a list of pairs ("F" or "B", microbatch)', row)
        hint = "Each microbatch goes forward once and backward once."
        text = f"each of {microbatches} microbatches once each way"
        expect(sorted(tuple(each) for each in row) == wanted, text, row, hint)


def _seconds(rows: list[Any]) -> float | None:
    """Play the orders with forward 1 and backward 2; None when they wait for each other."""
    left = [list(row) for row in rows]
    ends: dict[tuple[int, str, int], float] = {}
    free = [0.0] * len(rows)
    while any(left):
        moved = False
        for stage, row in enumerate(left):
            if not row:
                continue
            kind, number = row[0]
            near = [(stage - 1, "F", number)] if kind == "F" and stage else []
            if kind == "B":
                near = [(stage, "F", number), (stage + 1, "B", number)][: len(rows) - stage]
            if all(key in ends for key in near):
                row.pop(0)
                start = max([free[stage], *(ends[key] for key in near)])
                free[stage] = ends[stage, kind, number] = start + (1 if kind == "F" else 2)
                moved = True
        if not moved:
            return None
    return max(free)
