"""A whole training: its steps, its evaluations, and what nobody divided."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_positive


@dataclass(frozen=True)
class Training:
    """What a training takes from its start to its end.

    Args:
        workers: p (count).
        steps: updates of the weights (count).
        samples: training samples that pass in all (count).
        train_s: time of all steps (s).
        evaluate_s: time of all evaluations (s).
        fixed_s: what comes once: start, first batch, checkpoints (s).
    """

    workers: int
    steps: int
    samples: int
    train_s: float
    evaluate_s: float
    fixed_s: float

    @property
    def seconds(self) -> float:
        """From start to end (s)."""
        return self.train_s + self.evaluate_s + self.fixed_s

    @property
    def images_per_s(self) -> float:
        """Throughput of the steps alone, as papers quote it (images/s)."""
        return self.samples / self.train_s

    def speedup(self, one: Training) -> float:
        """Say how many times sooner this one is at its end: the wall clock's speed-up.

        Args:
            one: the same training, on one worker.

        Returns:
            float: its time over this one's.
        """
        return one.seconds / self.seconds

    def node_hours(self, workers_per_node: int = 1) -> float:
        """Give what an account is charged: whole nodes, as long as they are held.

        Args:
            workers_per_node: p / nodes; the last node may be half empty (count).

        Returns:
            float: node-hours.
        """
        nodes = -(-self.workers // require_count(workers_per_node, "workers_per_node"))
        return nodes * self.seconds / 3600

    def kwh(self, watts_per_node: float, workers_per_node: int = 1) -> float:
        """Estimate the energy: all nodes at one power, all the time.

        Leaves out cooling, network and storage, and that a waiting node draws less.

        Args:
            watts_per_node: mean power of a node (W).
            workers_per_node: as in `node_hours` (count).

        Returns:
            float: energy (kWh).
        """
        require_positive(watts_per_node, "watts_per_node")
        return watts_per_node / 1000 * self.node_hours(workers_per_node)


def training(
    step_s: float,
    batch: int,
    workers: int,
    samples: int,
    epochs: int = 1,
    evaluated: int = 0,
    evaluate_image_s: float = 0.0,
    sharded: bool = True,
    fixed_s: float = 0.0,
) -> Training:
    """Predict a training from its step.

        steps    = epochs ceil(samples / (p batch))
        evaluate = epochs ceil(evaluated / p) e    each worker takes its share
        evaluate = epochs evaluated e              each worker takes all of it

    Args:
        step_s: one step, such as `predict(...).seconds` (s).
        batch: images per worker and step (count).
        workers: p (count).
        samples: training images of an epoch (count).
        epochs: passes over them (count).
        evaluated: validation images after each epoch (count).
        evaluate_image_s: e, one worker's time for one of them (s).
        sharded: whether the validation set is divided among workers.
        fixed_s: what comes once (s).

    Returns:
        Training: its parts.

    Raises:
        ValueError: when a number is out of range.
    """
    require_positive(step_s, "step_s")
    for name, value in (("evaluate_image_s", evaluate_image_s), ("fixed_s", fixed_s)):
        require(0 <= value < math.inf, name, "be at least 0", value)
    p = require_count(workers, "workers")
    passes = require_count(epochs, "epochs")
    images = require_count(samples, "samples")
    steps = passes * -(-images // (p * require_count(batch, "batch")))
    each = require_count(evaluated, "evaluated", 0)
    each = -(-each // p) if sharded else each
    seen_s = passes * each * evaluate_image_s
    return Training(p, steps, passes * images, steps * step_s, seen_s, fixed_s)


def not_divided(serial_s: float, parallel_s: float, speedup: float) -> tuple[float, float]:
    """Find what was not divided among workers, from two wall-clock times and a throughput.

    With a training part T that gains the speed-up S of the throughput, and a part U that takes
    as long on many workers as on one (an evaluation of the whole set by every rank):

        serial = T + U,   parallel = T / S + U   so   T = (serial - parallel) / (1 - 1/S)

    Args:
        serial_s: wall clock on one worker (s, or hours in all three).
        parallel_s: wall clock on many (same unit).
        speedup: S, of the throughput while training (ratio).

    Returns:
        tuple: T and U, of the training on one worker (same unit).

    Raises:
        ValueError: when the times contradict the speed-up: U would be negative.

    Source:
        Amdahl, AFIPS Conference Proceedings 30 (1967), 483-485, with U as the serial part.

    >>> train, whole = not_divided(110.0, 20.0, 10.0)
    >>> round(train, 6), round(whole, 6)
    (100.0, 10.0)
    """
    require_positive(serial_s, "serial_s")
    require_positive(parallel_s, "parallel_s")
    require(1 < speedup < math.inf, "speedup", "be above 1", speedup)
    train = (serial_s - parallel_s) / (1 - 1 / speedup)
    must = f"lie between {serial_s / speedup:.4g} and {serial_s:.4g}"
    fits = 0 <= train <= serial_s * (1 + 1e-12)
    require(fits, "parallel_s", must, parallel_s, "The times contradict the speed-up.")
    return train, max(0.0, serial_s - train)
