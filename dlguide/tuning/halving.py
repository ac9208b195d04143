"""Successive halving: the best of many candidates within a time limit, with any measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dlguide.errors import require, require_count, require_positive

FINAL_WEIGHT = 2.0  # the last rung decides, so it gets twice the time of the others
# Several short rounds: a disturbance affects only some of them. In an even number of rounds of
# opposite order a steady drift affects all candidates equally.
ROUNDS, FINAL_ROUNDS = (4, 2, 1), 6
NOT_REACHED = "not measured: the budget was spent"


@dataclass(frozen=True)
class CandidateResult:
    """Measurements of one candidate.

    Args:
        median: median over the medians of the last rung's rounds; 0.0 without any (images/s).
        low: first quartile of the last rung's samples (images/s).
        high: third quartile (images/s).
        rung: last rung; 0 is the first, -1 was never measured.
        rounds: measurements over all rungs (count).
        samples: samples over all rungs (count).
        seconds: time of its measurements (s).
        error: why it was dropped or never measured; "" otherwise.
    """

    candidate: Any
    median: float
    low: float
    high: float
    rung: int
    rounds: int
    samples: int
    seconds: float
    error: str = ""

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a fraction of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else 0.0


@dataclass(frozen=True)
class HalvingResult:
    """Outcome of a search.

    Args:
        rows: one per candidate, the best first; only those of one rung compare exactly.
        best: the best candidate.
        baseline: the candidate it is compared with; None for none.
        gain: best over baseline, median over the last rung's rounds; None without baseline.
        gain_low: the lowest of these rounds.
        gain_high: the highest.
        budget_s: time allowed (s).
        used_s: time used (s).
    """

    rows: tuple[CandidateResult, ...]
    best: Any
    baseline: Any
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    budget_s: float
    used_s: float

    def row(self, candidate: Any) -> CandidateResult:
        """Return the row of a candidate.

        Raises:
            ValueError: if it was not among the candidates.
        """
        found = [row for row in self.rows if row.candidate == candidate]
        require(bool(found), "candidate", "be one of those that were searched", candidate)
        return found[0]

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers for a record."""
        return asdict(self)


class _Record:
    """Samples of one candidate: one list of rounds per rung."""

    def __init__(self) -> None:
        self.rungs: list[list[list[float]]] = []
        self.seconds = 0.0
        self.error = ""

    def median(self) -> float:
        if not self.rungs:
            return 0.0
        return float(np.median([np.median(samples) for samples in self.rungs[-1]]))

    def row(self, candidate: Any) -> CandidateResult:
        rounds = [samples for rung in self.rungs for samples in rung]
        last = [sample for samples in self.rungs[-1] for sample in samples] if self.rungs else [0.0]
        low, high = (float(each) for each in np.quantile(last, (0.25, 0.75)))
        return CandidateResult(
            candidate, self.median(), low, high, len(self.rungs) - 1, len(rounds),
            sum(len(samples) for samples in rounds), self.seconds,
            self.error if rounds or self.error else NOT_REACHED,
        )  # fmt: skip


class _Search:
    """State of one search; the arguments are those of `successive_halving`."""

    def __init__(
        self,
        measure: Callable[[Any, float], Sequence[float]],
        budget_s: float,
        least_s: float,
        on_result: Callable[..., None],
        clock: Callable[[], float],
    ) -> None:
        self.measure, self.budget_s, self.least_s = measure, budget_s, least_s
        self.on_result, self.clock, self.started = on_result, clock, clock()
        self.records: dict[Any, _Record] = {}

    def used_s(self) -> float:
        return self.clock() - self.started

    def left_s(self) -> float:
        return self.budget_s - self.used_s()

    def once(self, candidate: Any, seconds: float, rung: int) -> bool:
        """Measure a candidate for one round; False when there is no time left for it."""
        nothing_yet = not any(record.rungs for record in self.records.values())
        if seconds > self.left_s() and not nothing_yet:
            return False
        record, begin = self.records[candidate], self.clock()
        try:
            samples = [float(sample) for sample in self.measure(candidate, seconds)]
            valid = bool(samples) and all(0 < sample < float("inf") for sample in samples)
            require(valid, "measure", "return positive numbers, at least one", samples)
        except Exception as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            record.error = words[0]
        else:
            while len(record.rungs) <= rung:
                record.rungs.append([])
            record.rungs[rung].append(samples)
        record.seconds += self.clock() - begin
        self.on_result(record.row(candidate), rung, self.used_s())
        return True

    def rung(self, alive: list[Any], number: int, seconds: float, rounds: int) -> bool:
        """Measure all remaining candidates in rounds, each in the opposite order of the last.

        A rung after the first that does not reach all of them counts for none, because it would
        rank those that it reached above the others. False then.
        """
        if number and seconds * len(alive) > self.left_s():
            return False
        for turn in range(rounds):
            begin = self.clock()
            for candidate in alive[:: 1 if turn % 2 == 0 else -1]:
                if not self.records[candidate].error:
                    self.once(candidate, seconds, number)
            if self.clock() - begin > self.left_s():
                break  # there is no time for another whole round
        left = [self.records[each] for each in alive if not self.records[each].error]
        whole = all(len(record.rungs) > number for record in left)
        if number and not whole:
            for record in left:
                del record.rungs[number:]
        return whole

    def of_rung(self, alive: list[Any], number: int) -> list[Any]:
        """Return the candidates that were measured in a rung without error, the best first."""
        good = [
            each
            for each in alive
            if len(self.records[each].rungs) > number and not self.records[each].error
        ]
        return sorted(good, key=lambda each: -self.records[each].median())


def successive_halving(
    measure: Callable[[Any, float], Sequence[float]],
    candidates: Iterable[Hashable],
    budget_s: float,
    baseline: Hashable | None = None,
    finalists: int = 2,
    least_s: float = 0.4,
    on_result: Callable[..., None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> HalvingResult:
    """Find the candidate with the most images/s without measuring all of them equally long.

    Successive halving: in each rung every remaining candidate is measured, then the slower half
    is dropped. All rungs get the same time, so those that remain are measured twice as long as
    before. The candidates of a rung take turns, in rounds of opposite order, so that a machine
    that becomes slower affects all of them; the finalists take six such turns if the time allows
    it. Medians decide. The baseline goes through all rungs, so that the gain comes from the same
    rounds. A candidate whose measurement raises is recorded with the error's first line and
    dropped.

    Args:
        measure: called with a candidate and the seconds it should take; returns samples
            (images/s). Any time beyond, to start ranks for instance, is taken from the budget.
        candidates: what to choose from.
        budget_s: time of the whole search (s).
        baseline: one of the candidates, to compare the best with; None for none.
        finalists: candidates in the last rung, without the baseline (count).
        least_s: shortest useful measurement (s).
        on_result: called after each measurement with the candidate's CandidateResult so far, the
            rung and the seconds used.
        clock: returns the time (s).

    Returns:
        HalvingResult: the candidates in their order, the best first.

    Raises:
        ValueError: if there is no candidate, the baseline is none of them, or a number is out of
            range.
        RuntimeError: if no candidate could be measured.

    Source:
        Jamieson and Talwalkar, arXiv:1502.07943 (successive halving).

    >>> speeds = {"slow": 90.0, "quick": 110.0, "middle": 100.0}
    >>> successive_halving(lambda name, seconds: [speeds[name]] * 3, speeds, 60.0, "middle").best
    'quick'
    """
    contenders = list(dict.fromkeys(candidates))
    require(bool(contenders), "candidates", "hold at least one", contenders)
    require(
        baseline is None or baseline in contenders, "baseline", "be a candidate or None", baseline
    )
    require_positive(budget_s, "budget_s")
    require_positive(least_s, "least_s")
    require_count(finalists, "finalists")
    search = _Search(measure, budget_s, least_s, on_result or (lambda *result: None), clock)
    search.records = {each: _Record() for each in contenders}
    always = [] if baseline is None else [baseline]
    contenders = [each for each in contenders if each not in always]
    halvings, left = 0, len(contenders)
    while left > finalists:
        halvings, left = halvings + 1, (left + 1) // 2
    for rung in range(halvings + 1):
        alive = always + contenders
        final = rung == halvings
        weights = halvings - rung + FINAL_WEIGHT
        each_s = search.left_s() * (FINAL_WEIGHT if final else 1) / weights / max(len(alive), 1)
        fitting = [count for count in ROUNDS if each_s >= count * least_s]
        rounds = FINAL_ROUNDS if final else max(fitting, default=1)
        if not search.rung(alive, rung, max(each_s / rounds, least_s), rounds):
            break
        contenders = search.of_rung(contenders, rung)[: (len(contenders) + 1) // 2]
    return _result(search, baseline)


def _result(search: _Search, baseline: Any) -> HalvingResult:
    rows = [record.row(candidate) for candidate, record in search.records.items()]
    rows.sort(key=lambda row: (bool(row.error), -row.rung, -row.median))
    if rows[0].error:
        words = "; ".join(f"{row.candidate}: {row.error}" for row in rows)
        raise RuntimeError(f"No candidate could be measured. {words}")
    best = rows[0].candidate
    gains = [None] * 3
    against = search.records.get(baseline)
    if against is not None and not against.error and against.rungs:
        mine, theirs = (search.records[each].rungs for each in (best, baseline))
        common = min(len(mine), len(theirs)) - 1
        pairs = zip(mine[common], theirs[common], strict=False)
        ratios = [float(np.median(up) / np.median(down)) for up, down in pairs]
        gains = [float(np.median(ratios)), min(ratios), max(ratios)]
    return HalvingResult(tuple(rows), best, baseline, *gains, search.budget_s, search.used_s())
