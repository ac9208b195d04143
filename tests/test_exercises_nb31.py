"""Notebook 31's checks tick what is right and say which usual mistake was made."""

import os
import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.exercises import nb31
from dlguide.machine import imagine
from dlguide.machine.threads import kmp


@pytest.fixture(scope="module", params=[1, 2, 3])
def cluster(request):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=request.param, oversubscribe=True, tuned=False) as cluster:
        yield cluster
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def crowding(ranks, cores, told):
    threads = ranks * (cores if told is None else told)
    return threads, threads / cores


def communication_cpus(socket_of, each):
    found = []
    for socket in sorted(set(socket_of.values())):
        found += [cpu for cpu in socket_of if socket_of[cpu] == socket][-each:]
    return ",".join(map(str, found))


def landing(kind, sockets, cores, siblings, threads):
    total, found = sockets * cores, []
    for number in range(threads):
        if kind == "compact,1":
            found.append(number)
        elif kind == "compact":
            found.append(number // siblings + number % siblings * total)
        else:
            core, thread = number % total, number // total
            found.append(core % sockets * cores + core // sockets + thread * total)
    return found


CAUSES = {
    "four are slower": "E",
    "half is idle": "C",
    "no effect": "F",
    "both sockets": "A",
    "one image": "B",
    "a core given away": "D",
}
EMPTY = {"31-5": [dict.fromkeys(CAUSES, ...), CAUSES | {"four are slower": ...}]}
RIGHT = {"31-1": crowding, "31-2": communication_cpus, "31-3": landing, "31-5": CAUSES}
WRONG = {
    "one rank's threads": ("31-1", lambda p, c, t: (t or c, (t or c) / c), "times the ranks"),
    "all share politely": (
        "31-1",
        lambda p, c, t: (c if t is None else p * t, 1.0),
        "every core it sees",
    ),
    "per rank, not per core": (
        "31-1",
        lambda p, c, t: (crowding(p, c, t)[0], crowding(p, c, t)[0] / p),
        "divided by the cores",
    ),
    "one number": ("31-1", lambda p, c, t: p * c, "two numbers"),
    "the list of 2019": ("31-2", lambda s, n: "39,38,43,42", "On which sockets are they"),
    "the last CPUs": (
        "31-2",
        lambda s, n: ",".join(map(str, [*s][-n * len(set(s.values())) :])),
        "On which sockets are they",
    ),
    "one process only": ("31-2", lambda s, n: ",".join(map(str, [*s][:n])), "for each of"),
    "a CPU twice": ("31-2", lambda s, n: "0,0,24,24", "each CPU once"),
    "a list": ("31-2", lambda s, n: [0, 1, 24, 25], "a text such as"),
    "not there": ("31-2", lambda s, n: "22,23,46,48", "CPUs that are there"),
    "no hardware threads": (
        "31-3",
        lambda k, s, c, h, t: [n % (s * c) for n in range(t)],
        "second hardware threads",
    ),
    "compact is core by core": (
        "31-3",
        lambda k, s, c, h, t: landing("scatter" if k == "scatter" else "compact,1", s, c, h, t),
        "Fill a core",
    ),
    "scatter is compact": (
        "31-3",
        lambda k, s, c, h, t: landing(k.replace("scatter", "compact,1"), s, c, h, t),
        "sockets in turn",
    ),
    "too few": ("31-3", lambda k, s, c, h, t: [0], "one CPU for each thread"),
    "no function": ("31-3", 3.0, "Write it with `def`"),
    "pools blamed": ("31-5", CAUSES | {"four are slower": "F"}, "How many threads has each core"),
    "crowded, not idle": ("31-5", CAUSES | {"half is idle": "E"}, "At which number"),
    "counted from 0": ("31-5", CAUSES | {"no effect": "C"}, "Who reads that variable"),
    "both see all cores": ("31-5", CAUSES | {"both sockets": "E"}, "innermost level"),
    "crowded image": ("31-5", CAUSES | {"one image": "E"}, "What do they share for one"),
    "no letter": ("31-5", CAUSES | {"four are slower": "the cores"}, "a letter from A to F"),
}


@pytest.mark.parametrize("kind", ["compact,1", "compact", "scatter"])
def test_oracle_of_the_landing_agrees_with_the_package(kind):
    for sockets, cores, siblings in ((2, 4, 2), (1, 4, 2), (4, 3, 4)):
        node = imagine(sockets, cores, siblings)
        placed = kmp.place(kmp.parse(f"granularity=fine,{kind}"), node.cores, node.logical_cores)
        came = nb31._landing(kind, sockets, cores, siblings)
        assert came == [cpu for (cpu,) in placed]
        assert landing(kind, sockets, cores, siblings, len(came)) == came


def share(comm, cpus):
    return cpus[comm.rank :: comm.size] or [cpus[comm.rank % len(cpus)]]


def pin(comm, cpus):
    for name in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(name), share(comm, cpus))


def test_all_threads_pinned_is_ticked_and_the_masks_come_back(cluster, capsys):
    before = cluster.run(os.sched_getaffinity, 0)
    ticked = exercises.check("31-4", pin, cluster)
    assert ticked, capsys.readouterr().out
    assert cluster.run(os.sched_getaffinity, 0) == before


def test_only_the_first_thread_pinned_is_noticed(cluster, capsys):
    def first(comm, cpus):
        os.sched_setaffinity(0, share(comm, cpus))

    ticked = exercises.check("31-4", first, cluster)
    # one rank alone has all CPUs as its share: nothing to bind
    assert ticked == (cluster.ranks == 1)
    assert ticked or "binds the calling thread only" in capsys.readouterr().out


@pytest.mark.parametrize(
    "chosen",
    [lambda comm, cpus: cpus[:1], lambda comm, cpus: cpus],
    ids=["all ranks on one core", "nothing bound"],
)
def test_a_wrong_share_is_noticed(chosen, cluster, capsys):
    def wrong(comm, cpus):
        for name in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(name), chosen(comm, cpus))

    ticked = exercises.check("31-4", wrong, cluster)
    right = cluster.ranks == 1 and sorted(chosen(None, [0, 1])) == [0, 1]
    assert ticked == right
    assert ticked or "Which CPUs of the list" in capsys.readouterr().out


def test_a_function_that_does_nothing_is_not_answered(cluster, capsys):
    assert not exercises.check("31-4", lambda comm, cpus: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out


def test_numbers_may_come_in_any_kind_of_list():
    for kind in (list, tuple, np.array):
        assert exercises.check("31-1", lambda *a, kind=kind: kind(crowding(*a)))
        assert exercises.check("31-3", lambda *a, kind=kind: kind(landing(*a)))
