"""The simulation agrees with real ranks: three workers, one three times as slow, and a server.

Tests dlcourse.simulate against dlcourse.parallel.parameter_server, with gradients that sleep
(scaling.sleeping lets the waiting ranks sleep too, so that two cores are enough).
"""

from __future__ import annotations

import pytest
from on_ranks import on_ranks

from dlcourse.simulate import WorkerTimes, asynchronous, synchronous

SLEEP_S, SLOW = 0.06, 3


def trainings(sleep_s, slow, turns):
    """Train in both modes; return the server's updates and their staleness."""
    from time import sleep

    import numpy as np
    from mpi4py import MPI

    from dlcourse.bench.scaling import sleeping
    from dlcourse.parallel import parameter_server

    comm = sleeping(MPI.COMM_WORLD)

    def gradient(weights, worker, step):
        sleep(sleep_s * (slow if worker == 2 else 1))
        return np.zeros_like(weights), 1

    def update(part, mean):
        part -= mean

    found = {}
    for mode, steps in (("asynchronous", [slow * turns, slow * turns, turns]),
                        ("synchronous", turns)):  # fmt: skip
        comm.Barrier()
        record = parameter_server.train(comm, np.zeros(1000), gradient, steps, update, mode)[1]
        found[mode] = {"updates": record.updates, "staleness": record.staleness}
    return found


def test_updates_and_their_staleness_are_those_of_the_simulation(tmp_path):
    served = on_ranks(4, trainings, tmp_path, sleep_s=SLEEP_S, slow=SLOW, turns=14)[3]
    workers = WorkerTimes(3, 1.0, slow={2: SLOW})
    late = served["asynchronous"]
    assert late["updates"] == 7 * 14  # two workers with 42 steps, one with 14
    mean = sum(late["staleness"]) / len(late["staleness"])
    assert mean == pytest.approx(asynchronous(workers, 98).staleness.mean(), rel=0.15)
    # closed form: the slow one sees 2 * 3 updates, a fast one 1 + 1/3; 6 of 7 gradients are fast
    assert mean == pytest.approx((6 * 4 / 3 + 6) / 7, rel=0.15)
    together = served["synchronous"]
    assert together["updates"] == synchronous(workers, 14).updates == 14
    assert set(together["staleness"]) == {0}


def test_asynchronous_workers_finish_more_gradients():
    workers = WorkerTimes(3, 1.0, slow={2: SLOW})
    rates = [asynchronous(workers, 98).gradients_per_s, synchronous(workers, 14).gradients_per_s]
    assert rates[0] / rates[1] == pytest.approx(7 / 3, rel=0.05)  # 1 + 1 + 1/3 against 3 * 1/3
