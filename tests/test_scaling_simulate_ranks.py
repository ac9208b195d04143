"""The simulation agrees with real ranks: three workers, one three times as slow, and a server.

Tests dlguide.scaling.simulate against dlguide.parallel.parameter_server, with gradients that sleep
(step_breakdown.sleeping lets the waiting ranks sleep too, so that two cores are enough).
"""

from __future__ import annotations

import pytest
from on_ranks import on_ranks

from dlguide.scaling.simulate import WorkerTimes, asynchronous, synchronous

SLEEP_S, SLOW = 0.06, 3


def trainings(sleep_s, slow, turns):
    """Train in both modes; each worker tells its mean gradient time, the server the rest."""
    from time import perf_counter, sleep

    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel import parameter_server
    from dlguide.training.step_breakdown import sleeping

    comm = sleeping(MPI.COMM_WORLD)
    took = []

    def gradient(weights, worker, step):
        start = perf_counter()
        sleep(sleep_s * (slow if worker == 2 else 1))
        took.append(perf_counter() - start)
        return np.zeros_like(weights), 1

    def update(part, mean):
        part -= mean

    found = {}
    for mode, steps in (("asynchronous", [slow * turns, slow * turns, turns]),
                        ("synchronous", turns)):  # fmt: skip
        took.clear()
        comm.Barrier()
        record = parameter_server.train(comm, np.zeros(1000), gradient, steps, update, mode)[1]
        found[mode] = {
            "gradient_s": sum(took) / len(took) if took else None,
            "waited_s": record.waited_s / len(took) if took else None,
            "updates": record.updates,
            "seconds": record.seconds,
            "staleness": record.staleness,
        }
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return on_ranks(4, trainings, folder, sleep_s=SLEEP_S, slow=SLOW, turns=14)


def team(found, mode):
    """The simulated workers, with the times that the real ones' gradients took."""
    times = [rank[mode]["gradient_s"] for rank in found[:3]]
    mean = (times[0] + times[1]) / 2
    return WorkerTimes(3, mean, slow={worker: each / mean for worker, each in enumerate(times)})


def test_asynchronous_updates_a_second_and_staleness(found):
    served = found[3]["asynchronous"]
    assert served["updates"] == 7 * 14  # two workers with 42 steps, one with 14
    way = min(rank["asynchronous"]["waited_s"] for rank in found[:3])
    told = asynchronous(team(found, "asynchronous"), served["updates"], travel_s=way)
    assert served["updates"] / served["seconds"] == pytest.approx(told.updates_per_s, rel=0.15)
    real = sum(served["staleness"]) / len(served["staleness"])
    assert real == pytest.approx(told.staleness.mean(), rel=0.15)
    # closed form: the slow one sees 2 * 3 updates, a fast one 1 + 1/3; 6 of 7 gradients are fast
    assert real == pytest.approx((6 * 4 / 3 + 6) / 7, rel=0.15)


def test_synchronous_updates_a_second(found):
    served = found[3]["synchronous"]
    assert served["updates"] == 14
    assert set(served["staleness"]) == {0}
    way = min(rank["synchronous"]["waited_s"] for rank in found[:3])
    told = synchronous(team(found, "synchronous"), served["updates"], exchange_s=way)
    assert served["updates"] / served["seconds"] == pytest.approx(told.updates_per_s, rel=0.15)
    # and so the fast ones wait for two thirds of the time
    assert told.waited == pytest.approx(4 / 9, abs=0.08)


def test_asynchronous_is_as_much_sooner_as_simulated(found):
    real = [
        found[3][mode]["updates"] * (1 if mode == "asynchronous" else 3) / found[3][mode]["seconds"]
        for mode in ("asynchronous", "synchronous")
    ]
    told = [
        asynchronous(WorkerTimes(3, 1.0, slow={2: 3.0}), 98).gradients_per_s,
        synchronous(WorkerTimes(3, 1.0, slow={2: 3.0}), 14).gradients_per_s,
    ]
    assert told[0] / told[1] == pytest.approx(7 / 3, rel=0.05)  # 1 + 1 + 1/3 against 3 * 1/3
    assert real[0] / real[1] == pytest.approx(told[0] / told[1], rel=0.15)
