"""The checks of an audit, each of the evidence of all ranks, and the report of what they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dlcourse.audit.record import Evidence, require_whole
from dlguide.errors import ranks_in_words
from dlguide.training.schedules import scaled

Ranks = Sequence[Evidence]
# Rank indices of each value.
Groups = dict[Any, tuple[int, ...]]

# Kinds whose step does not grow with the gradient: their rule is the square root of the ranks.
ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad", "adadelta", "lamb")
# Rates are stored in single precision by Keras.
CLOSE = 1e-4
# At a quarter of the samples the noise of a mean is twice as large: sqrt(1 / SMALL).
SMALL = 0.25


@dataclass(frozen=True)
class Finding:
    """One mistake; prints as three lines.

    `kind` is one of `audit.KINDS`, `ranks` are where it was found (indices), `evidence` has the
    numbers that show it; a doubtful one does harm only sometimes.
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


def examine(everyone: Sequence[Evidence]) -> tuple[Finding, ...]:
    """Return the mistakes in the evidence of all ranks; what was not recorded is not checked.

    A mistake that follows from another one is not reported too: weights that differ at the end
    after a missing broadcast, shards that overlap because all ranks see the same order.

    Raises:
        ValueError: if the evidence is not of each rank of one training once.
    """
    ordered = require_whole(everyone)
    return tuple(
        finding
        for allows, check in _CHECKS.values()
        if any(allows(one) for one in ordered)
        for finding in check(ordered)
    )


def report(everyone: Sequence[Evidence]) -> str:
    """Return the mistakes in words, three lines each, then what was checked and what not."""
    found = examine(everyone)
    seen = {name: any(map(allows, everyone)) for name, (allows, _) in _CHECKS.items()}
    lines = [str(finding) for finding in found]
    if not found:
        lines = [f"Nothing found on {len(everyone)} rank{'s' * (len(everyone) != 1)}."]
    lines.append(f"Looked at: {', '.join(n for n, yes in seen.items() if yes) or 'nothing'}.")
    if not all(seen.values()):
        unseen = ", ".join(name for name, yes in seen.items() if not yes)
        lines.append(f"Not recorded by any rank: {unseen}.")
    return "\n".join(lines)


def weights(everyone: Ranks) -> Iterator[Finding]:
    """Find a missing broadcast, or weights that differ later."""
    first = _groups(everyone, lambda one: one.first_weights)
    last = _groups(everyone, lambda one: one.last_weights)
    if len(first) > 1:
        yield Finding(
            "no broadcast",
            _minority(first),
            "the ranks start from different weights, and stay different.",
            f"digests of the initial weights: {_in_words(first, 12)}.",
            "broadcast weights and optimizer state from rank 0 before the first step.",
        )
    elif len(last) > 1:
        yield Finding(
            "weights differ",
            _minority(last),
            "the ranks end with different weights: gradients are not, or not all, exchanged.",
            f"digests of the last weights: {_in_words(last, 12)}.",
            "average every gradient over the ranks before it is applied "
            "(hvd.DistributedOptimizer), and change no weight aside.",
        )


def statistics(everyone: Ranks) -> Iterator[Finding]:
    """Find batch normalisation with the statistics of its own rank's data only."""
    found = _groups(everyone, lambda one: one.statistics)
    if len(found) > 1:
        yield Finding(
            "batch normalisation",
            _minority(found),
            "the moving means and variances of batch normalisation differ between ranks.",
            f"digests: {_in_words(found, 12)}.",
            "average them over the ranks before evaluation and before a checkpoint.",
        )


def rate(everyone: Ranks) -> Iterator[Finding]:
    """Find a learning rate that does not follow the ranks by its optimizer's rule."""
    used = _groups(everyone, lambda one: one.learning_rate)
    one, ranks = everyone[0], len(everyone)
    base, value = one.rate_of_one_rank, one.learning_rate
    if len(used) > 1:
        yield Finding(
            "learning rate",
            _minority(used),
            "the ranks use different learning rates.",
            f"rates: {_in_words(used)}.",
            "compute the rate on all ranks from the same numbers.",
        )
        return
    rule = "sqrt" if one.optimizer in ADAPTIVE else "linear"
    if base is None or value is None:
        return
    meant = scaled(base, ranks, 1, rule)
    if _close(value, meant):
        return
    if rule == "sqrt" and _close(value, base * ranks):
        what = (
            f"the rate of {one.optimizer} is multiplied by the number of ranks, which is the rule "
            "of SGD."
        )
    elif _close(value, meant * meant / base):
        what = "the learning rate is scaled twice."
    elif _close(value, base):
        what = "the learning rate is not scaled with the ranks."
    else:
        what = "the learning rate is not the one that its rule gives."
    yield Finding(
        "learning rate",
        _all(everyone),
        what,
        f"rate {value:.6g} in use, {meant:.6g} by the rule "
        f'("{rule}": {base:.6g} on one rank times {meant / base:.4g} on {ranks}).',
        f"use the rate {meant:.6g}; if you mean another rule, leave `rate_of_one_rank` out.",
    )


def seeds(everyone: Ranks) -> Iterator[Finding]:
    """Find seeds that are equal where they should differ, or differ where they should agree."""
    if len(everyone) == 1:
        return
    for name in dict.fromkeys(seed.name for one in everyone for seed in one.seeds):
        known = [(one.rank, seed) for one in everyone for seed in one.seeds if seed.name == name]
        differs = any(seed.differs for _rank, seed in known)
        values: Groups = {}
        for rank, seed in known:
            values[seed.value] = (*values.get(seed.value, ()), rank)
        equal = [ranks for ranks in values.values() if len(ranks) > 1]
        if differs and equal:
            what = f"the seed of {name} is equal on ranks where it should differ."
            fix = "add the rank to the seed, so that each rank draws its own numbers."
            on = equal
        elif not differs and len(values) > 1:
            what = f"the seed of {name} differs between ranks where it should agree."
            fix = "use one seed on all ranks, and cut into shards after that."
            on = values.values()
        else:
            continue
        yield Finding("seeds", _joined(on), what, f"seeds: {_in_words(values)}.", fix)


def metrics(everyone: Ranks) -> Iterator[Finding]:
    """Find metrics that each rank reports of its own samples only."""
    wrong, on = [], set()
    for name in dict.fromkeys(metric.name for one in everyone for metric in one.metrics):
        known = [(one.rank, m) for one in everyone for m in one.metrics if m.name == name]
        if len({repr(metric.value) for _rank, metric in known}) > 1:
            each = ", ".join(f"{metric.value:.6g} on rank {rank}" for rank, metric in known)
            samples = sorted({metric.samples for _rank, metric in known if metric.samples})
            of = f" (of {' or '.join(map(str, samples))} samples each)" if samples else ""
            wrong.append(f"{name}{of}: {each}")
            on |= {rank for rank, _metric in known}
    if wrong:
        yield Finding(
            "metrics",
            tuple(sorted(on)),
            "metrics are of one rank's samples, not of all.",
            f"{'; '.join(wrong)}.",
            "sum counts and losses over the ranks and divide by all samples "
            "(hvd.callbacks.MetricAverageCallback where ranks have equally many).",
        )


def checkpoints(everyone: Ranks) -> Iterator[Finding]:
    """Find checkpoints that several ranks write."""
    writers = [one for one in everyone if one.checkpoints]
    if len(writers) < 2:
        return
    files = {path for one in writers for path in one.checkpoints}
    shared = [p for p in sorted(files) if sum(p in one.checkpoints for one in writers) > 1]
    count = ", ".join(f"{len(one.checkpoints)} by rank {one.rank}" for one in writers)
    same = f"; {len(shared)} of them by several at once, such as {shared[0]}" if shared else ""
    yield Finding(
        "checkpoints",
        _all(writers),
        "several ranks write checkpoints.",
        f"files written: {count}{same}.",
        "write on rank 0 only; the others have the same weights.",
    )


def shards(everyone: Ranks) -> Iterator[Finding]:
    """Find samples that several ranks see in one epoch, and samples that none ever sees.

    A training that leaves out each epoch's last, partial step misses fewer samples than one
    global batch, others in each epoch: that is no mistake.
    """
    epochs = min(len(one.seen) for one in everyone)
    if not epochs or not any(one.seen[0] for one in everyone):
        return
    if len(everyone) > 1 and len(_groups(everyone, lambda one: one.seen)) == 1:
        yield Finding(
            "same order",
            _all(everyone),
            "all ranks see the same samples in the same order: together they do the work of one.",
            f"{len(everyone[0].seen[0])} samples an epoch, equal on all {len(everyone)} ranks at "
            "every place.",
            "give each rank its own shard (dataset[rank::ranks] after one shuffle).",
        )
        return
    one = everyone[0]
    # Samples of the data set whose bytes another one has already.
    twins = one.samples - one.distinct if one.samples and one.distinct else 0
    counts = [Counter(i for each in everyone for i in each.seen[epoch]) for epoch in range(epochs)]
    yield from _overlap(everyone, counts, twins)
    yield from _missed(everyone, counts, twins)


def _overlap(everyone: Ranks, counts: Sequence[Counter], twins: int) -> Iterator[Finding]:
    worst = max(counts, key=lambda count: count.total() - len(count))
    again = worst.total() - len(worst) - twins
    if again <= 0:
        return
    epoch = counts.index(worst)
    sets = {one.rank: set(one.seen[epoch]) for one in everyone}
    on = [a for a in sets if any(sets[a] & sets[b] for b in sets if a != b)]
    yield Finding(
        "overlap",
        tuple(on) or _all(everyone),
        "samples come again in one epoch" + (", on several ranks." if on else "."),
        f"epoch {epoch}: {worst.total()} samples taken, {len(worst)} different ones, "
        f"{again} taken again.",
        "shuffle with one seed on all ranks, then cut into shards that do not overlap.",
    )


def _missed(everyone: Ranks, counts: Sequence[Counter], twins: int) -> Iterator[Finding]:
    one = everyone[0]
    if one.samples is None or one.distinct is None:
        return
    missed = one.distinct - len(set().union(*counts))
    if missed > 0 and not _leaves_out_the_rest(everyone, counts, twins):
        yield Finding(
            "missed",
            _all(everyone),
            "samples of the data set are never seen by any rank.",
            f"{missed} of {one.distinct} different samples missed in {len(counts)} "
            f"epoch{'s' * (len(counts) != 1)}.",
            "let the shards cover the data set; where the last step is left out, shuffle anew "
            "in each epoch.",
        )


def _leaves_out_the_rest(everyone: Ranks, counts: Sequence[Counter], twins: int) -> bool:
    sizes = {size for one in everyone for epoch in one.batches for size in epoch}
    steps = {len(epoch) for one in everyone for epoch in one.batches}
    if len(sizes) != 1 or len(steps) != 1:
        return False
    fewer = sizes.pop() * len(everyone)
    rest = all(everyone[0].samples - count.total() < fewer for count in counts)
    once = all(count.total() - len(count) <= twins for count in counts)
    anew = len(counts) == 1 or len({frozenset(count) for count in counts}) > 1
    return rest and once and anew


def steps(everyone: Ranks) -> Iterator[Finding]:
    """Find ranks that make fewer steps than others, which then wait indefinitely."""
    found = _groups(everyone, lambda one: one.steps)
    if len(found) == 1:
        return
    each = {", ".join(map(str, key)): ranks for key, ranks in found.items()}
    least = min(map(sum, found))
    yield Finding(
        "steps",
        _joined(ranks for key, ranks in found.items() if sum(key) == least),
        "the ranks make unequal numbers of steps; the others wait in the next exchange.",
        f"steps of each epoch: {_in_words(each)}.",
        "give all ranks equally many batches: leave out the rest, or let a rank without "
        "samples take part with a gradient of 0.",
    )


def last_batch(everyone: Ranks) -> Iterator[Finding]:
    """Find a last step of an epoch whose batch is small against the others, at the full rate.

    A rate of r for B samples is r b / B for b samples by the linear rule: the last step is B / b
    times too large, and its gradient sqrt(B / b) times as noisy.

    Source:
        A training on 24 GPUs whose last batch had 6 of 128 images a GPU generalised badly, one
        with 5 but a smaller rate did not: a hypothesis, not a law.
    """
    if len({tuple(map(len, one.batches)) for one in everyone}) > 1:
        return  # `steps` reports that
    for epoch, _batches in enumerate(everyone[0].batches):
        sizes = [sum(step) for step in zip(*(one.batches[epoch] for one in everyone), strict=True)]
        if len(sizes) > 1 and sizes[-1] <= SMALL * max(sizes[:-1]):
            full, last = max(sizes[:-1]), sizes[-1]
            yield Finding(
                "last batch",
                _all(everyone),
                "the last step of an epoch has few samples, at the full learning rate.",
                f"epoch {epoch}: {last} samples over all ranks in the last step, {full} in "
                f"the others: the step is {full / max(last, 1):.3g} times too large for the "
                "linear rule.",
                "leave the rest out and shuffle anew each epoch.",
                doubtful=True,
            )
            return


def collectives(everyone: Ranks) -> Iterator[Finding]:
    """Find the first call at which ranks call different collectives."""
    longest = max(len(one.calls) for one in everyone)
    calls = [[*map(str, one.calls), *["nothing"] * (longest - len(one.calls))] for one in everyone]
    for number, call in enumerate(zip(*calls, strict=True), start=1):
        found = _groups(everyone, lambda one, call=call: call[one.rank])
        if len(found) == 1:
            continue
        if "nothing" in found and len(found) == 2 and any(steps(everyone)):
            return
        yield Finding(
            "collectives",
            _minority(found),
            "the ranks call different collectives, which hang or mix up numbers.",
            f"call {number}: {_in_words(found)}.",
            "call the same collectives in the same order, with equal shapes and dtypes, on "
            "all ranks.",
        )
        return


def _groups(everyone: Ranks, value: Callable[[Evidence], Any]) -> Groups:
    """Sort ranks by a value, the most common one first."""
    found: Groups = {}
    for one in everyone:
        found[value(one)] = (*found.get(value(one), ()), one.rank)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[1])))


def _joined(several: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(rank for ranks in several for rank in ranks))


def _minority(found: Groups) -> tuple[int, ...]:
    return _joined(list(found.values())[1:])


def _all(everyone: Ranks) -> tuple[int, ...]:
    return tuple(one.rank for one in everyone)


def _in_words(found: Groups, cut: int | None = None) -> str:
    return "; ".join(f"{ranks_in_words(ranks)}: {str(key)[:cut]}" for key, ranks in found.items())


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= CLOSE * abs(right)


# What is looked at -> whether a rank's evidence allows it, and the check.
_CHECKS: dict[str, tuple[Callable[[Evidence], object], Callable]] = {
    "weights after the broadcast and at the end": (
        lambda one: one.first_weights or one.last_weights,
        weights,
    ),
    "shards of the data": (lambda one: any(one.seen), shards),
    "steps of each rank": (lambda one: one.steps, steps),
    "size of the last batch": (lambda one: any(one.batches), last_batch),
    "learning rate": (lambda one: one.learning_rate is not None, rate),
    "seeds": (lambda one: one.seeds, seeds),
    "batch normalisation": (lambda one: one.statistics, statistics),
    "metrics": (lambda one: one.metrics, metrics),
    "checkpoints": (lambda one: one.checkpoints, checkpoints),
    "collectives": (lambda one: one.calls, collectives),
}
KINDS = (
    *("no broadcast", "weights differ", "same order", "overlap", "missed", "steps", "last batch"),
    *("learning rate", "seeds", "batch normalisation", "metrics", "checkpoints", "collectives"),
)
