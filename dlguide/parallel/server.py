"""Parameter servers over MPI: synchronous, asynchronous, with bounded staleness, in shards.

The last ranks of a communicator are servers, each with its part of the weights; the others are
workers. A worker computes a gradient, sends every server its part, and gets the new weights back.
When the server answers is all that tells the modes apart:

- "synchronous": when every worker's gradient of this step has come; one update for all.
- "asynchronous": at once, after an update with this gradient alone. Nobody waits, but the gradient
  was taken at weights that others have changed meanwhile: it is *stale*.
- "bounded": as asynchronous, but a worker that is more than `bound` steps ahead of the slowest
  waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives import allreduce_ring, broadcast_tree, parts
from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require_count
from dlguide.parallel.waiting import Setting, Waiting

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_GRADIENT, _WEIGHTS, _HEAD = 101, 102, 103
# in place of a step's number: this worker has come, or it goes
_JOINS, _LEAVES = -2, -1

Gradient = Callable[[np.ndarray, int, int], tuple[np.ndarray, int]]
Update = Callable[[np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class Served:
    """What one rank did in a training with parameter servers."""

    rank: int
    role: str
    updates: int
    left_out: int
    staleness: tuple[int, ...]
    sent: int
    seconds: float
    waited_s: float


def train(
    comm: Comm,
    weights: np.ndarray,
    gradient: Gradient,
    steps: int | Sequence[int],
    update: Update,
    mode: str = "synchronous",
    servers: int = 1,
    bound: int = 2,
    leave_out: int = 0,
    group: int = 1,
    slow_s: Mapping[int, float] | None = None,
    join_s: Mapping[int, float] | None = None,
) -> tuple[np.ndarray, Served]:
    """Train with parameter servers; collective, all ranks call with the same arguments.

    A step of a worker moves n bytes to the servers and n back, n the size of the weights. With p
    workers and k servers each server receives and sends p n / k bytes: its time grows with p / k.

    Args:
        comm: the ranks; the last `servers` of them serve.
        weights: the first weights, flat, the same on all ranks; not changed.
        gradient: a function of (weights, worker, step) that returns the gradient of the mean loss
            over the worker's samples, shaped as `weights`, and the number of those samples.
        steps: steps of each worker (count); in "asynchronous" also one number for each worker,
            which then leaves while the others go on.
        update: changes a part of the weights in place, given the gradient's part.
        mode: one of `waiting.MODES`.
        servers: number of servers (count).
        bound: how far the fastest worker may be ahead of the slowest in "bounded" (steps).
        leave_out: in "synchronous", go on without the last so many gradients of a step.
        group: workers that sum their gradients by allreduce and speak to the servers as one:
            synchronous inside the node, whatever the mode is between nodes.
        slow_s: time that a worker sleeps in each step, by worker: a straggler on demand (s).
        join_s: in "asynchronous", the time after which a worker comes, by worker: it asks for
            the weights as they are by then, and begins (s).

    Returns:
        tuple: the final weights, the same on all ranks, and what this rank did.

    Raises:
        ValueError: when the setting does not fit the ranks; on all ranks alike when their
            weights or settings differ.

    Source:
        Li et al., OSDI (2014): servers; Ho et al., NIPS (2013): bounded staleness; Chen et al.,
        arXiv:1604.00981: leaving out the last; the survey's introduction: groups.
    """
    workers = comm.size - require_count(servers, "servers")
    each = (steps,) * workers if np.ndim(steps) == 0 else tuple(steps)
    setting = Setting(mode, servers, bound, leave_out, group, each, tuple(sorted(join_s or {})))
    setting.check(comm.size)
    require_equal_buffers(comm, weights, setting=setting)
    # the workers of a group sum among themselves; the servers' own group is not used
    team = comm.Split(comm.rank // group if comm.rank < workers else comm.size, comm.rank)
    started = perf_counter()
    current = np.array(weights)
    if comm.rank < workers:
        worker = _Worker(comm, setting, workers, team)
        if comm.rank in (join_s or {}):
            sleep(join_s[comm.rank])
            worker.join(current)
        for step in range(each[comm.rank]):
            sleep((slow_s or {}).get(comm.rank, 0.0))
            mine, samples = gradient(current, comm.rank, step)
            worker.step(np.array(mine, weights.dtype), samples, step, current)
        worker.finish()
        record = worker.record
    else:
        server = _Server(comm, setting, workers, update, parts(current, servers))
        record = server.serve()
    comm.Barrier()
    # every rank ends with the same weights, the servers' parts put together
    for place, part in enumerate(parts(current, servers)):
        comm.Bcast(part, workers + place)
    team.Free()
    updates, left_out, staleness, sent, waited_s = record
    return current, Served(
        rank=comm.rank,
        role="worker" if comm.rank < workers else "server",
        updates=updates,
        left_out=left_out,
        staleness=tuple(staleness),
        sent=sent,
        seconds=perf_counter() - started,
        waited_s=waited_s,
    )


class _Worker:
    """One worker, or the leader of a group of them."""

    def __init__(self, comm: Comm, setting: Setting, workers: int, team: Comm) -> None:
        self.comm, self.team, self.workers, self.servers = comm, team, workers, setting.servers
        self.versions = [0] * setting.servers
        self.sent, self.waited_s = 0, 0.0

    @property
    def record(self) -> tuple[int, int, list[int], int, float]:
        return 0, 0, [], self.sent, self.waited_s

    def step(self, gradient: np.ndarray, samples: int, step: int, current: np.ndarray) -> None:
        """Send a gradient, wait, and put the new weights into `current`."""
        total = samples
        if self.team.size > 1:
            gradient *= samples
            allreduce_ring(gradient, self.team)
            total = self.team.allreduce(samples)
            gradient /= total
        if self.team.rank == 0:
            start = perf_counter()
            self._exchange(gradient, step, total, current)
            self.waited_s += perf_counter() - start
        if self.team.size > 1:
            broadcast_tree(current, self.team)

    def _exchange(self, gradient: np.ndarray, step: int, samples: int, current: np.ndarray) -> None:
        from mpi4py import MPI

        requests = []
        for place, part in enumerate(parts(gradient, self.servers)):
            head = np.array([step, self.versions[place], samples])
            server = self.workers + place
            requests.append(self.comm.Isend(head, server, _HEAD))
            requests.append(self.comm.Isend(part, server, _GRADIENT))
            self.sent += head.nbytes + part.nbytes
        self._receive(current)
        MPI.Request.Waitall(requests)

    def _receive(self, current: np.ndarray) -> None:
        for place, part in enumerate(parts(current, self.servers)):
            head, server = np.empty(1, int), self.workers + place
            self.comm.Recv(head, server, _HEAD)
            self.comm.Recv(part, server, _WEIGHTS)
            self.versions[place] = int(head[0])

    def join(self, current: np.ndarray) -> None:
        """Put the weights as they are now into `current`."""
        self._tell(_JOINS)
        self._receive(current)

    def finish(self) -> None:
        """Tell the servers that no more comes from this worker."""
        if self.team.rank == 0:
            self._tell(_LEAVES)

    def _tell(self, what: int) -> None:
        for place in range(self.servers):
            self.comm.Send(np.array([what, 0, 0]), self.workers + place, _HEAD)


class _Server:
    """One server with its part of the weights."""

    def __init__(
        self, comm: Comm, setting: Setting, workers: int, update: Update, shards: list[np.ndarray]
    ) -> None:
        self.comm, self.setting, self.update = comm, setting, update
        self.part = shards[comm.rank - workers]
        self.leaders = list(range(0, workers, setting.group))
        self.updates, self.left_out, self.sent = 0, 0, 0
        self.staleness: list[int] = []

    def serve(self) -> tuple[int, int, list[int], int, float]:
        """Answer until every worker has finished."""
        from mpi4py import MPI

        waiting = Waiting(self.leaders, self.setting)
        while waiting.leaders:
            status, head = MPI.Status(), np.empty(3, int)
            self.comm.Recv(head, MPI.ANY_SOURCE, _HEAD, status)
            worker, (step, version, samples) = status.Get_source(), head.tolist()
            if step == _JOINS:
                self._answer(worker)
            elif step == _LEAVES:
                waiting.finished(worker)
            else:
                gradient = np.empty_like(self.part)
                self.comm.Recv(gradient, worker, _GRADIENT)
                waiting.came(worker, step, version, samples, gradient)
            for gradients in waiting.ready_updates():
                self._apply(gradients)
            for receiver in waiting.ready_answers():
                self._answer(receiver)
        self.left_out = waiting.left_out
        return self.updates, self.left_out, self.staleness, self.sent, 0.0

    def _apply(self, gradients: list[tuple[int, int, np.ndarray]]) -> None:
        """Make one update with the mean of gradients, weighted by their samples."""
        total = sum(samples for _, samples, _ in gradients)
        mean = np.zeros_like(self.part)
        for version, samples, gradient in gradients:
            mean += gradient * (samples / total)
            self.staleness.append(self.updates - version)
        self.update(self.part, mean)
        self.updates += 1

    def _answer(self, worker: int) -> None:
        head = np.array([self.updates])
        self.comm.Send(head, worker, _HEAD)
        self.comm.Send(self.part, worker, _WEIGHTS)
        self.sent += head.nbytes + self.part.nbytes
