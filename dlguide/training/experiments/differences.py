"""Compare results over seeds: paired differences, tables, and the batch that serves best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlguide.errors import require, require_known
from dlguide.training.experiments.config import FACTORS
from dlguide.training.experiments.running import ExperimentResult, require_fraction

CONFIDENCE = 0.95
EFFICIENT = 0.9  # fraction of the highest throughput below which the hardware waits for work
_ROUNDING = 1e-12  # standard errors below it are 0, computed in floating point


# --- two recipes ---


@dataclass(frozen=True)
class PairedDifference:
    """Difference in accuracy of two recipes, seed by seed.

    first, second (names); values (first - second of each seed with which neither diverged,
    fractions); diverged (seeds with which the first and the second one diverged, count).
    """

    first: str
    second: str
    values: tuple[float, ...]
    diverged: tuple[int, int] = (0, 0)

    @property
    def pairs(self) -> int:
        """Seeds with which neither diverged (count)."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean difference; None without a pair."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; None for fewer than 2 pairs."""
        return standard_error(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean; None for fewer than 2 pairs."""
        return confidence_interval(self.values)

    @property
    def clear(self) -> bool:
        """Whether chance explains the difference in less than 5 % of comparisons (`is_clear`)."""
        return is_clear(self.values)

    def __str__(self) -> str:
        return " ".join(filter(None, [self._mean_in_words(), self._diverged_in_words()]))

    def _mean_in_words(self) -> str:
        if self.mean is None:
            return f"{self.first} and {self.second} share no seed with which neither diverged."
        side = "above" if self.mean > 0 else "below"
        words = f"{self.first} is {100 * abs(self.mean):.2f} points {side} {self.second}"
        if self.standard_error is None:
            return f"{words} with one seed, which shows nothing about chance."
        words += f" (standard error {100 * self.standard_error:.2f}, {self.pairs} pairs of seeds)"
        if self.clear:
            return f"{words}: clear, more than {t_factor(self.pairs):.1f} standard errors."
        return f"{words}: not distinguishable from chance."

    def _diverged_in_words(self) -> str:
        lost = [
            f"{name} diverged with {count} seed{'s' * (count > 1)}"
            for name, count in zip((self.first, self.second), self.diverged, strict=True)
            if count
        ]
        return f"But {' and '.join(lost)}, left out here." if lost else ""


def compare(
    first: Sequence[ExperimentResult], second: Sequence[ExperimentResult]
) -> PairedDifference:
    """Compare the accuracy of two recipes over the seeds that both were trained with.

    The same seed affects both recipes alike, so the differences of pairs with equal seed vary
    less than the accuracies. A pair of which one diverged has no difference and is counted.

    Args:
        first: results of one name.
        second: results of another name.

    Returns:
        PairedDifference: prints as a sentence.

    Raises:
        ValueError: if one of them holds several recipes, or they share no seed.
    """
    ones = {one.config.seed: one for one in require_one_recipe(first)}
    others = {one.config.seed: one for one in require_one_recipe(second)}
    both = [seed for seed in ones if seed in others]
    then = "Train both with the same seeds."
    require(bool(both), "second", f"share a seed with {sorted(ones)}", sorted(others), then)
    values = tuple(
        ones[seed].accuracy - others[seed].accuracy
        for seed in both
        if not ones[seed].diverged and not others[seed].diverged
    )
    lost = tuple(sum(each[seed].diverged for seed in both) for each in (ones, others))
    return PairedDifference(first[0].config.name, second[0].config.name, values, lost)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for fewer than 2 values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None


def t_factor(count: int) -> float:
    """Half of the 95 % confidence interval of a mean, in standard errors.

    The two-sided quantile of Student's t for count - 1 degrees of freedom: 1.96 for many values,
    and larger for few, whose standard error is too small by chance more often.

    >>> [round(t_factor(count), 2) for count in (2, 3, 5, 100)]
    [12.71, 4.3, 2.78, 1.98]
    """
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) if count > 1 else math.inf


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of some values, by Student's t.

    Args:
        values: one for each seed, for example paired differences.

    Returns:
        tuple: lower and upper end; None for fewer than 2 values.
    """
    error = standard_error(values)
    if error is None:
        return None
    mean, half = float(np.mean(values)), t_factor(len(values)) * error
    return mean - half, mean + half


def is_clear(values: Sequence[float]) -> bool:
    """Return whether 0 lies outside the 95 % confidence interval of the mean of some differences.

    Never for one value, nor for two equal ones, which a finite test set may give by chance.

    >>> is_clear([0.03, 0.04, 0.02]), is_clear([0.03, 0.06, 0.00])
    (True, False)
    """
    interval = confidence_interval(values)
    if interval is None or (len(values) < 3 and standard_error(values) < _ROUNDING):
        return False
    return interval[0] > 0 or interval[1] < 0


def require_one_recipe(results: Sequence[ExperimentResult]) -> list[ExperimentResult]:
    """Require results that differ in their seed only."""
    results = list(results)
    require(bool(results), "results", "hold at least one ExperimentResult", results)
    first = results[0].config.identity()
    for one in results:
        other = one.config.identity()
        odd = [name for name in first if name != "seed" and first[name] != other[name]]
        must = f"differ in their seed only under the name {results[0].config.name!r}"
        require(not odd, "results", must, f"other values of {', '.join(odd)}")
    seeds = [one.config.seed for one in results]
    require(len(set(seeds)) == len(seeds), "results", "have each seed once", seeds)
    return results


# --- tables ---


@dataclass(frozen=True)
class ExperimentRow:
    """Results of one recipe over its seeds.

    name; seeds, diverged (count); accuracy (mean on the test set after the last epoch, of those
    that did not diverge; None if all did), standard_error (of this mean; None for fewer than 2),
    deviation (standard deviation over seeds), lowest, highest (of any seed); images_per_s
    (median, all ranks); reached (seeds that reached the accuracy asked for and did not lose it,
    count), seconds (of training until then; median over all seeds, None if half or more never
    did).
    """

    name: str
    seeds: int
    diverged: int
    accuracy: float | None
    standard_error: float | None
    deviation: float | None
    lowest: float | None
    highest: float | None
    images_per_s: float | None
    reached: int
    seconds: float | None


@dataclass(frozen=True)
class ExperimentTable:
    """Rows of an experiment, and the accuracy whose time they give, or None.

    Prints as text; `table["baseline"]` and `table[0]` are rows.
    """

    rows: tuple[ExperimentRow, ...]
    target: float | None = None

    def __iter__(self) -> Iterator[ExperimentRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> ExperimentRow:
        if isinstance(key, str):
            names = [row.name for row in self.rows]
            key = names.index(require_known(key, names, "name"))
        return self.rows[key]

    def __str__(self) -> str:
        head = ["", "seeds", "test accuracy (%)", "lowest to highest", "images/s"]
        if self.target is not None:
            head.append(f"s until {100 * self.target:g} % held")
        cells = [head, *(_cells(row, self.target is not None) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            padded = [line[0].ljust(widths[0])]
            padded += [cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True)]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)


def table(
    results: Sequence[ExperimentResult],
    by: str | None = None,
    accuracy: float | None = None,
) -> ExperimentTable:
    """Tabulate results, one row for trainings that differ in their seed only.

    Args:
        results: of `run`.
        by: a field: only the results that differ from the first one in this field alone, named
            by its value; None for all results by their names.
        accuracy: test accuracy whose time is tabulated; None for none.

    Returns:
        ExperimentTable: rows in the order of their first results.

    Raises:
        ValueError: if results of one row differ in more than their seed.
    """
    if accuracy is not None:
        require_fraction(accuracy, "accuracy")
    grouped = group(results, by)
    rows = tuple(_row(name, each, accuracy) for name, each in grouped.items())
    return ExperimentTable(rows, accuracy)


def group(
    results: Sequence[ExperimentResult], by: str | None = None
) -> dict[str, list[ExperimentResult]]:
    """Group results that differ in their seed only, by name or by a field as in `table`."""
    require(bool(results), "results", "hold at least one ExperimentResult", [])
    found: dict[str, list[ExperimentResult]] = {}
    if by is None:
        for one in results:
            found.setdefault(one.config.name, []).append(one)
        return {name: require_one_recipe(each) for name, each in found.items()}
    require_known(by, FACTORS, "by")
    first, kept = results[0].config, set()
    for one in results:
        value, seed = getattr(one.config, by), one.config.seed
        # with the first one's value of this field, it must be the first one
        try:
            same = replace(one.config, **{by: getattr(first, by)}, seed=first.seed)
        except ValueError:  # its other fields do not fit that value: another recipe
            continue
        # the scaling is no part of the identity if the global batch is the base batch
        equal = same.rate_scaling == first.rate_scaling and same.identity() == first.identity()
        if equal and (value, seed) not in kept:
            kept.add((value, seed))
            found.setdefault(f"{by} {value}", []).append(one)
    return {name: require_one_recipe(each) for name, each in found.items()}


def _row(name: str, results: list[ExperimentResult], accuracy: float | None) -> ExperimentRow:
    finished = [one for one in results if not one.diverged]
    values = [one.accuracy for one in finished]
    times = [None if accuracy is None else one.time_to_accuracy(accuracy) for one in results]
    reached = [one.seconds for one in times if one is not None]
    median = float(np.median(reached + [math.inf] * (len(results) - len(reached))))
    return ExperimentRow(
        name=name,
        seeds=len(results),
        diverged=len(results) - len(finished),
        accuracy=float(np.mean(values)) if values else None,
        standard_error=standard_error(values),
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        images_per_s=float(np.median([one.images_per_s for one in finished])) if finished else None,
        reached=len(reached),
        seconds=median if math.isfinite(median) else None,
    )


def _cells(row: ExperimentRow, with_time: bool) -> list[str]:
    accuracy, between, speed = "all diverged", "", ""
    if row.accuracy is not None:
        error = "" if row.standard_error is None else f" ± {100 * row.standard_error:.2f}"
        accuracy = f"{100 * row.accuracy:.2f}{error}"
        between = f"{100 * row.lowest:.2f} to {100 * row.highest:.2f}"
        speed = f"{row.images_per_s:.0f}"
        if row.diverged:
            accuracy += f" ({row.diverged} diverged)"
    seconds = "never" if row.seconds is None else f"{row.seconds:.2f}"
    if with_time and 0 < row.reached < row.seeds:
        seconds += f" ({row.reached} of {row.seeds})"
    return [row.name, str(row.seeds), accuracy, between, speed] + [seconds] * with_time


# --- batch per worker ---


@dataclass(frozen=True)
class BatchRegions:
    """Batches per worker and the region of each, named as in Figure 10 of Nyholm's thesis.

    A: too small, the throughput is low; B: serves both; C: too large, the accuracy suffers; AC:
    neither fast nor good. batches (images per worker, increasing), rows (of each), regions (of
    each), efficient (fraction of the highest throughput that is enough).
    """

    batches: tuple[int, ...]
    rows: tuple[ExperimentRow, ...]
    regions: tuple[str, ...]
    efficient: float

    @property
    def interval(self) -> tuple[int, int] | None:
        """The smallest and the largest batch of region B; None if it is empty."""
        good = [b for b, r in zip(self.batches, self.regions, strict=True) if r == "B"]
        return (min(good), max(good)) if good else None

    def __str__(self) -> str:
        sentences = ["No batch serves both speed and accuracy."]
        if self.interval is not None:
            low, high = self.interval
            best = f"{low} to {high} images" if low < high else f"{low} images"
            sentences = [f"Region B: {best} per worker."]
        for region, why in (
            ("A", f"below {100 * self.efficient:.0f} % of the highest throughput"),
            ("C", "clearly less accurate than the best"),
            ("AC", "both"),
        ):
            own = [str(b) for b, r in zip(self.batches, self.regions, strict=True) if r == region]
            if own:
                sentences.append(f"Region {region} ({why}): {', '.join(own)}.")
        return " ".join(sentences)


def best_batch(results: Sequence[ExperimentResult], efficient: float = EFFICIENT) -> BatchRegions:
    """Find the batches per worker that are neither too small for the hardware nor too large.

    Region A ends at the smallest batch that reaches `efficient` of the highest throughput. Region
    C begins at the smallest batch from which on every batch diverges with some seed or is clearly
    less accurate than the best one that never does. With one seed no difference is clear, and
    only batches that diverge are in region C.

    Args:
        results: that differ in `batch_per_worker` and seed only; others are left out.
        efficient: fraction of the highest throughput that is enough.

    Returns:
        BatchRegions: prints as sentences.

    Raises:
        ValueError: if there are fewer than two batches.

    Source:
        Nyholm's thesis, section 3.3 and Figure 10, after Ben-Nun and Hoefler, arXiv:1802.09941.
    """
    require_fraction(efficient, "efficient")
    sizes = sorted({one.config.batch_per_worker for one in results})
    require(len(sizes) > 1, "results", "hold two batches or more", sizes)
    each, rows = group(results, by="batch_per_worker"), table(results, by="batch_per_worker")
    batches = [size for size in sizes if f"batch_per_worker {size}" in each]
    require(len(batches) > 1, "results", "differ in `batch_per_worker` alone", batches)
    names = [f"batch_per_worker {size}" for size in batches]
    speeds = [rows[name].images_per_s or 0.0 for name in names]
    enough = [speed >= efficient * max(speeds) for speed in speeds]
    finished = [name for name in names if not rows[name].diverged]
    best = max(finished, key=lambda name: rows[name].accuracy, default=None)
    worse = []
    for name in names:
        difference = compare(each[name], each[best]) if name in finished else None
        worse.append(difference is None or (difference.clear and difference.mean < 0))
    regions = []
    for index in range(len(batches)):
        slow, inaccurate = not any(enough[: index + 1]), all(worse[index:])
        regions.append("AC" if slow and inaccurate else "A" if slow else "C" if inaccurate else "B")
    chosen = tuple(rows[name] for name in names)
    return BatchRegions(tuple(batches), chosen, tuple(regions), efficient)
