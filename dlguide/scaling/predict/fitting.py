"""Fit what slows down many workers to measured throughputs, and predict the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from dlguide.errors import require, require_count, require_positive
from dlguide.scaling.predict.sampling import Sets, drawn
from dlguide.scaling.predict.terms import CAPACITY, TERMS, shapes
from dlguide.scaling.step import Training, training

COMPUTE = "compute"
LOW, HIGH = 0.05, 0.95
APART = 0.2  # repeated measurements that differ by more contradict each other (fraction)
MOST_WORKERS = 1 << 20


@dataclass(frozen=True)
class Prediction:
    """Throughput at one number of workers, and what it is made of.

    Args:
        workers: number of workers (count).
        images_per_s: all of them together, the median of what is possible (images/s).
        low: one in twenty measurements is expected to be lower (images/s).
        high: one in twenty is expected to be higher (images/s).
        efficiency: throughput per worker over that of one worker (fraction).
        parts: mean shares of the step's time: "compute" and each of the terms that lengthen it;
            what waits for a full capacity is "capacity" (fractions, sum 1).
        saturated: how probable it is that a capacity is met (fraction). The measurements say only
            where it is not: high at large counts, always.
    """

    workers: int
    images_per_s: float
    low: float
    high: float
    efficiency: float
    parts: Mapping[str, float]
    saturated: float

    @property
    def limited_by(self) -> str:
        """The largest part of the step's time beside computing; "compute" when all are tiny."""
        name = max((each for each in self.parts if each != COMPUTE), key=self.parts.__getitem__)
        return name if self.parts[name] >= 0.01 else COMPUTE

    def training(
        self,
        samples: int,
        epochs: int = 1,
        evaluated: int = 0,
        evaluate_image_s: float = 0.0,
        sharded: bool = True,
        fixed_s: float = 0.0,
    ) -> Training:
        """Give the whole training at this throughput, its evaluations included.

        Args:
            samples: training images of an epoch (count).
            epochs: passes over them (count).
            evaluated: validation images after each epoch (count).
            evaluate_image_s: one worker's time for one of them (s).
            sharded: whether the validation set is divided among workers.
            fixed_s: what comes once: start, checkpoints (s).

        Returns:
            Training: its time, node-hours and energy; a step is one image of each worker.

        Raises:
            ValueError: when a number is out of range.
        """
        image_s = self.workers / self.images_per_s
        more = (evaluated, evaluate_image_s, sharded, fixed_s)
        return training(image_s, 1, self.workers, samples, epochs, *more)


@dataclass(frozen=True)
class Fit:
    """What a few measurements leave open about many workers.

    Args:
        points: the measurements, pairs of workers (count) and throughput (images/s).
        sets: coefficients that agree with them.
        log_speed: for each set the logarithm of one worker's throughput, (sets,).
        assumptions: what the prediction rests on beside the measurements, sentences.
    """

    points: tuple[tuple[int, float], ...]
    sets: Sets
    log_speed: np.ndarray
    assumptions: tuple[str, ...]

    @property
    def noise(self) -> float:
        """How far measurements lie from the model (standard deviation, fraction)."""
        return float(self.sets.noise.mean())

    def predict(self, workers: Iterable[int]) -> tuple[Prediction, ...]:
        """Predict throughputs.

        Args:
            workers: numbers of workers, several (counts).

        Returns:
            tuple: a Prediction for each.

        Raises:
            ValueError: when one is no count, or they are no sequence.
        """
        then = "Write `predict([1024])` for one."
        require(isinstance(workers, Iterable), "workers", "be several numbers", workers, then)
        return tuple(self._at(require_count(each, "workers")) for each in workers)

    def falls_below(self, efficiency: float) -> int | None:
        """Find from how many workers on efficiency is lower."""
        require(0 < efficiency < 1, "efficiency", "lie between 0 and 1", efficiency)
        if self._efficiency(MOST_WORKERS) >= efficiency:
            return None
        above, below = 1, MOST_WORKERS  # efficiency falls in every set, and so does the median
        while below - above > 1:
            middle = (above + below) // 2
            good = self._efficiency(middle) >= efficiency
            above, below = (middle, below) if good else (above, middle)
        return below

    def changed(self, batch: float = 1.0, exchanged_bytes: float = 1.0) -> Fit:
        """Give the fit of the same training with another batch, link or format of gradients.

        With twice the batch per worker a step computes twice as long and exchanges what it did.
        A link of twice the bandwidth, or gradients of half the bytes, halves the terms that are
        made of bytes. Waiting for stragglers stays the same share of the step, and a capacity
        stays where it is, in images per second.

        Args:
            batch: batch per worker over that of the measurements (ratio).
            exchanged_bytes: bytes of gradients over those of the measurements, divided by the
                same ratio of bandwidths: 0.5 for half precision, or a link twice as fast.

        Returns:
            Fit: without points of its own.
        """
        require_positive(batch, "batch")
        require_positive(exchanged_bytes, "exchanged_bytes")
        factors = [
            (exchanged_bytes if term.of_bytes else 1.0)
            / (1.0 if term.name == "stragglers" else batch)
            for term in TERMS
        ]
        return replace(self, points=(), sets=replace(self.sets, terms=self.sets.terms * factors))

    def _at(self, workers: int) -> Prediction:
        log_step = self.sets.log_step((workers,))[:, 0]
        logs = self.log_speed - log_step + math.log(workers)
        seen = logs + self.sets.noise * np.random.default_rng(workers).normal(size=len(logs))
        low, high = np.exp(np.quantile(seen, (LOW, HIGH)))
        step = np.exp(log_step)
        exchanges = self.sets.terms * shapes([workers])[:, 0]
        waiting = step - 1 - exchanges.sum(1)
        parts = {COMPUTE: float(np.mean(1 / step))}
        for term, lengths in zip(TERMS, exchanges.T, strict=True):
            parts[term.name] = float(np.mean(lengths / step))
        parts[CAPACITY] = float(np.mean(waiting / step))
        return Prediction(
            workers=workers,
            images_per_s=float(np.exp(np.median(logs))),
            low=float(low),
            high=float(high),
            efficiency=self._efficiency(workers),
            parts=parts,
            saturated=float(np.mean(waiting > 1e-9)),
        )

    def _efficiency(self, workers: int) -> float:
        return float(np.exp(-np.median(self.sets.log_step((workers,)))))


def fit(
    points: Mapping[int, float] | Iterable[tuple[int, float]], sets: int = 8000, seed: int = 0
) -> Fit:
    """Fit throughputs that were measured at some numbers of workers.

        throughput(p) = p speed / max(1 + sum over terms of c_k shape_k(p), p / capacity)

    Bayesian: each coefficient c_k is 0 or positive, and all that agree with the measurements count,
    not the best alone. So a prediction far away comes with an honest interval, and a straight
    line is believed no longer than it was seen. Weak scaling: the batch per worker is the same at
    all points. Leaves out what makes more workers faster than that (caches).

    Args:
        points: throughput by number of workers (images/s), or pairs of both, where a number may
            come several times.
        sets: how many sets of coefficients are drawn; more cost time and give smoother numbers.
        seed: of the draws.

    Returns:
        Fit: ask it for predictions.

    Raises:
        ValueError: when there are fewer than two different numbers of workers, a throughput is no
            positive number, or repeated measurements contradict each other.
    """
    pairs = _checked(points)
    workers = tuple(p for p, _ in pairs)
    logs = np.log([rate / p for p, rate in pairs])
    random = np.random.default_rng(seed)
    found = drawn(workers, logs, require_count(sets, "sets", 100), random)
    steps = found.log_step(workers)
    # One worker's speed, as exactly as so many measurements with that noise tell it.
    speed = (logs + steps).mean(1)
    speed += found.noise * random.normal(size=len(speed)) / math.sqrt(len(pairs))
    return Fit(pairs, found, speed, tuple(_assumptions(pairs, found)))


def _checked(points: Any) -> tuple[tuple[int, float], ...]:
    given = list(points.items() if isinstance(points, Mapping) else points)
    must = "be pairs of a number of workers and a throughput above 0"
    for pair in given:
        two = isinstance(pair, tuple | list) and len(pair) == 2
        require(two, "points", must, pair)
        whole = isinstance(pair[0], Integral) and not isinstance(pair[0], bool) and pair[0] > 0
        rate = isinstance(pair[1], Real) and 0 < pair[1] < math.inf
        require(whole and rate, "points", must, tuple(pair))
    pairs = tuple(sorted((int(p), float(rate)) for p, rate in given))
    by_workers: dict[int, list[float]] = {}
    for p, rate in pairs:
        by_workers.setdefault(p, []).append(rate)
    then = "Measure at 1, 2 and 4 workers, better still at 8."
    told = ", ".join(map(str, by_workers)) or "none"
    require(len(by_workers) > 1, "points", "have two numbers of workers at least", told, then)
    for p, rates in by_workers.items():
        agree = max(rates) <= (1 + APART) * min(rates)
        then = f"Two of them are not the same training: leave one out. ({p} workers)"
        require(agree, "points", "not contradict each other", rates, then)
    return pairs


def _assumptions(pairs: tuple[tuple[int, float], ...], found: Sets) -> Iterable[str]:
    """Say what the prediction rests on."""
    workers = [p for p, _ in pairs]
    yield "The batch per worker is the same at all numbers of workers (weak scaling)."
    yield "No capacity is met but one that the points show; the interval allows for others."
    if workers[0] > 1:
        yield f"No point has fewer than {workers[0]} workers: one worker's speed is the model's."
    per_worker = [rate / p for p, rate in pairs]
    if max(per_worker) > 1.03 * per_worker[0]:
        yield (
            "Some point is faster per worker than the smallest, which the model cannot explain: "
            "noise, a baseline that was too slow, or neighbours on a shared node."
        )
    if found.noise.mean() > 0.03:
        yield "The points scatter by more than 3 % around any smooth curve: the interval is wide."
    if len(set(workers)) < 4:
        yield f"Only {len(set(workers))} numbers of workers were measured."
