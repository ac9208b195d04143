"""The mistakes that `dlguide.training.audit` looks for in samples, steps and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlguide.training.evidence import Evidence
from dlguide.training.finding import Finding, Ranks, groups, listed

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
    """Find ranks that make fewer steps than others, which then wait for ever."""
    found = groups(everyone, lambda one: one.steps)
    if len(found) == 1:
        return []
    told = "; ".join(f"{listed(ranks)}: {', '.join(map(str, key))}" for key, ranks in found.items())
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
        told = "; ".join(f"{listed(ranks)}: {key}" for key, ranks in found.items())
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
