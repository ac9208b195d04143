"""Servers lose no update; the synchronous one equals serial gradient descent.

Tests dlcourse.parallel.parameter_server.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import long
from on_ranks import on_ranks

from dlcourse.parallel.parameter_server import (
    PendingGradients,
    backup_workers,
    proportional_shards,
)

# Four ranks are the fewest with two servers.
SERVERS = [2, 3, 4, *long(5)]


def synchronous_training():
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import parameter_server

    comm = MPI.COMM_WORLD
    targets = np.random.default_rng(1).normal(size=(9, 13))
    counts = [3, 1, 2, 5, 4, 2, 2, 2, 2]
    rate, steps, found = 0.1, 6, {}

    def gradient(weights, worker, step):
        return weights - targets[worker] * (step + 1), counts[worker]

    def update(part, mean):
        part -= rate * mean

    for servers in range(1, comm.size):
        for group in (1, 2):
            start = np.zeros(13)
            weights, record = parameter_server.train(
                comm, start, gradient, steps, update, servers=servers, group=group
            )
            workers = comm.size - servers
            serial = np.zeros(13)
            samples = np.array(counts[:workers])
            for step in range(steps):
                each = serial - targets[:workers] * (step + 1)
                serial -= rate * (samples[:, None] * each).sum(0) / samples.sum()
            error = float(abs(weights - serial).max())
            leaders = -(-workers // group)
            speaks = record.role == "worker" and comm.rank % group == 0
            right = [
                error < 1e-12,
                not start.any(),
                record.updates == (steps if record.role == "server" else 0),
                record.staleness == ((0,) * steps * leaders if record.role == "server" else ()),
                record.sent == steps * (13 * 8 + 24 * servers) * speaks
                if record.role == "worker"
                else record.sent > 0,
            ]
            found[f"{servers} servers, groups of {group}"] = right
    return [name for name, right in found.items() if not all(right)]


@pytest.mark.parametrize("ranks", SERVERS)
def test_synchronous_server_equals_serial_descent_on_the_weighted_mean(tmp_path, ranks):
    assert on_ranks(ranks, synchronous_training, tmp_path, 60) == [[]] * ranks


def asynchronous_training(mode, bound, slow):
    import time

    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import parameter_server

    comm, steps, rate = MPI.COMM_WORLD, 8, 0.5

    def gradient(weights, worker, step):
        time.sleep(0.1 if slow and worker == 0 else 0)
        # whole numbers that do not depend on the weights: any order gives the same sum
        return np.arange(7.0) * (worker + 1) + step, 1

    def update(part, mean):
        part -= rate * mean

    servers = 2 if comm.size > 3 else 1
    weights, record = parameter_server.train(
        comm, np.ones(7), gradient, steps, update, mode, servers, bound
    )
    workers = comm.size - servers
    total = sum(np.arange(7.0) * (w + 1) + s for w in range(workers) for s in range(steps))
    return {
        "role": record.role,
        "right": bool(np.array_equal(weights, 1 - rate * total)),
        "updates": record.updates,
        "staleness": record.staleness,
        "expected": workers * steps,
    }


@pytest.mark.parametrize("ranks", SERVERS)
@pytest.mark.parametrize("mode", ["asynchronous", "bounded"])
def test_no_update_is_lost_however_late_it_is(tmp_path, ranks, mode):
    found = on_ranks(ranks, asynchronous_training, tmp_path, 60, mode=mode, bound=1, slow=ranks > 2)
    for each in found:
        assert each["right"]
        if each["role"] == "server":
            assert each["updates"] == each["expected"] == len(each["staleness"])
            assert min(each["staleness"]) >= 0
            if ranks == 2:
                assert set(each["staleness"]) == {0}, "one worker is never stale"
            elif mode == "asynchronous":  # while the slow worker sleeps, another updates again
                assert max(each["staleness"]) >= 3


# What each worker's arrival leads to: so many updates, and the workers that are answered.
RULES = {
    "synchronous": (0, 3, [(2, 0, 0, []), (0, 0, 0, []), (1, 0, 1, [0, 1, 2])]),
    "asynchronous": (0, 2, [(0, step, 1, [0]) for step in range(5)]),
    "bounded": (2, 2, [(0, 0, 1, [0]), (0, 1, 1, [0]), (0, 2, 1, []), (1, 0, 1, [0, 1])]),
}


@pytest.mark.parametrize("mode", RULES)
def test_each_rule_holds_workers_back_as_long_as_it_must(mode):
    bound, workers, arrivals = RULES[mode]
    waiting = PendingGradients(range(workers), mode, bound, leave_out=0, steps=5)

    def arrives(worker, step):
        waiting.arrived(worker, step, 0, 1, np.zeros(1))
        return len(list(waiting.ready_updates())), waiting.ready_answers()

    for worker, step, updates, answered in arrivals:
        assert arrives(worker, step) == (updates, answered)
    if mode == "bounded":  # who has left holds no other back
        assert arrives(0, 3) == (1, [])
        waiting.leaders.discard(1)
        assert waiting.ready_answers() == [0]


def workers_that_come_and_go():
    import time

    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import parameter_server

    comm, first = MPI.COMM_WORLD, []
    workers = comm.size - 1
    # worker 0 works throughout, worker 1 leaves after two steps, worker 2 joins late
    steps = [40, 2, 5][:workers]

    def gradient(weights, worker, step):
        if step == 0:
            first.append(float(weights[0]))
        time.sleep(0.01 if worker == 0 else 0)
        return np.ones(3), 1

    def update(part, mean):
        part += mean

    joins = {2: 0.5} if workers == 3 else None
    weights, record = parameter_server.train(
        comm, np.zeros(3), gradient, steps, update, mode="asynchronous", join_s=joins
    )
    return {
        "total": weights.tolist(),
        "expected": float(sum(steps)),
        "updates": record.updates,
        "first": first,
    }


@pytest.mark.parametrize("ranks", [2, 3, *long(4)])
def test_workers_leave_and_join_while_the_others_go_on(tmp_path, ranks):
    found = on_ranks(ranks, workers_that_come_and_go, tmp_path, 60)
    for each in found:
        assert each["total"] == [each["expected"]] * 3
    assert found[-1]["updates"] == found[-1]["expected"]
    if ranks == 4:
        # each update adds 1: the joiner began at the others' weights, not at the first ones
        assert found[2]["first"][0] >= 3


def one_sided_training():
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import parameter_server

    comm = MPI.COMM_WORLD
    server = comm.size - 1

    def step(weights, worker, number):
        return np.arange(5.0) * (worker + 1) + number

    weights, updates = parameter_server.train_one_sided(comm, np.ones(5), step, 10, server)
    total = sum(np.arange(5.0) * (w + 1) + s for w in range(comm.size - 1) for s in range(10))
    one = parameter_server.train_one_sided(comm, np.zeros(3, "f4"), lambda w, *_: 1 - w / 2, 1, 0)
    # What a worker reads holds at least its own updates, and of each update all or nothing.
    seen = []
    parameter_server.train_one_sided(
        comm, np.zeros(1), lambda w, *_: (seen.append(w[0]), np.ones(1))[1], 50, server
    )
    read = all(own <= value == int(value) for own, value in enumerate(seen))
    return [
        bool(np.array_equal(weights, 1 + total)),
        updates == 10 * (comm.size - 1),
        one[1] == comm.size - 1,
        read and len(seen) == 50 * (comm.rank != server),
    ]


@pytest.mark.parametrize("ranks", [2, 3, *long(4)])
def test_one_sided_server_counts_and_keeps_every_update(tmp_path, ranks):
    assert on_ranks(ranks, one_sided_training, tmp_path, 60) == [[True] * 4] * ranks


# --- unequal workers -----------------------------------------------------------------------------


@given(st.integers(20, 5000), st.lists(st.floats(0.1, 1000), min_size=1, max_size=20))
def test_shares_add_up_and_differ_from_the_exact_ones_by_less_than_one(samples, speeds):
    parts = proportional_shards(samples, speeds)
    exact = samples * np.array(speeds) / sum(speeds)
    assert sum(parts) == samples
    assert np.all(np.abs(parts - exact) < 1)


def test_cut_off_uses_most_gradients_in_a_second_by_trying_all():
    random = np.random.default_rng(5)
    times = np.where(random.random((50, 12)) < 0.1, 0.05, 0.01) * random.uniform(0.9, 1.1, (50, 12))
    used_per_s = []
    for k in range(12):
        seconds = sum(sorted(step)[12 - k - 1] for step in times.tolist())
        used_per_s.append((12 - k) * len(times) / seconds)
    assert backup_workers(times) == int(np.argmax(used_per_s))
