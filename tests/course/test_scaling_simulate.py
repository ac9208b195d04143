"""Simulated training takes the time that closed forms say, where there are any.

Tests dlcourse.simulate. Constant times are exact; random ones are held to a few standard
errors of the simulated mean.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dlcourse.parallel import parameter_server
from dlcourse.simulate import WorkerTimes, asynchronous, synchronous
from dlguide.scaling.costs import slowest


def harmonic(count):
    return math.fsum(1 / k for k in range(1, count + 1))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 1000])
def test_constant_steps_add_up(count):
    seen = synchronous(WorkerTimes(count, 0.1), 50, exchange_s=0.02)
    assert seen.seconds == pytest.approx(50 * 0.12)
    assert (seen.updates, seen.gradients) == (50, 50 * count)
    slow = synchronous(WorkerTimes(count, 0.1, slow={0: 3.0}), 50, exchange_s=0.02)
    assert slow.seconds == pytest.approx(50 * 0.32)


@pytest.mark.parametrize("count", [2, 10, 200])
def test_slowest_of_exponential_workers_is_the_harmonic_number(count):
    seen = synchronous(WorkerTimes(count, 1.0, spread=1.0), 4000, seed=1)
    error = math.sqrt(sum(1 / k**2 for k in range(1, count + 1)) / 4000)
    assert seen.seconds / 4000 == pytest.approx(harmonic(count), abs=4 * error)
    # waiting for all but the slowest two of them: the order statistic two places lower
    if count > 2:
        seen = synchronous(WorkerTimes(count, 1.0, spread=1.0), 4000, backups=2, seed=1)
        assert seen.seconds / 4000 == pytest.approx(harmonic(count) - 1.5, abs=4 * error)
        assert seen.gradients == 4000 * (count - 2)


def test_slowest_of_nearly_normal_workers_is_that_of_the_costs():
    seen = synchronous(WorkerTimes(64, 1.0, spread=0.02), 3000)
    assert seen.seconds / 3000 - 1 == pytest.approx(0.02 * slowest(64), rel=0.05)


@pytest.mark.parametrize("count", [1, 4, 30])
def test_constant_workers_share_a_server_without_waiting_or_fill_it(count):
    seen = asynchronous(WorkerTimes(count, 1.0), 60 * count, update_s=0.05)
    cycle = 1.0 + 0.05
    rate = min(count / cycle, 1 / 0.05)
    assert seen.updates / seen.seconds == pytest.approx(rate, rel=0.05)
    # every worker's gradient is late by the updates of all others
    assert seen.staleness[-10 * count :].mean() == pytest.approx(count - 1, abs=0.1)


@pytest.mark.parametrize(("count", "busy"), [(3, 0.5), (10, 0.05), (10, 0.2), (50, 0.04)])
def test_exponential_workers_are_the_machine_repair_model(count, busy):
    """The classic closed queue M/M/1//p, here with a server of the same rate each time.

    With constant service the queue is M/D/1//p, which lies between that of exponential service
    and none at all.
    """
    seen = asynchronous(WorkerTimes(count, 1.0, spread=1.0), 40_000, update_s=busy, seed=2)
    weights = [math.exp(math.lgamma(count + 1) - math.lgamma(count - n + 1)) * busy**n
               for n in range(count + 1)]  # fmt: skip
    exponential = (1 - weights[0] / math.fsum(weights)) / busy
    assert (
        exponential * 0.98
        <= seen.updates / seen.seconds
        <= min(count / (1 + busy), 1 / busy) * 1.02
    )


def test_staleness_is_conserved():
    # between two of its gradients a worker sees all that the others did: the mean is p - 1
    for spread in (0.0, 0.5, 1.0):
        seen = asynchronous(WorkerTimes(20, 1.0, spread=spread), 20_000)
        assert seen.staleness[2000:].mean() == pytest.approx(19, abs=0.3)


def test_failures_cost_what_daly_says():
    """With a rate r of failures, work w takes (e^(r w) - 1)/r e^(r restart) in the mean."""
    workers = WorkerTimes(100, 1.0, between_failures_s=20_000.0, restart_s=30.0)
    rate, work, stretches = 100 / 20_000.0, 5 * 10.1 + 9.5, 20_000
    seen = synchronous(workers, 5 * stretches, 9.1, checkpoint_every=5, checkpoint_s=9.5, seed=4)
    failures = math.expm1(rate * work) * math.exp(rate * 30.0)
    assert seen.seconds / stretches == pytest.approx(failures / rate, rel=0.02)


def test_failure_of_one_stops_all_or_itself():
    workers = WorkerTimes(10, 1.0, between_failures_s=1000.0, restart_s=50.0)
    all_wait = synchronous(workers, 20_000, checkpoint_every=1, seed=5)
    goes_on = asynchronous(workers, 200_000, seed=5)
    # (e^(r w) - 1)(1/r + restart), once with the rate of one worker and once with that of ten
    one = math.expm1(1 / 1000) * (1000 + 50)
    assert goes_on.updates / goes_on.seconds == pytest.approx(10 / one, rel=0.02)
    ten = math.expm1(1 / 100) * math.exp(50 / 100) * 100
    assert all_wait.updates / all_wait.seconds == pytest.approx(1 / ten, rel=0.04)


@pytest.mark.parametrize("slow", [1.1, 2.0, 5.0])
def test_cut_off_chosen_from_drawn_times_uses_most_gradients_a_second(slow):
    workers = WorkerTimes(8, 1.0, spread=0.05, slow={0: slow, 1: slow})
    random = np.random.default_rng(3)
    chosen = parameter_server.backup_workers(np.array([workers.steps(random) for _ in range(300)]))
    rates = [synchronous(workers, 600, backups=k).gradients_per_s for k in range(8)]
    assert rates[chosen] >= 0.995 * max(rates)
    assert chosen == (2 if slow > 1.5 else 0)
