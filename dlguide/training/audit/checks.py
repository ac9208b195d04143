"""Checks of an audit: weights, rates, seeds, metrics, files and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlguide.errors import ranks_in_words
from dlguide.training.audit.record import Evidence
from dlguide.training.schedules import scaled

Ranks = Sequence[Evidence]


@dataclass(frozen=True)
class Finding:
    """One mistake: kind (one of `audit.KINDS`), ranks, what it is, its evidence and the fix.

    `doubtful` is True if it does harm only sometimes.
    """

    kind: str
    ranks: tuple[int, ...]
    what: str
    evidence: str
    fix: str
    doubtful: bool = False

    def __str__(self) -> str:
        head = "Perhaps" if self.doubtful else "Mistake"
        return (
            f"{head} ({self.kind}, {ranks_in_words(self.ranks)}): {self.what}\n"
            f"    Evidence: {self.evidence}\n    Fix: {self.fix}"
        )


def groups(everyone: Ranks, value: Callable[[Evidence], Any]) -> dict[Any, tuple[int, ...]]:
    """Sort ranks by a value, the most common one first."""
    found: dict[Any, list[int]] = {}
    for one in everyone:
        found.setdefault(value(one), []).append(one.rank)
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    return {key: tuple(ranks) for key, ranks in order}


# Kinds whose step does not grow with the gradient: their rule is the square root of the ranks.
ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad", "adadelta", "lamb")
# Rates are stored in single precision by Keras.
CLOSE = 1e-4
# Reported throughput counts as that with the first step when it is this near to it.
NEAR, APART = 0.01, 0.05


def _others(parties: dict[Any, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(rank for ranks in list(parties.values())[1:] for rank in ranks))


def _parties(parties: dict[Any, tuple[int, ...]], cut: int | None = None) -> str:
    return "; ".join(f"{ranks_in_words(ranks)}: {str(key)[:cut]}" for key, ranks in parties.items())


def weights(everyone: Ranks) -> list[Finding]:
    """Find a missing broadcast, or weights that come apart later."""
    first = groups(everyone, lambda one: one.first_weights)
    if len(first) > 1:
        return [
            Finding(
                "no broadcast",
                _others(first),
                "the ranks start from different weights, and stay different.",
                f"digests of the first weights: {_parties(first, 12)}.",
                "broadcast weights and optimizer state from rank 0 before the first step.",
            )
        ]
    last = groups(everyone, lambda one: one.last_weights)
    if len(last) == 1:
        return []
    return [
        Finding(
            "weights differ",
            _others(last),
            "the ranks end with different weights: gradients are not, or not all, exchanged.",
            f"digests of the last weights: {_parties(last, 12)}.",
            "average every gradient over the ranks before it is applied "
            "(hvd.DistributedOptimizer), and change no weight aside.",
        )
    ]


def statistics(everyone: Ranks) -> list[Finding]:
    """Find batch normalisation that knows only its own rank's data."""
    found = groups(everyone, lambda one: one.statistics)
    if len(found) == 1:
        return []
    return [
        Finding(
            "batch normalisation",
            _others(found),
            "the moving means and variances of batch normalisation differ between ranks.",
            f"digests: {_parties(found, 12)}.",
            "average them over the ranks before evaluation and before a checkpoint.",
        )
    ]


def rate(everyone: Ranks) -> list[Finding]:
    """Find a learning rate that does not follow the ranks as its optimizer wants it to."""
    used = groups(everyone, lambda one: one.learning_rate)
    if len(used) > 1:
        return [
            Finding(
                "learning rate",
                _others(used),
                "the ranks use different learning rates.",
                f"rates: {_parties(used)}.",
                "compute the rate on all ranks from the same numbers.",
            )
        ]
    one, ranks = everyone[0], len(everyone)
    base, value = one.rate_of_one_rank, one.learning_rate
    if base is None or value is None:
        return []
    rule = one.rate_rule or ("sqrt" if one.optimizer in ADAPTIVE else "linear")
    meant = scaled(base, ranks, 1, rule)  # the rule is stated, so the optimizer is not
    if _close(value, meant):
        return []
    factor = meant / base
    if _close(value, base):
        what = "the learning rate is not scaled with the ranks."
    elif rule == "sqrt" and _close(value, base * ranks):
        what = (
            f"the rate of {one.optimizer or 'the optimizer'} is multiplied by the number of "
            "ranks, which is the rule of SGD."
        )
    elif _close(value, meant * factor):
        what = "the learning rate is scaled twice."
    else:
        what = "the learning rate is not the one that its rule gives."
    return [
        Finding(
            "learning rate",
            tuple(each.rank for each in everyone),
            what,
            f"rate {value:.6g} in use, {meant:.6g} by the rule "
            f'("{rule}": {base:.6g} on one rank times {factor:.4g} on {ranks}).',
            f"use the rate {meant:.6g}, or name the rule you mean as `rate_rule`.",
        )
    ]


def seeds(everyone: Ranks) -> list[Finding]:
    """Find seeds that are equal where they should differ, or differ where they should agree."""
    if len(everyone) == 1:
        return []
    found = []
    for name in dict.fromkeys(seed.name for one in everyone for seed in one.seeds):
        known = [(one, seed) for one in everyone for seed in one.seeds if seed.name == name]
        differs = any(seed.differs for _one, seed in known)
        values: dict[Any, tuple[int, ...]] = {}
        for one, seed in known:
            values[seed.value] = (*values.get(seed.value, ()), one.rank)
        alike = [ranks for ranks in values.values() if len(ranks) > 1]
        if differs and alike:
            what = f"the seed of {name} is equal on ranks where it should differ."
            fix = "add the rank to the seed, so that each rank draws numbers of its own."
            on = tuple(sorted(rank for ranks in alike for rank in ranks))
        elif not differs and len(values) > 1:
            what = f"the seed of {name} differs between ranks where it should agree."
            fix = "use one seed on all ranks, and cut into shards after that."
            on = tuple(sorted(rank for ranks in values.values() for rank in ranks))
        else:
            continue
        found.append(Finding("seeds", on, what, f"seeds: {_parties(values)}.", fix))
    return found


def metrics(everyone: Ranks) -> list[Finding]:
    """Find metrics that each rank reports of its own samples only."""
    wrong, on = [], set()
    for name in dict.fromkeys(metric.name for one in everyone for metric in one.metrics):
        known = [(one.rank, m) for one in everyone for m in one.metrics if m.name == name]
        values = {repr(metric.value) for _rank, metric in known}
        apart = len(values) > 1 or any(m.averaged is False for _rank, m in known)
        if len(known) > 1 and apart:
            told = ", ".join(f"{metric.value:.6g} on rank {rank}" for rank, metric in known)
            samples = sorted({metric.samples for _rank, metric in known if metric.samples})
            of = f" (of {' or '.join(map(str, samples))} samples each)" if samples else ""
            wrong.append(f"{name}{of}: {told}")
            on |= {rank for rank, _metric in known}
    if not wrong:
        return []
    return [
        Finding(
            "metrics",
            tuple(sorted(on)),
            "metrics are of one rank's samples, not of all.",
            f"{'; '.join(wrong)}.",
            "sum counts and losses over the ranks and divide by all samples "
            "(hvd.callbacks.MetricAverageCallback where ranks have equally many).",
        )
    ]


def checkpoints(everyone: Ranks) -> list[Finding]:
    """Find checkpoints that several ranks write."""
    writers = [one for one in everyone if one.checkpoints]
    if len(writers) < 2:
        return []
    files = {path for one in writers for path in one.checkpoints}
    shared = [p for p in sorted(files) if sum(p in one.checkpoints for one in writers) > 1]
    count = ", ".join(f"{len(one.checkpoints)} by rank {one.rank}" for one in writers)
    same = f"; {len(shared)} of them by several at once, such as {shared[0]}" if shared else ""
    return [
        Finding(
            "checkpoints",
            tuple(one.rank for one in writers),
            "several ranks write checkpoints.",
            f"files written: {count}{same}.",
            "write on rank 0 only; the others have the same weights.",
        )
    ]


def first_step(everyone: Ranks) -> list[Finding]:
    """Find a throughput whose mean holds the slow first step."""
    for one in everyone:
        if one.images_per_s is None or len(one.step_s) < 3:
            continue
        whole, first, count = float(np.sum(one.step_s)), one.step_s[0], len(one.step_s)
        # A mean over all steps is images a step * count / whole; images a step must be known.
        images = sum(sum(epoch) for each in everyone for epoch in each.batches)
        mean = images / whole
        without = mean * (1 - 1 / count) * whole / (whole - first)
        if abs(one.images_per_s - mean) <= NEAR * mean and without > mean * (1 + APART):
            return [
                Finding(
                    "first step",
                    (one.rank,),
                    "the throughput is a mean that holds the slow first step.",
                    f"{one.images_per_s:.6g} images/s reported, {without:.6g} without the first "
                    f"step of {first:.3g} s (of {whole:.3g} s in all).",
                    "leave the first steps out, or compare medians of the steps.",
                )
            ]
    return []


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= CLOSE * abs(right)


# At a quarter of the samples the noise of a mean is twice as large: sqrt(1 / SMALL).
SMALL = 0.25


def shards(everyone: Ranks) -> list[Finding]:
    """Find samples that several ranks see in one epoch, and samples that none ever sees.

    A training that leaves out each epoch's last, partial step misses fewer samples than one
    global batch, others in each epoch: that is no mistake.
    """
    epochs = min(len(one.seen) for one in everyone)
    if not epochs or not any(one.seen[0] for one in everyone):
        return []
    ranks = tuple(one.rank for one in everyone)
    orders = groups(everyone, lambda one: one.seen)
    if len(everyone) > 1 and len(orders) == 1:
        count = len(everyone[0].seen[0])
        return [
            Finding(
                "same order",
                ranks,
                "all ranks see the same samples in the same order: together they do the work "
                "of one.",
                f"{count} samples an epoch, equal on all {len(everyone)} ranks at every place.",
                "give each rank a shard of its own (dataset[rank::ranks] after one shuffle).",
            )
        ]
    spare = _spare(everyone)
    counts = [Counter(i for one in everyone for i in one.seen[epoch]) for epoch in range(epochs)]
    return _overlap(everyone, counts, spare) + _missed(everyone, counts, spare)


def _spare(everyone: Ranks) -> int:
    """Count the samples of the data set whose bytes another one has already."""
    one = everyone[0]
    return one.samples - one.distinct if one.samples and one.distinct else 0


def _overlap(everyone: Ranks, counts: Sequence[Counter], spare: int) -> list[Finding]:
    worst = max(counts, key=lambda count: count.total() - len(count))
    again = worst.total() - len(worst) - spare
    if again <= 0:
        return []
    epoch = counts.index(worst)
    sets = {one.rank: set(one.seen[epoch]) for one in everyone}
    on = [
        rank
        for rank, own in sets.items()
        if any(own & other for r, other in sets.items() if r != rank)
    ]
    alone = len(on) < 2
    on = tuple(on) if not alone else tuple(one.rank for one in everyone)
    return [
        Finding(
            "overlap",
            on,
            "samples come again in one epoch" + ("." if alone else ", on several ranks."),
            f"epoch {epoch}: {worst.total()} samples taken, {len(worst)} different ones, "
            f"{again} taken again.",
            "shuffle with one seed on all ranks, then cut into shards that do not overlap.",
        )
    ]


def _missed(everyone: Ranks, counts: Sequence[Counter], spare: int) -> list[Finding]:
    one = everyone[0]
    if one.samples is None or one.distinct is None:
        return []
    ever = set().union(*counts)
    missed = one.distinct - len(ever)
    if missed <= 0 or _leaves_out_the_rest(everyone, counts, spare):
        return []
    return [
        Finding(
            "missed",
            tuple(each.rank for each in everyone),
            "samples of the data set are never seen by any rank.",
            f"{missed} of {one.distinct} different samples missed in {len(counts)} "
            f"epoch{'s' * (len(counts) != 1)}.",
            "let the shards cover the data set; where the last step is left out, shuffle anew "
            "in each epoch.",
        )
    ]


def _leaves_out_the_rest(everyone: Ranks, counts: Sequence[Counter], spare: int) -> bool:
    sizes = {size for one in everyone for epoch in one.batches for size in epoch}
    steps = {len(epoch) for one in everyone for epoch in one.batches}
    if len(sizes) != 1 or len(steps) != 1:
        return False
    fewer = sizes.pop() * len(everyone)
    rest = all(everyone[0].samples - count.total() < fewer for count in counts)
    once = all(count.total() - len(count) <= spare for count in counts)
    anew = len(counts) == 1 or len({frozenset(count) for count in counts}) > 1
    return rest and once and anew


def steps(everyone: Ranks) -> list[Finding]:
    """Find ranks that make fewer steps than others, which then wait indefinitely."""
    found = groups(everyone, lambda one: one.steps)
    if len(found) == 1:
        return []
    told = "; ".join(
        f"{ranks_in_words(ranks)}: {', '.join(map(str, key))}" for key, ranks in found.items()
    )
    least = min(sum(key) for key in found)
    on = tuple(sorted(rank for key, ranks in found.items() if sum(key) == least for rank in ranks))
    return [
        Finding(
            "steps",
            on,
            "the ranks make unequal numbers of steps; the others wait in the next exchange.",
            f"steps of each epoch: {told}.",
            "give all ranks equally many batches: leave out the rest, or let a rank without "
            "samples take part with a gradient of 0.",
        )
    ]


def last_batch(everyone: Ranks) -> list[Finding]:
    """Find a last step of an epoch whose batch is small against the others, at the full rate.

    A rate of r for B samples is r b / B for b samples by the linear rule: the last step is B / b
    times too large, and its gradient sqrt(B / b) times as noisy.

    Args:
        everyone: the evidence of all ranks.

    Returns:
        list: at most one finding, a doubtful one.

    Source:
        A training on 24 GPUs whose last batch had 6 of 128 images a GPU generalised badly, one
        with 5 but a smaller rate did not: a hypothesis, not a law.
    """
    if any(not one.batches for one in everyone):
        return []
    if len({tuple(map(len, one.batches)) for one in everyone}) > 1:
        return []  # `steps` speaks of that
    for epoch, _batches in enumerate(everyone[0].batches):
        sizes = [sum(step) for step in zip(*(one.batches[epoch] for one in everyone), strict=True)]
        if len(sizes) > 1 and sizes[-1] <= SMALL * max(sizes[:-1]):
            full, last = max(sizes[:-1]), sizes[-1]
            return [
                Finding(
                    "last batch",
                    tuple(one.rank for one in everyone),
                    "the last step of an epoch has few samples, at the full learning rate.",
                    f"epoch {epoch}: {last} samples over all ranks in the last step, {full} in "
                    f"the others: the step is {full / max(last, 1):.3g} times too large for the "
                    "linear rule.",
                    "leave the rest out and shuffle anew each epoch, or scale that step's "
                    "gradient by its samples.",
                    doubtful=True,
                )
            ]
    return []


def collectives(everyone: Ranks) -> list[Finding]:
    """Find the first call at which ranks call different collectives."""
    longest = max(len(one.calls) for one in everyone)
    for place in range(longest):
        found = groups(everyone, lambda one, at=place: _call(one, at))
        if len(found) == 1:
            continue
        if "nothing" in found and len(found) == 2 and steps(everyone):
            return []
        most = next(iter(found))
        others = tuple(
            sorted(rank for key, ranks in found.items() if key != most for rank in ranks)
        )
        told = "; ".join(f"{ranks_in_words(ranks)}: {key}" for key, ranks in found.items())
        return [
            Finding(
                "collectives",
                others,
                "the ranks call different collectives, which hang or mix up numbers.",
                f"call {place + 1}: {told}.",
                "call the same collectives in the same order, with equal shapes and dtypes, on "
                "all ranks.",
            )
        ]
    return []


def _call(one: Evidence, place: int) -> str:
    return str(one.calls[place]) if place < len(one.calls) else "nothing"
