"""One synchronous step from its parts, and a whole training from its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_positive
from dlguide.scaling.costs import slowest

__all__ = ["StepTime", "TrainingTime", "exposed", "not_divided", "predict", "training"]

# A backward pass multiplies twice where the forward pass does once: gradients of inputs and of
# weights. So two thirds of the computing follow the first gradient.
BACKWARD = 2 / 3


@dataclass(frozen=True)
class StepTime:
    """Time of one step of one worker, each part as far as it is not hidden behind another.

    Args:
        workers: p.
        compute_s: forward, backward, update on this worker (s).
        straggler_s: waiting for the slowest of p (s).
        exposed_s: part of the exchange that is not hidden behind the backward pass (s).
        hidden_s: part of the exchange that is hidden (s): not in `seconds`.
        input_s: reading the input, as far as it is not hidden behind the rest (s).
    """

    workers: int
    compute_s: float
    straggler_s: float
    exposed_s: float
    hidden_s: float
    input_s: float

    @property
    def parts(self) -> dict[str, float]:
        """The terms of `seconds`: compute, stragglers, exchange, input (s)."""
        return {
            "compute": self.compute_s,
            "stragglers": self.straggler_s,
            "exchange": self.exposed_s,
            "input": self.input_s,
        }

    @property
    def seconds(self) -> float:
        """The whole step (s)."""
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """Share of the step in which a worker computes: the throughput's efficiency."""
        return self.compute_s / self.seconds

    @property
    def limited_by(self) -> str:
        """The largest part beside computing; "compute" if all are below 1 % of the step."""
        name = max(("stragglers", "exchange", "input"), key=self.parts.__getitem__)
        return name if self.parts[name] >= 0.01 * self.seconds else "compute"

    def images_per_s(self, batch_per_worker: float) -> float:
        """Return the throughput of all workers (images/s)."""
        return self.workers * batch_per_worker / self.seconds

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in self.parts.items() if s > 0)
        hidden = f" ({1e3 * self.hidden_s:.3g} ms of the exchange hidden)" if self.hidden_s else ""
        return (
            f"{self.workers} workers: {1e3 * self.seconds:.3g} ms a step = {parts}{hidden}; "
            f"efficiency {100 * self.efficiency:.0f} %"
        )


def predict(
    compute_s: float,
    exchange_s: float = 0.0,
    workers: int = 1,
    overlap: float = 0.0,
    spread: float = 0.0,
    input_s: float = 0.0,
    prefetched: bool = True,
) -> StepTime:
    """Predict a synchronous step from its parts.

        hidden     = min(overlap * exchange, 2/3 compute)
        stragglers = spread * compute * slowest(p)
        step       = max(input, compute + stragglers + exchange - hidden)    with prefetching
        step       = input + compute + stragglers + exchange - hidden        without

    Two thirds of computing are the backward pass, which alone can hide an exchange. If one core
    both computes and exchanges, overlap is 0. Workers of one node share its memory bandwidth:
    measure `compute_s` with all of them busy.

    Args:
        compute_s: one worker's step by itself (s).
        exchange_s: combining the gradients, such as `costs.allreduce` predicts (s); taken as 0
            for one worker.
        workers: p.
        overlap: share of the exchange sent while gradients are still computed (fraction);
            `exposed` predicts it layer by layer.
        spread: standard deviation of a worker's step time over its mean (ratio).
        input_s: time to read one step's samples (s), such as `storage.epoch(...)` over its steps.
        prefetched: whether the next samples are read while a step computes.

    Returns:
        StepTime: the time of each part (s).

    Raises:
        ValueError: if a value is out of range.
    """
    require_positive(compute_s, "compute_s")
    for name, value in (("exchange_s", exchange_s), ("spread", spread), ("input_s", input_s)):
        require(0 <= value < math.inf, name, "be at least 0", value)
    require(0 <= overlap <= 1, "overlap", "lie between 0 and 1", overlap)
    if require_count(workers, "workers") == 1:
        exchange_s = 0.0
    hidden_s = min(overlap * exchange_s, BACKWARD * compute_s)
    straggler_s = spread * compute_s * slowest(workers)
    working_s = compute_s + straggler_s + exchange_s - hidden_s
    waiting_s = max(0.0, input_s - working_s) if prefetched else input_s
    return StepTime(workers, compute_s, straggler_s, exchange_s - hidden_s, hidden_s, waiting_s)


def exposed(backward_s: Sequence[float], exchange_s: Sequence[float]) -> float:
    """Predict how long ranks wait for gradients after the backward pass (s).

    The backward pass goes through layers 1 to L, the last of the net first; b_l is the time of a
    layer and c_l that of its gradient's exchange. A gradient leaves as soon as its layer is done
    and the link is free, one after the other, so the last one has arrived after

        max over l of (b_1 + ... + b_l  +  c_l + ... + c_L)

    and the exposed time is what exceeds b_1 + ... + b_L. For L equal layers with sums B and C it
    is max(C / L, C - B (1 - 1/L)). Leaves out that exchanging takes time from the core that
    computes, unless a network card or another core does it.

    Args:
        backward_s: time of each layer, in the order of the backward pass (s).
        exchange_s: of each layer's gradient, same order (s).

    Returns:
        float: time (s).

    Raises:
        ValueError: if there is no layer, the lists differ in length, or a time is negative.

    Source:
        Awan et al., S-Caffe, PPoPP (2017): reducing layer by layer behind the backward pass.

    >>> exposed([1.0, 1.0], [1.0, 1.0])
    1.0
    """
    require(len(backward_s) > 0, "backward_s", "name a layer at least", list(backward_s))
    equal = len(backward_s) == len(exchange_s)
    require(equal, "exchange_s", f"have {len(backward_s)} layers", len(exchange_s))
    for name, times in (("backward_s", backward_s), ("exchange_s", exchange_s)):
        good = all(0 <= each < math.inf for each in times)
        require(good, name, "hold times of at least 0", list(times))
    now = free = 0.0
    for computing, exchanging in zip(backward_s, exchange_s, strict=True):
        now += computing
        free = max(now, free) + exchanging
    return free - now


@dataclass(frozen=True)
class TrainingTime:
    """Time of a training from start to end.

    Args:
        workers: p.
        steps: updates of the weights.
        samples: training samples processed in all.
        train_s: time of all steps (s).
        evaluate_s: time of all evaluations (s).
        fixed_s: what happens once: start, first batch, checkpoints (s).
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

    def speedup(self, one: TrainingTime) -> float:
        """Return the wall clock's speed-up over the same training on one worker."""
        return one.seconds / self.seconds

    def node_hours(self, workers_per_node: int = 1) -> float:
        """Return what an account is charged: whole nodes, the last one perhaps half empty."""
        nodes = -(-self.workers // require_count(workers_per_node, "workers_per_node"))
        return nodes * self.seconds / 3600

    def kwh(self, watts_per_node: float, workers_per_node: int = 1) -> float:
        """Estimate the energy: all nodes at one mean power, all the time (kWh).

        Leaves out cooling, network and storage, and that a waiting node draws less.
        """
        require_positive(watts_per_node, "watts_per_node")
        return watts_per_node / 1000 * self.node_hours(workers_per_node)


def training(
    step_s: float,
    batch_per_worker: int,
    workers: int,
    samples: int,
    epochs: int = 1,
    evaluated: int = 0,
    evaluate_image_s: float = 0.0,
    sharded: bool = True,
    fixed_s: float = 0.0,
) -> TrainingTime:
    """Predict a training from its step.

        steps    = epochs ceil(samples / (p batch_per_worker))
        evaluate = epochs ceil(evaluated / p) e    if each worker takes its share
        evaluate = epochs evaluated e              if each worker takes all of it

    Args:
        step_s: one step, such as `predict(...).seconds` (s).
        batch_per_worker: images per worker and step.
        workers: p.
        samples: training images of an epoch.
        epochs: passes over them.
        evaluated: validation images after each epoch.
        evaluate_image_s: e, one worker's time for one of them (s).
        sharded: whether the validation set is divided among workers.
        fixed_s: what happens once (s).

    Returns:
        TrainingTime: steps, samples and time.

    Raises:
        ValueError: if a value is out of range.
    """
    require_positive(step_s, "step_s")
    for name, value in (("evaluate_image_s", evaluate_image_s), ("fixed_s", fixed_s)):
        require(0 <= value < math.inf, name, "be at least 0", value)
    p = require_count(workers, "workers")
    passes = require_count(epochs, "epochs")
    images = require_count(samples, "samples")
    steps = passes * -(-images // (p * require_count(batch_per_worker, "batch_per_worker")))
    each = require_count(evaluated, "evaluated", 0)
    each = -(-each // p) if sharded else each
    evaluate_s = passes * each * evaluate_image_s
    return TrainingTime(p, steps, passes * images, steps * step_s, evaluate_s, fixed_s)


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
        T and U, of the training on one worker (same unit).

    Raises:
        ValueError: if the times contradict the speed-up: U would be negative.

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
