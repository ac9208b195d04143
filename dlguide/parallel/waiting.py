"""Who waits for whom at a parameter server: the rule of each mode, without any message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Gradient = tuple[int, int, np.ndarray]


class Waiting:
    """Gradients that have come and workers that have no answer yet.

    Args:
        leaders: the workers that speak to the server.
        setting: mode, bound and leave_out of `server.Setting`.
        steps: steps of each worker (count).
    """

    def __init__(self, leaders: list[int], setting: Any, steps: int) -> None:
        self.leaders = set(leaders)
        self.mode, self.bound = setting.mode, setting.bound
        self.needed = len(leaders) - setting.leave_out
        self.steps = steps
        # steps that a worker has sent the gradient of, which is its clock
        self.clock = dict.fromkeys(leaders, 0)
        self.unanswered: set[int] = set()
        self.gathered: dict[int, dict[int, Gradient]] = {}
        self.done_steps = 0
        self.left_out = 0

    def came(
        self, worker: int, step: int, version: int, samples: int, gradient: np.ndarray
    ) -> None:
        """Note a gradient.

        Args:
            worker: who sent it.
            step: the worker's step.
            version: updates that its weights had seen (count).
            samples: samples it is the mean of (count).
            gradient: the server's part of it.
        """
        self.clock[worker] = step + 1
        self.unanswered.add(worker)
        if self.mode == "synchronous" and step < self.done_steps:
            self.left_out += 1
        else:
            self.gathered.setdefault(step, {})[worker] = (version, samples, gradient)

    def finished(self, worker: int) -> None:
        """Note that a worker sends no more.

        Args:
            worker: the worker.
        """
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
