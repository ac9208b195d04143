"""Notebook 22's checks tick what is right, and say which usual mistake was made.

Tests dlguide.exercises.nb22.
"""

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises


@pytest.fixture(scope="module", params=[2, 3, 4])
def cluster_ranks(request):
    return request.param


def traffic(workers, servers, nbytes):
    return nbytes, workers * nbytes / servers, 2 * (workers - 1) / workers * nbytes


def staleness(order, first=0, own=1):
    """Count the updates between two gradients of a worker, one by one."""
    found = []
    for place, worker in enumerate(order):
        before = [earlier for earlier in range(place) if order[earlier] == worker]
        found.append(place - before[-1] - own if before else place * (1 - first))
    return found


def best(times):
    workers = times.shape[1]
    rates = []
    for out in range(workers):
        step_s = np.partition(times, workers - out - 1, axis=1)[:, workers - out - 1]
        rates.append((workers - out) / step_s.mean())
    return int(np.argmax(rates))


RIGHT = {"22-1": traffic, "22-2": Parts((staleness, " b ")), "22-3": best}
EMPTY = {"22-2": [Parts((lambda order: ..., "B")), Parts((staleness, ...))]}
WRONG = {
    "a part for each server": ("22-1", lambda p, k, n: (n / k, *traffic(p, k, n)[1:]), "in all"),
    "the server holds all": (
        "22-1",
        lambda p, k, n: (n, p * n, traffic(p, k, n)[2]),
        "that it holds",
    ),
    "k over p": (
        "22-1",
        lambda p, k, n: (n, k * n / p, traffic(p, k, n)[2]),
        "answers every worker",
    ),
    "ring without the minus": (
        "22-1",
        lambda p, k, n: (*traffic(p, k, n)[:2], 2 * n),
        "alone sends nothing",
    ),
    "own update counted": (
        "22-2",
        Parts((lambda order: staleness(order, own=0), "B")),
        "own last update",
    ),
    "first is fresh": (
        "22-2",
        Parts((lambda order: staleness(order, first=1), "B")),
        "first gradient",
    ),
    "workers - 1": (
        "22-2",
        Parts((lambda order: [len(set(order)) - 1] * len(order), "B")),
        "first gradient",
    ),
    "one number": (
        "22-2",
        Parts((lambda order: sum(staleness(order)), "B")),
        "One number for each",
    ),
    "workers wait": ("22-2", Parts((staleness, "A")), "waits for nobody"),
    "only when equally fast": ("22-2", Parts((staleness, "C")), "nearly everything"),
    "only at first": ("22-2", Parts((staleness, "D")), "does the mean change"),
    "wait for all": ("22-3", lambda times: 0, "not always best"),
    "the shortest step": ("22-3", lambda times: times.shape[1] - 1, "not the aim"),
    "how many to wait for": (
        "22-3",
        lambda times: times.shape[1] - best(times),
        "number to wait for",
    ),
    "no function": ("22-3", 3, "Write it with `def`"),
}


def test_staleness_has_the_mean_of_the_other_workers():
    order = np.random.default_rng(1).choice(4, 2000, p=[0.4, 0.3, 0.2, 0.1]).tolist()
    assert np.isclose(np.mean(staleness(order)), 3, atol=0.1)


def serve(comm, weights, gradient, rate, steps, fault=None):
    weights, server = weights.copy(), comm.size - 1
    for step in range(steps):
        if comm.rank < server:
            comm.send(gradient(weights), server)
            if not (fault == "last answer" and step == steps - 1):
                weights = comm.recv(source=server)
            continue
        pairs = [comm.recv(source=worker) for worker in range(server)]
        if fault == "mean of means":
            mean = sum(mine for mine, _ in pairs) / server
        else:
            total = sum(samples for _, samples in pairs)
            mean = sum(mine * samples for mine, samples in pairs) / total
        if fault != "no update":
            weights -= rate * mean
        for worker in range(server):
            comm.send(weights, worker)
    if fault == "last answer" and comm.rank < server:
        comm.recv(source=server)
    return None if fault == "nothing back" and comm.rank == server else weights


def test_right_server_is_ticked(cluster, capsys):
    ticked = exercises.check("22-4", serve, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        ("mean of means", "weigh each gradient"),
        ("no update", "did not change"),
        ("last answer", "does the last answer arrive"),
        ("nothing back", "Return the weights on every rank"),
    ],
)
def test_wrong_server_gets_its_hint(fault, hint, cluster, capsys):
    def faulty(*inputs):
        return serve(*inputs, fault=fault)

    ticked = exercises.check("22-4", faulty, cluster)
    if fault == "mean of means" and cluster.ranks == 2:
        assert ticked  # one worker: nothing to weigh
        return
    assert not ticked
    assert hint in capsys.readouterr().out


def test_empty_server_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("22-4", lambda *inputs: ..., cluster)
    assert capsys.readouterr().out == "… Exercise 22-4 is not answered yet.\n"
