"""Exercises of lesson 83: areas, luck, rates, causes, areas on ranks."""

from math import comb, nan

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

RANDOM = np.random.default_rng(83)
SCORED = [
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]),
    ((RANDOM.random(60) < 0.1).astype(int), RANDOM.normal(size=60)),
    ([0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4]),
    ([1, 0, 1, 0, 0], [-3.0, -9.0, 2.0, -5.0, 4.0]),
    ([0, 0, 1, 1, 0, 1], [0.2, 0.5, 0.5, 0.5, 0.9, 0.9]),
]
RATES = [
    ([0.05, 0.05, 0.05, 0.005], 32, 32),
    ([0.1, 0.08, 0.06, 0.04, 0.02, 0.001], 64, 256),
    ([0.02, 0.4, 0.4, 0.04, 0.004], 128, 128),
    ([0.2, 0.1, 0.09], 32, 64),
    ([0.01, 0.02, 0.04], 16, 32),
    ([0.06, 0.06, 0.001], 64, 16),
]
CAUSES = {
    "0.99 split by radiograph, 0.70 by patient": (
        "C",
        "What has the net seen before: disease or patient?",
    ),
    "97 % accuracy, 0.50 area": ("F", "How often is it right to answer that there is no hernia?"),
    "does not move": ("A", "What is the rate at the end of a schedule?"),
    "1688 times": ("E", "Two things changed at once: the number of nodes, and what else?"),
    "10 of 14": ("B", "How often does a coin fall like this?"),
    "4.7 times": ("D", "Both compute the same step. What happens between two of them?"),
}


def area(labels, scores, tie=0.5):
    apart = scores[labels == 1][:, None] - scores[labels == 0]
    return np.mean((apart > 0) + tie * (apart == 0)) if apart.size else nan


def luck(better, of):
    return sum(comb(of, k) for k in range(better, of + 1)) / 2**of


def plan(rates, before, now, take=lambda good, last: good[-1], counted=1, share=0.5):
    epoch = take([e for e, rate in enumerate(rates, 1) if rate >= share * max(rates)], len(rates))
    return epoch + counted - 1, *warmup(rates[epoch - 1], now / before)


def warmup(rate, factor):
    return min(rate, rate * factor), rate * factor


def area_on_ranks(comm, labels, scores):
    parts = comm.allgather((labels, scores))
    return area(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def parts(ranks):
    """Labels and scores of each rank; in the second case rank 0 has no finding."""
    random, cases = np.random.default_rng(5), []
    for positive in (1, 0):
        labels = [(random.random(12 + 5 * rank) < 0.4).astype(int) for rank in range(ranks)]
        for rank, each in enumerate(labels):
            each[:] = each * (positive or rank > 0)
            each[:2] = 0, positive or rank > 0
        cases.append(
            [(y, (random.normal(size=len(y)) + y + r / 2).round(1)) for r, y in enumerate(labels)]
        )
    return cases


def of_all(inputs, tie=0.5):
    return [area(*(np.concatenate(each) for each in zip(*inputs, strict=True)), tie)] * len(inputs)


def of_each(inputs):
    return [area(*each) for each in inputs]


EXERCISES = {
    "83-1": Exercise(area, [tuple(map(np.asarray, case)) for case in SCORED], {
        "A tie is a guess: it counts half.": lambda *case: area(*case, 0),
        "A tie is not won: it counts half.": lambda *case: area(*case, 1),
        "This is how often the 0 is above: the other way round.":
            lambda labels, scores: area(labels, -scores),
        "This is accuracy at one threshold. The area has no threshold.":
            lambda labels, scores: np.mean((scores > 0.5) == labels),
    }, hint="Count all pairs of a 1 and a 0: in how many has the 1 the larger score?",
        remark="It depends neither on how rare a finding is, nor on where you draw the line."),
    "83-2": Exercise(luck, [(1, 1), (2, 2), (8, 14), (10, 14), (14, 14), (0, 5)], {
        "This is exactly so many. A reader is impressed by more, too.":
            lambda k, of: comb(of, k) / 2**of,
        "At least so many: is `better` itself among those that you sum?":
            lambda k, of: luck(k + 1, of),
        "This is the probability of fewer than `better`.": lambda k, of: 1 - luck(k, of),
        "This is the share of findings, not how likely it is to occur by chance.":
            lambda k, of: k / of,
    }, hint="Each finding is a coin: math.comb(of, k) of the 2**of throws have k heads.",
        remark=f"10 or more of 14 fall to one of two equal nets with a probability of "
        f"{luck(10, 14):.3f}, and to either of them with {2 * luck(10, 14):.3f}."),
    "83-3": Exercise(plan, RATES, {
        "Not the last one: look at the rate at which it was training.":
            lambda *case: plan(*case, lambda good, last: last),
        "Count epochs from 1.": lambda *case: plan(*case, counted=0),
        "Is half of the largest still enough?": lambda *case: plan(*case, share=0.501),
        "A warmup rises: with a smaller batch it begins where it ends.":
            lambda *case: (plan(*case)[0], case[0][plan(*case)[0] - 1], plan(*case)[2]),
        "This is the schedule's first rate; take the one stored in the checkpoint.":
            lambda *case: (plan(*case)[0], case[0][0], plan(*case)[2]),
        "A larger batch takes fewer, longer steps: it is the other way round.":
            lambda rates, before, now: plan(rates, now, before),
        "The global batch has changed, so the rate changes in proportion.":
            lambda rates, before, now: plan(rates, 1, 1),
    }, hint="The latest epoch whose rate is at least half of the largest; the rate at which that "
        "checkpoint was training; in proportion to the global batch (linear rule, lesson 25).",
        remark="Where both batches are equal there is nothing to warm up to: the rate continues."),
    "83-4": Letters(CAUSES,
        "None of the six is a fault of the net: all lie in the comparison, or in the data."),
    "83-5": Exercise(area_on_ranks, parts, {
        "A tie counts half, here as in 83-1.": lambda inputs: of_all(inputs, 0),
        "This is the mean of the ranks' areas: pairs across ranks are missing.":
            lambda inputs: [np.mean(of_each(inputs))] * len(inputs),
        "This is the area of the rank's own radiographs.": of_each,
    }, hint="Gather labels and scores of all ranks first: `comm.allgather`.",
        remark="A mean of areas is not the area of all: pairs across ranks are missing in it.",
        ranks=(2, 3), serial=of_all),
}  # fmt: skip
