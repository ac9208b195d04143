"""The parts of one training step on ranks, measured: computing, update, exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import numpy as np

from dlguide import measure
from dlguide.collectives.communicator import Communicator, SingleProcess
from dlguide.errors import require
from dlguide.training.step import train_step

# The parts that are measured in turns: one rank by itself, all ranks without exchange at the
# same time, the update alone, update with exchange, and the real step.
PARTS = ("alone", "together", "update", "exchange", "step")
RATE = 1e-3  # of SGD: speed does not depend on it, the weights must stay finite
# One process with the samples of all makes an update that differs by rounding; a sum instead of a
# mean, or an exchange left out, gives one that differs by half the update and more.
ROUNDING = 0.02
LEAST_ROUNDS = 5
PAUSE_S = 1e-4


@dataclass(frozen=True)
class StepWorker:
    """What one worker's training step consists of, built on its rank; stays there.

    `step` is called with the arrays of `TimedStep.samples` as tensors: forward, backward, exchange
    and update; it returns when all of it is done (a number of its result, as a float). `optimizers`
    are pairs of an optimizer, made by `comm.distribute`, and the variables that it updates, in the
    order of the step: one pair, or one for each net of a GAN.
    """

    step: Callable[..., Any]
    optimizers: tuple[tuple[Any, Any], ...]

    @property
    def nbytes(self) -> int:
        """Size of what a worker gives to the sum of a step (bytes)."""
        return sum(each.nbytes for each in self.weights())

    def weights(self) -> list[np.ndarray]:
        """Copy what the step trains."""
        return [np.asarray(each).copy() for _, variables in self.optimizers for each in variables]

    def update(self) -> Callable[[], Any]:
        """Compile exchange and update without computing: the gradients are zeros."""
        import tensorflow as tf

        zeros = [
            [tf.zeros_like(each.value) for each in variables] for _, variables in self.optimizers
        ]

        @tf.function(autograph=False)
        def applied() -> Any:
            for (optimizer, variables), gradients in zip(self.optimizers, zeros, strict=True):
                optimizer.apply([tf.identity(each) for each in gradients], list(variables))
            return tf.constant(0.0)

        return lambda: float(applied())


@dataclass(frozen=True)
class TimedStep:
    """A training step to be timed on ranks; can be pickled.

    `build` is called on a rank with `SingleProcess()` for a worker by itself, with
    `HorovodCommunicator()` for one among all; it returns a `StepWorker` with the same initial
    weights each time, whose loss is a mean over the samples of *all* ranks. `samples` is called
    with a number of samples and a seed and returns the arrays that `step` takes.
    """

    name: str
    batch_per_rank: int
    build: Callable[[Communicator], StepWorker]
    samples: Callable[[int, int], tuple[np.ndarray, ...]]


def classifier_worker(model: Any, optimizer: Any, comm: Communicator, *own: Any) -> StepWorker:
    """Make the worker of a net that gives logits, as `fit` trains it; `own` as in `train_step`."""
    import tensorflow as tf

    optimizer = comm.distribute(optimizer)
    optimizer.build(model.trainable_variables)
    one = train_step(model, optimizer, comm.size, *own)
    dtype = "float64" if model.outputs[0].dtype == "float64" else "float32"

    def step(images: Any, labels: Any) -> float:
        return float(one(images, labels, tf.constant(1 / (comm.size * len(images)), dtype))[0])

    return StepWorker(step, ((optimizer, model.trainable_variables),))


def measure_parts(
    step: TimedStep,
    alone_batch: int,
    steps: int,
    rounds: int,
    seed: int = 0,
    seconds: float = float("inf"),
) -> dict[str, Any]:
    """Measure on all ranks, in rounds, so that a disturbance hits all parts alike; collective."""
    from mpi4py import MPI

    comm = sleeping(MPI.COMM_WORLD)
    from dlguide.horovod.communicator import HorovodCommunicator  # loads Keras

    many = HorovodCommunicator()
    own, shared = step.build(SingleProcess()), step.build(many)
    work = equal_work(step, own, shared, many, seed)
    whole, mine = _shares(step, many, seed + 1)
    some = [each[:alone_batch] for each in whole]
    calls = {
        "alone": lambda: own.step(*some),
        "together": lambda: own.step(*mine),
        "update": own.update(),
        "exchange": shared.update(),
        "step": lambda: shared.step(*mine),
    }
    found: dict[str, Any] = {part: [] for part in PARTS}

    def once(part: str) -> float:
        if part in ("update", "exchange"):
            # as in a step: after a computation, which leaves other data in the caches
            calls["together"]()
        if part in ("together", "update", "exchange"):
            MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        calls[part]()
        return perf_counter() - start

    for part in PARTS:
        once(part)  # traces, and makes the ranks agree on what they exchange
    comm.Barrier()
    begun = perf_counter()
    for done in range(rounds):
        late = comm.bcast(perf_counter() - begun > seconds)  # rank 0 decides for all
        if late and done >= LEAST_ROUNDS:
            break
        for part in PARTS:
            if part != "alone" or comm.rank == 0:
                found[part] += [once(part) for _ in range(steps + 1)][1:]
            comm.Barrier()
        speed = step.batch_per_rank * many.size / found["step"][-1]
        measure.report_progress(step=done + 1, steps=rounds, images_per_s=speed)
    _alike(shared, many, "after the measured steps")
    return found | {"nbytes": shared.nbytes, "work": work}


def _shares(step: TimedStep, comm: Communicator, seed: int) -> tuple[list[Any], list[Any]]:
    """Return the samples of all ranks, and this rank's slice of them."""
    import tensorflow as tf

    drawn = step.samples(comm.size * step.batch_per_rank, seed)
    mine = slice(comm.rank * step.batch_per_rank, (comm.rank + 1) * step.batch_per_rank)
    return [tf.constant(each) for each in drawn], [tf.constant(each[mine]) for each in drawn]


def equal_work(
    step: TimedStep, own: StepWorker, shared: StepWorker, comm: Communicator, seed: int
) -> tuple[float, float | None]:
    """Show that a step on ranks is the step of one process, before anything is timed; collective.

    Each rank takes its slice, the process the whole; both must lead to the same weights, all ranks
    to the same bits. Batch normalisation forbids it: each rank normalises over its slice. A net
    that fails and has a "gamma", as Keras names it, must pass where all ranks hold equal samples.
    """
    whole, mine = _shares(step, comm, seed)
    difference = _apart(step, (own, shared), (whole, mine), comm)
    normalises = any(each.name == "gamma" for _, several in own.optimizers for each in several)
    equal, worst = None, difference
    if difference > ROUNDING and normalises:
        same = [each[: step.batch_per_rank] for each in whole]
        pair = step.build(SingleProcess()), step.build(comm)
        equal = worst = _apart(step, pair, (same, same), comm)
    with comm.agree_or_raise():
        must = "lead to the weights of one process with the same samples"
        then = f"The update differs by {100 * worst:.3g} %."
        require(worst <= ROUNDING, "step", must, f"others for {step.name}", then)
    _alike(shared, comm, "after a step with different samples on each rank")
    return difference, equal


def _apart(
    step: TimedStep,
    pair: tuple[StepWorker, StepWorker],
    samples: tuple[list[Any], list[Any]],
    comm: Communicator,
) -> float:
    """Make a step of a worker by itself and one among all; return how far apart they end."""
    for each in pair:
        _alike(each, comm, "before the first step")
    own, shared = pair
    first = _flat(own)
    with comm.agree_or_raise():
        require(np.array_equal(first, _flat(shared)), "build", "give the same initial weights",
                f"others for all ranks of {step.name}")  # fmt: skip
    own.step(*samples[0])
    shared.step(*samples[1])
    moved = float(np.linalg.norm(_flat(own) - first))
    with comm.agree_or_raise():
        require(moved > 0, "step", "change the weights", f"none of {step.name}")
    mine = float(np.linalg.norm(_flat(own) - _flat(shared))) / moved
    return max(map(float, comm.allgather(repr(mine))))


def _flat(worker: StepWorker) -> np.ndarray:
    return np.concatenate([np.ravel(each).astype(np.float64) for each in worker.weights()])


def _alike(worker: StepWorker, comm: Communicator, when: str) -> None:
    everyone = comm.allgather(measure.digest_of(worker.weights()))
    if len(set(everyone)) > 1:
        other = next(rank for rank, each in enumerate(everyone) if each != everyone[0])
        raise RuntimeError(f"The weights of rank {other} are not those of rank 0 {when}.")


def sleeping(comm: Any) -> Any:
    """Return an MPI communicator whose receivers and barriers sleep while they wait.

    MPI waits in a loop that keeps a core busy. That does not matter on a node with a core for
    each rank; it does if a server shares a core with a worker. A message is found up to 0.2 ms
    later.
    """
    from mpi4py import MPI

    class SleepingComm(MPI.Intracomm):
        def Recv(self, buffer: Any, source: int = -1, tag: int = -1, status: Any = None) -> None:
            source = MPI.ANY_SOURCE if source == -1 else source
            tag = MPI.ANY_TAG if tag == -1 else tag
            while not self.Iprobe(source, tag):
                sleep(PAUSE_S)
            super().Recv(buffer, source, tag, status)

        def Barrier(self) -> None:
            request = self.Ibarrier()
            while not request.Test():
                sleep(PAUSE_S)

    return SleepingComm(comm)
