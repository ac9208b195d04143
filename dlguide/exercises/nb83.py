"""Checks of the exercises of notebook 83: areas, luck, rates, causes, areas on ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

CAUSES = {
    "0.99 here, 0.70 elsewhere": ("C", "Whom has the net seen before: the disease or the patient?"),
    "97 % accuracy, 0.50 area": ("F", "How often is it right to say that nobody has a hernia?"),
    "does not move": ("A", "What is the rate at the end of a schedule?"),
    "1688 times": ("E", "Two things were exchanged at once: the number of nodes, and what else?"),
    "10 of 14": ("B", "How often does a coin fall so?"),
    "4.7 times": ("D", "Both compute the same step. What happens between two of them?"),
}


def exercise_83_1(area: Callable[..., Any]) -> str:
    """Check an area under the ROC curve by its definition.

    Args:
        area: called with labels (zeros and ones) and scores, returns the area.

    Returns:
        str: what it means.
    """
    expect_function(area)
    rng = np.random.default_rng(83)
    cases = [
        ("two apart", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]),
        ("few that are positive", (rng.random(60) < 0.1).astype(int), rng.normal(size=60)),
        ("scores below 0.5", [0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4]),
        ("logits, not probabilities", [1, 0, 1, 0, 0], [-3.0, -9.0, 2.0, -5.0, 4.0]),
        ("ties", [0, 0, 1, 1, 0, 1], [0.2, 0.5, 0.5, 0.5, 0.9, 0.9]),
    ]
    for name, labels, scores in cases:
        labels, scores = np.asarray(labels), np.asarray(scores)
        came = answered(area(labels.copy(), scores.copy()))
        won, tied = _pairs(labels, scores)
        hint = "Count all pairs of a 1 and a 0: in how many has the 1 the larger score?"
        if tied and near(came, won):
            hint = "A tie is a guess: it counts half."
        elif tied and near(came, won + tied):
            hint = "A tie is not won: it counts half."
        elif near(came, 1 - won - tied / 2):
            hint = "This is how often the 0 is above: the other way round."
        elif near(came, np.mean((scores > 0.5) == labels)):
            hint = "This is accuracy at one threshold. The area knows no threshold."
        expect_close(came, won + tied / 2, f"the area of: {name}", hint, 1e-9)
    return "It does not care how rare a finding is, nor where you would draw the line."


def _pairs(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Parts of the pairs that are won, and tied."""
    apart = scores[labels == 1][:, None] - scores[labels == 0]
    return float((apart > 0).mean()), float((apart == 0).mean())


def exercise_83_2(luck: Callable[..., Any]) -> str:
    """Check how often one of two equally good nets is ahead in many findings.

    Args:
        luck: called with the findings in which it is ahead at least, and all findings (counts);
            returns the probability.

    Returns:
        str: what it means.
    """
    expect_function(luck)
    for better, of in ((1, 1), (2, 2), (8, 14), (10, 14), (14, 14), (0, 5)):
        came = answered(luck(better, of))
        exactly = math.comb(of, better) / 2**of
        value = sum(math.comb(of, k) for k in range(better, of + 1)) / 2**of
        hint = "Each finding is a coin: math.comb(of, k) of the 2**of throws have k heads."
        if value != exactly and near(came, exactly):
            hint = "This is exactly so many. A reader is impressed by more, too."
        elif near(came, 1 - value) or near(came, value - exactly):
            hint = "At least so many: is `better` itself among those that you sum?"
        elif near(came, better / of):
            hint = "This is the share of findings, not how likely it is to come about by chance."
        case = f"the probability of {better} or more of {of}"
        expect_close(came, value, case, hint, 1e-9)
    one = sum(math.comb(14, k) for k in range(10, 15)) / 2**14
    return (
        f"10 or more of 14 fall to one of two equal nets with a probability of {one:.3f}, and to "
        f"either of them with {2 * one:.3f}."
    )


def exercise_83_3(plan: Callable[..., Any]) -> str:
    """Check which checkpoint is taken, and with which rates a fine-tuning goes on.

    Args:
        plan: called with the learning rate at the end of each epoch of the pre-training, its
            global batch and that of the fine-tuning; returns the epoch of the checkpoint (from
            1), the first rate and the rate after the warmup.

    Returns:
        str: what it means.
    """
    expect_function(plan)
    for rates, before, now in (
        ([0.05, 0.05, 0.05, 0.005], 32, 32),
        ([0.1, 0.08, 0.06, 0.04, 0.02, 0.001], 64, 256),
        ([0.02, 0.4, 0.4, 0.04, 0.004], 128, 128),
        ([0.2, 0.1, 0.09], 32, 64),
        ([0.01, 0.02, 0.04], 16, 32),
        ([0.06, 0.06, 0.001], 64, 16),
    ):
        came = answered(plan(list(rates), before, now))
        case = f"rates {rates}, a batch of {before}, then {now}"
        expect(np.shape(came) == (3,), f"three numbers for {case}", came)
        epoch = max(at for at, rate in enumerate(rates, 1) if rate >= max(rates) / 2)
        hint = "The latest epoch whose rate is at least half of the largest."
        if came[0] == len(rates) != epoch:
            hint = "Not the last one: look at the rate that it was training at."
        elif came[0] == epoch - 1:
            hint = "Count epochs from 1. And is half of the largest still enough?"
        expect(came[0] == epoch, f"the epoch for {case}", came[0], hint)
        stored = rates[epoch - 1]
        first = min(stored, stored * now / before)
        hint = "Start with the rate at which that checkpoint was training."
        if now < before:
            hint = "A warmup rises: with a smaller batch it begins where it ends."
        elif near(came[1], rates[0]):
            hint = "This is the schedule's first rate; take the one stored in the checkpoint."
        expect_close(came[1], first, f"the first rate for {case}", hint, 1e-9)
        hint = "In proportion to the global batch (the linear rule, notebook 25)."
        if near(came[2], stored * before / now) and before != now:
            hint = "A larger batch takes fewer, longer steps: it is the other way round."
        elif near(came[2], stored) and before != now:
            hint = "The global batch has changed, so the rate changes in proportion."
        expect_close(came[2], stored * now / before, f"the rate after the warmup for {case}",
                     hint, 1e-9)  # fmt: skip
    return "Where both batches are equal there is nothing to warm up to: the rate just goes on."


def exercise_83_4(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which result.

    Args:
        causes: for each of the six results a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "None of the six is a fault of the net: all lie in what it was compared with, or given."


def exercise_83_5(area_on_ranks: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that the area is that of all radiographs together.

    Args:
        area_on_ranks: called with the communicator and this rank's labels and scores; returns
            the area of all ranks' radiographs.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(area_on_ranks)
    ranks, rng = cluster.ranks, np.random.default_rng(5)
    for name, often in (("equal parts", 0.4), ("rank 0 has no positive", 0.4)):
        given = []
        for rank in range(ranks):
            count = 12 + 5 * rank
            labels = (rng.random(count) < often).astype(int)
            labels[:2] = 0, 1
            if name != "equal parts" and rank == 0 and ranks > 1:
                labels[:] = 0
            given.append((labels, (rng.normal(size=count) + labels + 0.5 * rank).round(1)))
        came = results(cluster, area_on_ranks, given)
        whole = [np.concatenate([part[at] for part in given]) for at in (0, 1)]
        won, tied = _pairs(*whole)
        _expect_equal(came, won, tied, given, name)
    if ranks == 1:
        return "One rank has everything already: try it on two."
    return "A mean of areas is not the area of all: pairs across ranks are missing in it."


def _expect_equal(
    came: Sequence[Any], won: float, tied: float, given: Sequence[Any], name: str
) -> None:
    own = [
        sum(np.multiply(_pairs(*part), (1, 0.5))) if part[0].any() else math.nan for part in given
    ]
    for rank, one in enumerate(came):
        hint = "Gather labels and scores of all ranks first: `comm.allgather`."
        if near(one, won) or near(one, won + tied):
            hint = "A tie counts half, here as in 83-1."
        elif near(one, float(np.mean(own))) and len(given) > 1:
            hint = "This is the mean of the ranks' areas: pairs across ranks are missing."
        elif near(one, own[rank]) and len(given) > 1:
            hint = "This is the area of the rank's own radiographs."
        case = f"the area of all, on rank {rank} ({name})"
        expect_close(one, won + tied / 2, case, hint, 1e-9)
