"""The mistakes that `dlguide.training.audit` looks for in weights, rates, seeds and files."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlguide.training.finding import Finding, Ranks, groups, listed
from dlguide.training.schedules import scaled

# Kinds whose step does not grow with the gradient: their rule is the square root of the ranks.
ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad", "adadelta", "lamb")
# Rates are stored in single precision by Keras.
CLOSE = 1e-4
# Reported throughput counts as that with the first step when it is this near to it.
NEAR, APART = 0.01, 0.05


def _others(parties: dict[Any, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(rank for ranks in list(parties.values())[1:] for rank in ranks))


def _parties(parties: dict[Any, tuple[int, ...]], cut: int | None = None) -> str:
    return "; ".join(f"{listed(ranks)}: {str(key)[:cut]}" for key, ranks in parties.items())


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
            mend = "add the rank to the seed, so that each rank draws numbers of its own."
            on = tuple(sorted(rank for ranks in alike for rank in ranks))
        elif not differs and len(values) > 1:
            what = f"the seed of {name} differs between ranks where it should agree."
            mend = "use one seed on all ranks, and cut into shards after that."
            on = tuple(sorted(rank for ranks in values.values() for rank in ranks))
        else:
            continue
        found.append(Finding("seeds", on, what, f"seeds: {_parties(values)}.", mend))
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
