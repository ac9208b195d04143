"""Predicted times of collectives are those of the real algorithms on a virtual network.

Tests dlguide.scaling.costs.collectives, dlguide.scaling.costs.link, dlguide.scaling.costs.laws.
Each rank is a thread with a clock of its own. A message starts when both ends are ready and
takes the link's time; an addition takes the receiver's. The code that runs is that of
`dlguide.collectives`, so that a formula which counts one message too few is found.
"""

from __future__ import annotations

import math
import queue
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from dlguide.collectives import algorithms, buffers, pieces
from dlguide.scaling import costs
from dlguide.scaling.costs import Link

LINK = Link(3e-6, 1e9, 4e9)
FAST, SLOW = Link(1e-6, 8e9, 5e9), Link(2e-5, 1e9, 5e9)


@dataclass
class Network:
    """Messages under way between threads, and the clock of each."""

    ranks: int
    per_node: int
    inside: Link
    between: Link
    ways: dict = field(default_factory=dict)

    def __post_init__(self):
        self.clock = [0.0] * self.ranks
        pairs = [(a, b) for a in range(self.ranks) for b in range(self.ranks)]
        self.ways = {pair: queue.Queue() for pair in pairs}
        self.here = threading.local()

    def link(self, one, other):
        return self.inside if one // self.per_node == other // self.per_node else self.between


class Comm:
    """What the algorithms need of a communicator, on a virtual network."""

    def __init__(self, network, members, world_rank):
        self.network, self.members, self.me = network, members, world_rank
        self.rank, self.size = members.index(world_rank), len(members)

    def post(self, array, to):
        came = queue.Queue()
        there = self.members[to]
        self.network.ways[self.me, there].put((self.network.clock[self.me], array.copy(), came))
        return came

    def take(self, array, source, ready):
        there = self.members[source]
        sent, values, came = self.network.ways[there, self.me].get(timeout=20)
        array[:] = values
        end = max(sent, ready) + self.network.link(there, self.me).seconds(array.nbytes)
        came.put(end)
        return end

    def Send(self, array, to, tag):
        end = self.post(array, to).get(timeout=20)
        self.network.clock[self.me] = end

    def Recv(self, array, source, tag):
        clock = self.network.clock
        clock[self.me] = self.take(array, source, clock[self.me])

    def Sendrecv(self, out, to, tag, space, source, tag_too):
        ready = self.network.clock[self.me]
        sending = self.post(out, to)
        end = self.take(space, source, ready)
        self.network.clock[self.me] = max(end, sending.get(timeout=20))


@pytest.fixture
def virtual(monkeypatch):
    """Run a collective on a virtual network; give its time and what each rank holds."""
    for module in (buffers, pieces, algorithms):
        monkeypatch.setattr(module, "message", lambda array: array)

    def run(collective, nbytes, ranks, inside=LINK, between=LINK, per_node=1, levels=False):
        network = Network(ranks, per_node, inside, between)
        link = inside if per_node > 1 else between

        def operation(op):
            def join(one, other, out):
                network.clock[network.here.rank] += link.adding(other.nbytes)
                return np.add(one, other, out=out)

            return join

        def split(comm, ranks_per_node):
            node = comm.me // per_node
            first = [each for each in range(ranks) if each // per_node == node]
            alike = [each for each in range(ranks) if each % per_node == comm.me % per_node]
            return Comm(network, first, comm.me), Comm(network, alike, comm.me)

        for module in (pieces, algorithms):
            monkeypatch.setattr(module, "operation", operation)
        monkeypatch.setattr(algorithms, "levels", split)
        arrays = [np.full(nbytes // 8, float(rank + 1)) for rank in range(ranks)]

        def work(rank):
            network.here.rank = rank
            collective(arrays[rank], Comm(network, list(range(ranks)), rank))

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        return max(network.clock), arrays

    return run


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("name", costs.ALLREDUCES)
def test_allreduce_takes_the_time_of_the_algorithm(name, ranks, virtual):
    for nbytes in (8 * 1680, 8 * 1680 * 64):  # divisible by all numbers of ranks
        seconds, arrays = virtual(algorithms.ALGORITHMS[f"{name}"], nbytes, ranks)
        assert all((array == ranks * (ranks + 1) / 2).all() for array in arrays)
        predicted = costs.allreduce(name, nbytes, ranks, LINK)
        assert predicted == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 4), (2, 2), (3, 4), (4, 3), (4, 1)])
def test_hierarchical_takes_the_time_of_the_algorithm(nodes, per_node, virtual):
    nbytes, ranks = 8 * 1680 * 8, nodes * per_node
    seconds, arrays = virtual(
        algorithms.allreduce_hierarchical, nbytes, ranks, FAST, SLOW, per_node
    )
    assert all((array == ranks * (ranks + 1) / 2).all() for array in arrays)
    predicted = costs.hierarchical(nbytes, nodes, per_node, FAST, SLOW)
    assert predicted == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_parts_of_an_allreduce_take_the_time_of_the_algorithms(ranks, virtual):
    nbytes = 8 * 1680 * 4
    for collective, cost in (
        (pieces.broadcast_tree, costs.broadcast),
        (pieces.reduce_scatter_ring, costs.reduce_scatter),
        (pieces.allgather_ring, costs.allgather),
        (lambda array, comm: pieces.alltoall(array.reshape(comm.size, -1), comm), costs.alltoall),
    ):
        seconds, _ = virtual(collective, nbytes, ranks)
        assert cost(nbytes, ranks, LINK) == pytest.approx(seconds, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 2), (6, 3), (8, 8), (2, 6)])
def test_servers_take_the_time_of_messages_one_after_the_other(workers, servers):
    """In turn s worker w speaks to server (w + s) mod m: no end has two messages at once."""
    nbytes, turns = 1e6, max(workers, servers)
    free_worker, free_server = [0.0] * workers, [0.0] * servers
    for phase in ("gradients", "weights"):
        for turn in range(turns):
            for worker in range(workers):
                server = (worker + turn) % turns
                if server >= servers:
                    continue
                start = max(free_worker[worker], free_server[server])
                end = start + LINK.seconds(nbytes / servers)
                free_worker[worker] = end
                free_server[server] = end
                if phase == "gradients":
                    free_server[server] += LINK.adding(nbytes / servers)
    predicted = costs.parameter_server(nbytes, workers, servers, LINK)
    assert predicted >= max(free_worker) * (1 - 1e-12)
    assert predicted == pytest.approx(max(free_worker), rel=0.25)
    if servers == 1:
        assert predicted == pytest.approx(max(free_worker), rel=1e-12)


def test_best_allreduce_changes_from_few_messages_to_few_bytes():
    assert costs.best_allreduce(8, 16, LINK)[0] == "recursive_doubling"
    name, seconds = costs.best_allreduce(1e9, 16, LINK)
    assert name in ("ring", "halving_doubling")
    # the least that any allreduce sends: 2 (p - 1)/p of the bytes, and adds (p - 1)/p of them
    least = 15 / 16 * 1e9 * (2 / LINK.bytes_per_s + 1 / LINK.added_bytes_per_s)
    assert least <= seconds < 1.001 * least


def test_shared_link_gives_each_flow_its_part():
    assert LINK.shared(4).seconds(1e6) == pytest.approx(LINK.latency_s + 4 * 1e6 / 1e9)
    assert LINK.shared(1) == LINK


def test_link_takes_the_published_rate():
    link = Link.published("InfiniBand 4X FDR", 1e-6)
    assert link.bytes_per_s == pytest.approx(54.6e9 / 8)
    assert Link.published("InfiniBand 4X FDR", 1e-6, 0.5).bytes_per_s == link.bytes_per_s / 2


def test_laws_at_their_known_points():
    assert costs.amdahl(0.05, 20) == pytest.approx(1 / (0.05 + 0.95 / 20))
    assert costs.amdahl(0, 7) == costs.gustafson(0, 7) == 7
    assert costs.amdahl(1, 7) == costs.gustafson(1, 7) == 1
    assert costs.amdahl(0.1, 10**9) == pytest.approx(10, rel=1e-6)
    assert costs.gustafson(0.25, 9) == pytest.approx(0.25 + 0.75 * 9)


def test_slowest_of_normal_workers():
    # closed forms: 0, 1/sqrt(pi), 3/(2 sqrt(pi)); Tippett (1925) for 10, 100 and 1000
    closed = {1: 0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi)}
    tables = {10: 1.53875, 100: 2.50759, 1000: 3.24144}
    for workers, value in (closed | tables).items():
        assert costs.slowest(workers) == pytest.approx(value, abs=2e-5)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: costs.allreduce("star", 8, 2, LINK), "algorithm"),
        (lambda: costs.allreduce("ring", -8, 2, LINK), "nbytes"),
        (lambda: costs.allreduce("ring", 8, 0, LINK), "workers"),
        (lambda: costs.parameter_server(8, 2, 0, LINK), "servers"),
        (lambda: costs.hierarchical(8, 0, 2, LINK, LINK), "nodes"),
        (lambda: Link(-1e-6, 1e9), "latency_s"),
        (lambda: Link(1e-6, 0), "bytes_per_s"),
        (lambda: Link(1e-6, 1e9, 0), "added_bytes_per_s"),
        (lambda: Link.published("InfiniBand 5X", 1e-6), "name"),
        (lambda: Link.published("InfiniBand 4X FDR", 1e-6, 1.5), "efficiency"),
        (lambda: LINK.shared(0), "flows"),
        (lambda: costs.amdahl(-0.1, 2), "serial_fraction"),
        (lambda: costs.gustafson(1.1, 2), "serial_fraction"),
        (lambda: costs.slowest(0), "workers"),
    ],
)
def test_what_cannot_be_is_refused(call, name):
    with pytest.raises(ValueError, match=f"^`{name}` must "):
        call()
