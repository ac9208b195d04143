"""Who waits for whom at a parameter server: the rule of each mode, without any message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require, require_count, require_known

MODES = ("synchronous", "asynchronous", "bounded")

Gradient = tuple[int, int, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """How servers answer, and which workers are there; `server.train` explains the fields."""

    mode: str
    servers: int
    bound: int
    leave_out: int
    group: int
    steps: tuple[int, ...]
    joining: tuple[int, ...] = ()

    def check(self, ranks: int) -> None:
        """Check the setting for a number of ranks, before any message.

        Args:
            ranks: size of the communicator (count).

        Raises:
            ValueError: in the house's form.
        """
        require_known(self.mode, MODES, "mode")
        require_count(self.servers, "servers")
        require_count(self.bound, "bound", least=0)
        require_count(self.leave_out, "leave_out", least=0)
        require_count(self.group, "group")
        text = f"leave a worker among the {ranks} ranks"
        require(self.servers < ranks, "servers", text, self.servers, "Start more ranks.")
        workers = ranks - self.servers
        groups = -(-workers // self.group)
        text = f"be below the {groups} that answer in a step"
        require(self.leave_out < groups, "leave_out", text, self.leave_out)
        alone = self.leave_out == 0 or self.mode == "synchronous"
        require(alone, "leave_out", "be 0 unless the mode is synchronous", self.leave_out)
        self._check_who_is_there(workers)

    def _check_who_is_there(self, workers: int) -> None:
        text = f"be one number, or one for each of the {workers} workers"
        require(len(self.steps) == workers, "steps", text, self.steps)
        for steps in self.steps:
            require_count(steps, "steps")
        text = f"name workers from 0 to {workers - 1}"
        known = set(self.joining) <= set(range(workers))
        require(known, "join_s", text, list(self.joining))
        # the other modes wait for who is not there; a group would wait for its members
        free = self.mode == "asynchronous" and self.group == 1
        text = "be equal for all workers unless the mode is asynchronous and group is 1"
        require(free or len(set(self.steps)) == 1, "steps", text, self.steps)
        text = "be empty unless the mode is asynchronous and group is 1"
        require(free or not self.joining, "join_s", text, list(self.joining))


class Waiting:
    """Gradients that have come and workers that have no answer yet."""

    def __init__(self, leaders: list[int], setting: Setting) -> None:
        self.leaders = set(leaders)
        self.mode, self.bound = setting.mode, setting.bound
        self.needed = len(leaders) - setting.leave_out
        self.steps = max(setting.steps)
        # steps that a worker has sent the gradient of, which is its clock
        self.clock = dict.fromkeys(leaders, 0)
        self.unanswered: set[int] = set()
        self.gathered: dict[int, dict[int, Gradient]] = {}
        self.done_steps = 0
        self.left_out = 0

    def came(
        self, worker: int, step: int, version: int, samples: int, gradient: np.ndarray
    ) -> None:
        """Note a gradient."""
        self.clock[worker] = step + 1
        self.unanswered.add(worker)
        if self.mode == "synchronous" and step < self.done_steps:
            self.left_out += 1
        else:
            self.gathered.setdefault(step, {})[worker] = (version, samples, gradient)

    def finished(self, worker: int) -> None:
        """Note that a worker sends no more."""
        self.leaders.discard(worker)

    def ready_updates(self) -> Iterator[list[Gradient]]:
        """Yield the gradients of each update that can be made now, in the order of workers."""
        if self.mode == "synchronous":
            while len(self.gathered.get(self.done_steps, ())) >= self.needed:
                together = self.gathered.pop(self.done_steps)
                self.done_steps += 1
                yield [together[worker] for worker in sorted(together)]
            return
        for step in sorted(self.gathered):
            for gradient in self.gathered.pop(step).values():
                yield [gradient]

    def ready_answers(self) -> list[int]:
        """Give the workers that may go on, and forget them."""
        if self.mode == "synchronous":
            free = [worker for worker in self.unanswered if self.clock[worker] <= self.done_steps]
        elif self.mode == "asynchronous":
            free = list(self.unanswered)
        else:
            slowest = min((self.clock[worker] for worker in self.leaders), default=self.steps)
            free = [w for w in self.unanswered if self.clock[w] - slowest <= self.bound]
        self.unanswered.difference_update(free)
        return sorted(free)
