"""The search finds the best of many candidates in noise, within its time, and loses no error.

Tests dlguide.tuning.search and the candidates of dlguide.machine.threads.
"""

import numpy as np
import pytest
from fake_machine import machine
from hypothesis import given
from hypothesis import strategies as st

from dlguide import tuning
from dlguide.tuning import Candidate
from dlguide.tuning.search import NOT_REACHED


class Bench:
    """A machine that is not there: speeds with noise and drift, and a clock that measures move."""

    def __init__(self, speeds, noise=0.0, seed=0, start_s=0.0, drift=0.0):
        self.speeds, self.noise, self.start_s, self.drift = speeds, noise, start_s, drift
        self.random = np.random.default_rng(seed)
        self.now_s, self.started, self.calls = 0.0, set(), []

    def clock(self):
        return self.now_s

    def measure(self, candidate, seconds):
        self.calls.append((candidate, seconds))
        if candidate not in self.started:
            self.started.add(candidate)
            self.now_s += self.start_s
        self.now_s += seconds
        speed = self.speeds[candidate]
        if isinstance(speed, Exception):
            raise speed
        count = max(int(seconds / 0.1), 1)
        slower = 1 - self.drift * self.now_s
        return list(speed * slower * (1 + self.noise * self.random.standard_normal(count)))

    def tune(self, budget_s=60.0, **options):
        return tuning.successive_halving(
            self.measure, self.speeds, budget_s, clock=self.clock, **options
        )


def row_of(result, candidate):
    (found,) = [row for row in result.rows if row.candidate == candidate]
    return found


def ladder(count, step=0.03):
    """Speeds of which each is a step faster than the one before, in a mixed order."""
    speeds = {f"c{i}": 1000.0 * (1 + step) ** i for i in range(count)}
    names = np.random.default_rng(1).permutation(list(speeds))
    return {str(name): speeds[name] for name in names}, f"c{count - 1}"


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
def test_the_best_is_found_without_noise(count):
    speeds, best = ladder(count, 0.001)
    assert Bench(speeds).tune().best == best


def test_the_best_is_found_in_noise_that_is_larger_than_the_difference():
    # a single sample is off by 10 %, neighbours differ by 3 %
    found = [Bench(ladder(8)[0], 0.1, seed).tune() for seed in range(40)]
    assert sum(each.best == "c7" for each in found) >= 36
    assert all(each.best in ("c6", "c7") for each in found)


def test_a_machine_that_becomes_slower_does_not_favour_those_that_come_first():
    speeds = {"first": 1000.0, "second": 1010.0, "third": 990.0}
    for drift in (0.002, 0.005):
        assert Bench(speeds, drift=drift).tune().best == "second"
        assert Bench(dict(reversed(speeds.items())), drift=drift).tune().best == "second"


def test_all_candidates_are_in_the_table_and_the_worse_half_is_dropped_in_each_rung():
    speeds, _ = ladder(8)
    result = Bench(speeds).tune()
    assert {row.candidate for row in result.rows} == set(speeds)
    assert [row.candidate for row in result.rows] == [f"c{i}" for i in reversed(range(8))]
    assert [row.rung for row in result.rows] == [2, 2, 1, 1, 0, 0, 0, 0]
    medians = [row.median for row in result.rows]
    assert medians == pytest.approx([speeds[row.candidate] for row in result.rows])


@pytest.mark.parametrize("start_s", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("budget_s", [5.0, 20.0, 60.0])
def test_the_budget_is_kept_up_to_one_start(budget_s, start_s):
    bench = Bench(ladder(8)[0], start_s=start_s)
    bench.tune(budget_s)
    assert bench.now_s <= budget_s + start_s


@given(st.floats(0.1, 100.0), st.integers(1, 12), st.floats(0.0, 5.0))
def test_any_budget_chooses_a_candidate_and_marks_those_not_reached(budget_s, count, start_s):
    bench = Bench(ladder(count)[0], start_s=start_s)
    result = bench.tune(budget_s)
    assert bench.now_s <= budget_s + start_s + 0.4
    assert row_of(result, result.best).rounds >= 1
    assert result.best == max(bench.started, key=bench.speeds.get)
    for row in result.rows:
        assert (row.error == NOT_REACHED) == (row.rounds == 0) == (row.rung == -1)


def test_a_rung_that_does_not_reach_everyone_counts_for_none():
    # the third measurement takes so long that the second rung ends after its first candidate
    bench = Bench({"a": 100.0, "b": 120.0, "c": 110.0, "base": 90.0})
    quick = bench.measure

    def measure(candidate, seconds):
        if [name for name, _ in bench.calls].count(candidate) == 2:
            bench.now_s += 60.0
        return quick(candidate, seconds)

    result = tuning.successive_halving(
        measure, bench.speeds, 30.0, baseline="base", clock=bench.clock
    )
    assert {row.rung for row in result.rows} == {0}
    assert result.best == "b"


def test_a_candidate_that_fails_is_recorded_with_its_error_and_not_measured_again():
    speeds = {**ladder(5)[0], "bad": RuntimeError("rank 1 ended\nand more"), "worse": ValueError()}
    bench = Bench(speeds)
    result = bench.tune()
    assert result.best == "c4"
    assert [(row.candidate, row.error) for row in result.rows[-2:]] == [
        ("bad", "rank 1 ended"),
        ("worse", "ValueError"),
    ]
    assert [name for name, _ in bench.calls].count("bad") == 1


def test_a_finalist_that_fails_late_is_not_the_best():
    bench = Bench({"a": 100.0, "b": 120.0})
    quick = bench.measure

    def measure(candidate, seconds):
        if candidate == "b" and len(bench.calls) > 3:
            raise RuntimeError("out of memory")
        return quick(candidate, seconds)

    result = tuning.successive_halving(measure, bench.speeds, 30.0, clock=bench.clock)
    assert result.best == "a"
    assert row_of(result, "b").error == "out of memory"
    assert row_of(result, "b").rounds > 0


@pytest.mark.parametrize("samples", [[], [0.0], [float("nan")], ["x"]])
def test_samples_that_are_no_speeds_are_an_error_of_the_candidate(samples):
    def measure(name, seconds):
        return [1.0] if name == "good" else samples

    result = tuning.successive_halving(measure, ["good", "b"], 60.0)
    assert result.best == "good"
    assert row_of(result, "b").error


def test_ctrl_c_is_no_failure_of_a_candidate():
    def measure(candidate, seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.successive_halving(measure, ["a", "b"], 1.0)


def test_the_baseline_goes_through_all_rungs_and_the_gain_comes_from_the_same_rounds():
    speeds, _ = ladder(8, 0.05)
    result = Bench(speeds, noise=0.01, drift=0.004).tune(baseline="c0")
    assert result.baseline == "c0"
    assert row_of(result, "c0").rung == row_of(result, result.best).rung
    assert result.gain == pytest.approx(1.05**7, rel=0.02)
    assert result.gain_low <= result.gain <= result.gain_high
    alone = Bench(speeds).tune()
    assert (alone.baseline, alone.gain) == (None, None)


machines = st.builds(
    lambda sizes, siblings: machine(*sizes, threads=siblings),
    st.lists(st.integers(1, 24), min_size=1, max_size=4),
    st.integers(1, 2),
)


@given(machines)
def test_candidates_are_different_fit_the_machine_and_begin_with_the_default(fake):
    found = tuning.candidates(fake)
    assert found[0] == tuning.default_candidate(fake)
    assert [each.default for each in found].count(True) == 1
    assert len(set(found)) == len(found)
    plans = [each.plan(fake) for each in found]
    works = [
        (p.ranks, p.threads, each.inter_op, p.cpus) for p, each in zip(plans, found, strict=True)
    ]
    assert len(set(works)) == len(works)
    assert not any(plan.oversubscribed for plan in plans)
    assert {1, fake.usable_cores} <= {plan.ranks for plan in plans}


def test_candidates_of_two_cores():
    found = tuning.candidates(machine(2))
    assert found == (
        Candidate(1, 2, 2, bound=False, default=True),
        Candidate(2, 1, 1),
        Candidate(1, 2, 1),
        Candidate(2, 1, 2),
        Candidate(2, 1, 1, bound=False),
        Candidate(2, 1, 2, bound=False),
        Candidate(1, 1, 1),
    )
