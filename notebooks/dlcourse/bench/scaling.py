"""Strong and weak scaling on this machine, predicted from the measured parts of a training step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np

from dlcourse import simulate
from dlguide import measure as measuring
from dlguide import models
from dlguide.bench.worker import random_images
from dlguide.cluster import Cluster
from dlguide.collectives.communicator import Communicator, SingleProcess
from dlguide.errors import require, require_count, require_known
from dlguide.machine import describe
from dlguide.measure import Timing
from dlguide.measure.limits import SHARE, Bound
from dlguide.scaling.step import StepTime
from dlguide.training.step import train_step

MODES = {
    "strong": "the global batch stays, each of p ranks gets a p-th of it",
    "weak": "the batch of a rank stays, the global batch grows with p",
}
UPDATES = {
    "synchronous": "all ranks' gradients are summed, one update a step",
    "asynchronous": "a server, one rank more, makes an update of each worker's gradient",
}
LAUNCHERS = (
    "What the same command line means elsewhere: OSU-Caffe's `-scal` is strong by default (the "
    "batch in the file is divided by the solvers), Intel-Caffe's batch is each worker's (weak), "
    "and BVLC Caffe multiplies the batch by its GPUs (weak) (tutorial, demos); Horovod and this "
    "course's `fit` are weak: `batch_per_rank`. The survey's Figure 5 keeps a batch of 128 "
    "for synchronous and for asynchronous training."
)


@dataclass(frozen=True)
class ScalingRow:
    """One number of ranks; what is predicted or not there is None for one rank.

    Args:
        step: times of a step, of the slowest rank where all wait for each other; asynchronous:
            the one mean time of a worker's step.
        speedup: of the throughput, over one rank.
        predicted: the step from its parts, and its time in `predicted_s`.
        alone_s: one rank's step by itself, measured in the same ranks (s).
        independent: times of a step of the slowest rank when all ranks compute at once and
            exchange nothing, which no exchange can be faster than.
        staleness: asynchronous: mean of the updates between a gradient's weights and its use.
    """

    ranks: int
    batch_per_rank: int
    step: Timing
    images_per_s: float
    speedup: float
    predicted: StepTime | None
    predicted_s: float | None
    alone_s: float
    independent: Timing | None = None
    staleness: float | None = None
    predicted_staleness: float | None = None

    @property
    def efficiency(self) -> float:
        """Speed-up over p."""
        return self.speedup / self.ranks

    @property
    def ratio(self) -> float | None:
        """Predicted over measured time of a step; None for one rank."""
        return None if self.predicted_s is None else self.predicted_s / self.step.median

    @property
    def bound(self) -> Bound:
        """The shortest time of a step: that of independent processes side by side.

        Shared caches, memory and clock are in it. An exchange can hide behind computing, so it
        needs no time of its own in a lower bound.
        """
        if self.independent is None:
            return Bound(None, 0.0, "one rank exchanges nothing")
        return Bound(self.independent.median, self.independent.spread, "ranks without exchange")


@dataclass(frozen=True)
class ScalingComparison:
    """What was measured, one row for each number of ranks."""

    mode: str
    update: str
    net: str
    rows: tuple[ScalingRow, ...]
    assumptions: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.mode} scaling, {self.update}: {MODES[self.mode]}; {UPDATES[self.update]}.",
            f"{self.net}:  ranks  batch per rank  step [ms] (quartiles)    images/s  speed-up  "
            f"efficiency  {SHARE}  predicted [ms]",
        ]
        for row in self.rows:
            times = f"{1e3 * row.step.median:.1f}"
            if len(row.step.seconds) > 1:
                times += f" ({1e3 * row.step.low:.1f} to {1e3 * row.step.high:.1f})"
            said = ""
            if row.predicted_s is not None:
                said = f"{1e3 * row.predicted_s:.1f} ({100 * (row.ratio - 1):+.0f} %)"
            lines.append(
                f"{'':{len(self.net)}}  {row.ranks:6}  {row.batch_per_rank:14}  {times:22}  "
                f"{row.images_per_s:9.0f}  {row.speedup:8.2f}  {100 * row.efficiency:8.0f} %  "
                f"{row.bound.cell(row.step):>{len(SHARE)}}  {said}"
            )
            if row.staleness is not None:
                lines.append(
                    f"staleness of {row.ranks} workers: {row.staleness:.2f}, simulated "
                    f"{row.predicted_staleness:.2f}"
                )
            elif row.predicted is not None:
                lines.append(f"from parts: {row.predicted}")
        lines.append(f"{SHARE}: step of all ranks at once without exchange, over the measured one.")
        return "\n".join([*lines, *(f"Assumed: {each}" for each in self.assumptions), LAUNCHERS])


def measure(
    ranks: Sequence[int] = (1, 2),
    update: str = "synchronous",
    net: str = "mnist_cnn",
    batch_per_rank: int | None = None,
    global_batch: int | None = None,
    steps: int = 60,
    rounds: int = 20,
    oversubscribe: bool = False,
) -> ScalingComparison:
    """Measure steps on numbers of ranks, and predict each from one rank's and the exchange's.

    Weak scaling is asked for by `batch_per_rank`, strong scaling by `global_batch`; without both
    it is weak scaling with 100 images per rank.

    Synchronous: the ranks measure the parts and the step in turns. Predicted is the median of

        max over ranks of a step without exchange, all ranks busy  +  exchange

    where the exchange is the distributed optimizer's update less the plain one. Asynchronous:
    `simulate.asynchronous` with the gradient's time (all workers busy), the way to an idle server
    and back, and the server's update.

    Args:
        ranks: numbers of ranks; for asynchronous, of workers (counts).
        batch_per_rank: images of each rank in a step, for any number of ranks (count).
        global_batch: images of all ranks in a step, divided by the ranks (count).
        steps: measured steps of each part (count).
        rounds: turns that these are divided into; asynchronous has one (count).
        oversubscribe: allow more ranks than cores.
    """
    require_known(update, UPDATES, "update")
    require_known(net, models.names("digits", "classifier"), "net")
    for name, value in (("steps", steps), ("rounds", rounds)):
        require_count(value, name)
    require(rounds <= steps, "rounds", f"be at most the {steps} steps", rounds)
    counts = sorted({require_count(each, "ranks") for each in ranks})
    cores = describe().usable_cores
    then = "Use fewer ranks or `oversubscribe=True`."
    require(
        oversubscribe or counts[-1] <= cores,
        "ranks", f"be at most the {cores} cores this process may use", counts[-1], then,
    )  # fmt: skip
    if global_batch is None:
        mode, batch = "weak", 100 if batch_per_rank is None else batch_per_rank
        batches = dict.fromkeys(counts, require_count(batch, "batch_per_rank"))
    else:
        mode, batch = "strong", require_count(global_batch, "global_batch")
        must, then = "be None with `batch_per_rank`", "Give one of the two."
        require(batch_per_rank is None, "global_batch", must, global_batch, then)
        even = all(batch % p == 0 for p in counts)
        must = f"be divisible by {', '.join(map(str, counts))}"
        require(even, "global_batch", must, global_batch)
        batches = {p: batch // p for p in counts}
    if update == "synchronous":
        rows = _synchronous(batches, batch, net, steps, rounds)
    else:
        rows = _asynchronous(batches, batch, net, steps)
    return ScalingComparison(mode, update, net, tuple(rows), ASSUMPTIONS[update])


ASSUMPTIONS = {
    "synchronous": (
        "All ranks compute at the same time when parts are measured: sharing of memory, caches "
        "and clock is in the prediction.",
        "Nothing of the exchange hides behind computing: the gradients are summed together. It is "
        "the distributed optimizer's update less the plain one, each after a computation and a "
        "barrier.",
        "A step takes as long as the slowest of those that began together without exchange.",
    ),
    "asynchronous": (
        "Gradients are computed with all workers busy and the server idle; the server's own work "
        "shares a core with a worker where there is none left.",
        "A worker's step times follow a gamma distribution of the measured mean and spread.",
        "The speed-up is over one worker with a server.",
    ),
}


def _synchronous(
    batches: dict[int, int], batch: int, net: str, steps: int, rounds: int
) -> list[ScalingRow]:
    rows, each = [], -(-steps // rounds)
    for p, mine in batches.items():
        with Cluster(ranks=p, oversubscribe=True, magics=False) as ready:
            part = step_of(net, mine)
            found = ready.run(measure_parts, part, batch, each, rounds)
        alone_s = statistics.median(found[0]["alone"])
        if p == 1:
            timing, predicted, independent = Timing(tuple(found[0]["alone"])), None, None
        else:
            timing, independent = (
                Timing(tuple(np.max([rank[part] for rank in found], axis=0).tolist()))
                for part in ("step", "together")
            )
            predicted = from_parts(found)
        throughput = p * mine / timing.median
        rows.append(
            ScalingRow(
                p, mine, timing, throughput, throughput / (batch / alone_s), predicted,
                None if predicted is None else predicted.seconds, alone_s, independent,
            )
        )  # fmt: skip
    return rows


def from_parts(found: Sequence[dict[str, list[float]]]) -> StepTime:
    """Predict the synchronous step of ranks whose parts were measured."""
    together = np.array([rank["together"] for rank in found])
    compute_s = float(np.median(together, axis=1).mean())
    slowest_s = float(np.median(together.max(axis=0)))
    exchange_s, update_s = (
        [np.median(rank[part]) for rank in found] for part in ("exchange", "update")
    )
    return StepTime(
        workers=len(found),
        compute_s=compute_s,
        straggler_s=max(0.0, slowest_s - compute_s),
        exposed_s=max(0.0, float(max(exchange_s) - np.mean(update_s))),
    )


def _asynchronous(batches: dict[int, int], batch: int, net: str, steps: int) -> list[ScalingRow]:
    rows: list[ScalingRow] = []
    one: float | None = None
    for p in sorted({1, *batches}):
        mine = batches.get(p, batch)
        with Cluster(ranks=p + 1, oversubscribe=True, magics=False) as ready:
            *workers, server = ready.run(_asynchronous_on_rank, net, mine, steps)
        per_s = server["updates"] / server["seconds"]
        computing = np.concatenate([each["compute"] for each in workers])
        team = simulate.WorkerTimes(
            p, float(computing.mean()), float(computing.std() / computing.mean())
        )
        travel_s = max(0.0, workers[0]["travel"] - server["update"])
        predicted = simulate.asynchronous(team, p * steps, server["update"], travel_s)
        throughput = per_s * mine
        one = throughput if one is None else one
        if p in batches:
            rows.append(
                ScalingRow(
                    p, mine, Timing((p / per_s,)), throughput, throughput / one, None,
                    None if p == 1 else p / predicted.updates_per_s, float(np.median(computing)),
                    Timing(tuple(computing.tolist())), server["staleness"],
                    float(predicted.staleness.mean()),
                )
            )  # fmt: skip
    return rows


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
    step: TimedStep, alone_batch: int, steps: int, rounds: int, seconds: float = float("inf")
) -> dict[str, Any]:
    """Measure on all ranks, in rounds, so that a disturbance hits all parts alike; collective."""
    from mpi4py import MPI

    comm = sleeping(MPI.COMM_WORLD)
    from dlguide.horovod.communicator import HorovodCommunicator  # loads Keras

    many = HorovodCommunicator()
    own, shared = step.build(SingleProcess()), step.build(many)
    work = equal_work(step, own, shared, many)
    whole, mine = _shares(step, many, seed=1)
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
        measuring.report_progress(step=done + 1, steps=rounds, images_per_s=speed)
    _alike(shared, many, "after the measured steps")
    return found | {"nbytes": shared.nbytes, "work": work}


def _shares(step: TimedStep, comm: Communicator, seed: int) -> tuple[list[Any], list[Any]]:
    """Return the samples of all ranks, and this rank's slice of them."""
    import tensorflow as tf

    drawn = step.samples(comm.size * step.batch_per_rank, seed)
    mine = slice(comm.rank * step.batch_per_rank, (comm.rank + 1) * step.batch_per_rank)
    return [tf.constant(each) for each in drawn], [tf.constant(each[mine]) for each in drawn]


def equal_work(
    step: TimedStep, own: StepWorker, shared: StepWorker, comm: Communicator
) -> tuple[float, float | None]:
    """Show that a step on ranks is the step of one process, before anything is timed; collective.

    Each rank takes its slice, the process the whole; both must lead to the same weights, all ranks
    to the same bits. Batch normalisation forbids it: each rank normalises over its slice. A net
    that fails and has a "gamma", as Keras names it, must pass where all ranks hold equal samples.
    """
    whole, mine = _shares(step, comm, seed=0)
    difference = _apart(step.name, own, shared, (whole, mine), comm)
    normalises = any(each.name == "gamma" for _, several in own.optimizers for each in several)
    equal, worst = None, difference
    if difference > ROUNDING and normalises:
        same = [each[: step.batch_per_rank] for each in whole]
        pair = step.build(SingleProcess()), step.build(comm)
        equal = worst = _apart(step.name, *pair, (same, same), comm)
    with comm.agree_or_raise():
        must = "lead to the weights of one process with the same samples"
        then = f"The update differs by {100 * worst:.3g} %."
        require(worst <= ROUNDING, "step", must, f"others for {step.name}", then)
    _alike(shared, comm, "after a step with different samples on each rank")
    return difference, equal


def _apart(
    name: str, own: StepWorker, shared: StepWorker, samples: Sequence[Any], comm: Communicator
) -> float:
    """Make a step of a worker by itself and one among all; return how far apart they end."""
    for each in (own, shared):
        _alike(each, comm, "before the first step")
    first = _flat(own)
    with comm.agree_or_raise():
        require(np.array_equal(first, _flat(shared)), "build", "give the same initial weights",
                f"others for all ranks of {name}")  # fmt: skip
    own.step(*samples[0])
    shared.step(*samples[1])
    moved = float(np.linalg.norm(_flat(own) - first))
    with comm.agree_or_raise():
        require(moved > 0, "step", "change the weights", f"none of {name}")
    mine = float(np.linalg.norm(_flat(own) - _flat(shared))) / moved
    return max(map(float, comm.allgather(repr(mine))))


def _flat(worker: StepWorker) -> np.ndarray:
    return np.concatenate([np.ravel(each).astype(np.float64) for each in worker.weights()])


def _alike(worker: StepWorker, comm: Communicator, when: str) -> None:
    everyone = comm.allgather(measuring.digest_of(worker.weights()))
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


def step_of(net: str, batch: int, seed: int = 0) -> TimedStep:
    """Give a named net's step with random images and plain SGD."""
    return TimedStep(net, batch, partial(_worker, net, seed), partial(_images, net))


def _worker(net: str, seed: int, comm: Communicator) -> StepWorker:
    import keras

    model = models.build(net, seed=seed, dropout=0.0)
    return classifier_worker(model, keras.optimizers.SGD(RATE), comm)


def _images(net: str, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return random_images(models.build(net, dropout=0.0), samples, seed)


def _asynchronous_on_rank(net: str, batch: int, steps: int) -> dict[str, Any]:
    """Train with one server, the last rank, and measure the parts first; collective."""
    from mpi4py import MPI

    from dlcourse.parallel import parameter_server

    comm = sleeping(MPI.COMM_WORLD)
    serves = comm.rank == comm.size - 1
    gradient, weights = _gradient(net, batch)
    updates: list[float] = []

    def update(part: np.ndarray, mean: np.ndarray) -> None:
        start = perf_counter()
        part -= RATE * mean
        updates.append(perf_counter() - start)

    gradient(weights, comm.rank, 0)
    comm.Barrier()
    compute: list[float] = []
    while not serves and len(compute) < steps:
        start = perf_counter()
        gradient(weights, comm.rank, 0)
        compute.append(perf_counter() - start)
    comm.Barrier()
    still = np.zeros_like(weights)
    # the first worker exchanges by itself; the others send once
    few = [steps] + [1] * (comm.size - 2)
    calm = parameter_server.train(
        comm, weights, lambda *_: (still.copy(), batch), few, update, "asynchronous"
    )[1]
    travel = calm.waited_s / steps if comm.rank == 0 else None
    updates.clear()
    comm.Barrier()
    record = parameter_server.train(comm, weights, gradient, steps, update, "asynchronous")[1]
    return {
        "compute": compute,  # on workers: times of a gradient with all workers busy (s)
        "travel": travel,  # on rank 0: an exchange with an idle server (s)
        "update": float(np.median(updates)) if updates else None,  # on the server (s)
        "seconds": record.seconds,
        "updates": record.updates,
        "staleness": float(np.mean(record.staleness)) if record.staleness else None,
    }


def _gradient(net: str, batch: int) -> tuple[Callable[..., Any], np.ndarray]:
    """Give the gradient as a function of flat weights, and the first weights."""
    import tensorflow as tf

    model = models.build(net, seed=0, dropout=0.0)
    variables = model.trainable_variables
    sizes = [int(np.prod(each.shape)) for each in variables]
    images, labels = map(tf.constant, random_images(model, batch, seed=0))

    @tf.function(autograph=False)
    def flat(weights: Any) -> Any:
        parts = tf.split(weights, sizes)
        for variable, part in zip(variables, parts, strict=True):
            variable.value.assign(tf.reshape(part, variable.shape))
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(each)
        found = tape.gradient(loss, [each.value for each in variables])
        return tf.concat([tf.reshape(each, [-1]) for each in found], 0)

    weights = np.concatenate([np.ravel(each.numpy()) for each in variables])
    return (lambda current, worker, step: (flat(current).numpy(), batch)), weights
