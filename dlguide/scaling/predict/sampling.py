"""Sets of coefficients that agree with the measurements, drawn by sequential Monte Carlo.

Many sets are drawn from what is believed beforehand. The measurements are then let in little by
little: sets that disagree are dropped, the others are copied, and each copy takes a few random
steps, so that they stay different. What remains says how far the few points leave open what
happens at many workers.

Source:
    Del Moral, Doucet and Jasra, J. R. Stat. Soc. B 68 (2006), 411-436.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dlguide.scaling.predict.terms import MOST_CAPACITY, TERMS, shapes

ABSENT = 0.5  # how probable it is beforehand that a term plays no part
LIMITED = 0.4  # and that there is a capacity which some number of workers would meet
NOISES = (0.01, 0.02, 0.04)  # of a published or measured throughput (fraction)
STEPS = (1.0, 0.3, 0.1, 0.03) * 2  # widths of the random steps
USUAL = np.array([term.usual for term in TERMS])


@dataclass(frozen=True)
class Sets:
    """Many sets of coefficients."""

    terms: np.ndarray
    capacity: np.ndarray
    noise: np.ndarray

    def log_step(self, workers: tuple[int, ...]) -> np.ndarray:
        """Predict step times."""
        exchanging = 1 + self.terms @ shapes(workers)
        return np.log(np.maximum(exchanging, np.array(workers) / self.capacity[:, None]))

    def __getitem__(self, chosen: np.ndarray) -> Sets:
        return Sets(self.terms[chosen], self.capacity[chosen], self.noise[chosen])


def believed(count: int, random: np.random.Generator) -> Sets:
    """Draw sets before anything is measured."""
    terms = random.exponential(USUAL, (count, len(TERMS)))
    terms *= random.random(terms.shape) > ABSENT
    capacity = np.exp(random.uniform(0, np.log(MOST_CAPACITY), count))
    capacity[random.random(count) > LIMITED] = np.inf
    return Sets(terms, capacity, random.choice(NOISES, count))


def drawn(
    workers: tuple[int, ...], log_per_worker: np.ndarray, count: int, random: np.random.Generator
) -> Sets:
    """Draw sets that agree with measured throughputs."""

    def likelihood(sets: Sets) -> np.ndarray:
        # The speed of one worker is not known: any is as good, and the mean takes it out.
        away = log_per_worker + sets.log_step(workers)
        away -= away.mean(1, keepdims=True)
        free = len(workers) - 1
        return -0.5 * (away**2).sum(1) / sets.noise**2 - free * np.log(sets.noise)

    sets = believed(count, random)
    found, trust = likelihood(sets), 0.0
    while trust < 1:
        more = _next_trust(found, trust)
        weights = np.exp((more - trust) * (found - found.max()))
        trust = more
        places = (np.arange(count) + random.random()) / count
        chosen = np.searchsorted(np.cumsum(weights) / weights.sum(), places).clip(0, count - 1)
        sets, found = sets[chosen], found[chosen]
        for width in STEPS:
            tried, bias = _moved(sets, width, random)
            there = likelihood(tried)
            goes = np.log(random.random(count)) < trust * (there - found) + bias
            sets = Sets(
                np.where(goes[:, None], tried.terms, sets.terms),
                np.where(goes, tried.capacity, sets.capacity),
                np.where(goes, tried.noise, sets.noise),
            )
            found = np.where(goes, there, found)
    return sets


def _next_trust(found: np.ndarray, trust: float) -> float:
    """Let in as much of the measurements as leaves half of the sets worth keeping."""

    def kept(more: float) -> float:
        weights = np.exp((more - trust) * (found - found.max()))
        return weights.sum() ** 2 / (weights**2).sum()

    if kept(1.0) >= len(found) / 2:
        return 1.0
    low, high = trust, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) > len(found) / 2 else (low, middle)
    return high


def _moved(sets: Sets, width: float, random: np.random.Generator) -> tuple[Sets, np.ndarray]:
    """Change one number of each set; return the sets and the logarithm of the Hastings factor."""
    count, kinds = sets.terms.shape
    which, every = random.integers(0, kinds + 2, count), np.arange(count)
    fresh = believed(count, random)
    column = np.minimum(which, kinds - 1)
    old = sets.terms[every, column]
    # A coefficient is drawn anew, which may take its term in or out, or is stretched.
    anew = random.random(count) < 0.3
    factor = np.exp(width * random.normal(size=count))
    new = np.where(anew, fresh.terms[every, column], old * factor)
    terms = sets.terms.copy()
    terms[every, column] = np.where(which < kinds, new, old)
    stretched = (which < kinds) & ~anew & (old > 0)
    bias = np.where(stretched, (old - new) / USUAL[column] + np.log(factor), 0.0)
    moved = replace(
        sets,
        terms=terms,
        capacity=np.where(which == kinds, fresh.capacity, sets.capacity),
        noise=np.where(which == kinds + 1, fresh.noise, sets.noise),
    )
    return moved, bias
