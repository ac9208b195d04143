"""What one rank does in `bench.scaling`: the step of a named net, and training with a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from dlguide.bench import parts
from dlguide.bench.patient import patient
from dlguide.collectives.communicator import Communicator

RATE = 1e-3  # of SGD: speed does not depend on it, the weights must stay finite


def synchronous(
    net: str, batch: int, alone_batch: int, steps: int, rounds: int, seed: int
) -> dict[str, list[float]]:
    """Measure on all ranks, in rounds, so that a disturbance hits all parts alike; collective.

    Args:
        net: one of `models.names("digits", "classifier")`.
        batch: images of each rank and step (count).
        alone_batch: images of the step of one rank by itself (count).
        steps: of each part and round that count; one more goes before them (count).
        rounds: how often each part has its turn (count).
        seed: of weights and images.

    Returns:
        dict: for each of `parts.PARTS` the times on this rank (s); `alone` on rank 0 only.
    """
    found = parts.measured(step_of(net, batch, seed), alone_batch, steps, rounds, seed)
    return {part: found[part] for part in parts.PARTS}


def step_of(net: str, batch: int, seed: int = 0) -> parts.Step:
    """Give a named net's step with random images and plain SGD."""
    return parts.Step(net, batch, partial(_worker, net, seed), partial(_images, net))


def _worker(net: str, seed: int, comm: Communicator) -> parts.Worker:
    import keras

    from dlguide import models

    model = models.build(net, seed=seed, dropout=0.0)
    return parts.classifier(model, keras.optimizers.SGD(RATE), comm)


def _images(net: str, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from dlguide import models

    random = np.random.default_rng(seed)
    model = models.build(net, dropout=0.0)
    shape, classes = model.input_shape[1:], model.output_shape[-1]
    labels = random.integers(0, classes, samples).astype(np.int32)
    return random.random((samples, *shape), np.float32), labels


def _timed(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def asynchronous(net: str, batch: int, steps: int, seed: int) -> dict[str, Any]:
    """Train with one server, the last rank, and measure the parts first; collective.

    Args:
        net: one of `models.names("digits", "classifier")`.
        batch: images of each worker and step (count).
        steps: of each worker (count).
        seed: of weights and images.

    Returns:
        dict: on workers `compute` (times of a gradient with all workers busy, s) and `travel`
            (one worker's exchanges with an idle server, s), on the server `update` (s); on all
            the `seconds`, `updates` and mean `staleness` of the training.
    """
    from mpi4py import MPI

    from dlguide.parallel import parameter_server

    comm = patient(MPI.COMM_WORLD)
    serves = comm.rank == comm.size - 1
    gradient, weights = _gradient(net, batch, seed)
    updates: list[float] = []

    def update(part: np.ndarray, mean: np.ndarray) -> None:
        start = perf_counter()
        part -= RATE * mean
        updates.append(perf_counter() - start)

    gradient(weights, comm.rank, 0)
    comm.Barrier()
    compute = [] if serves else [_timed(lambda: gradient(weights, 0, 0)) for _ in range(steps)]
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
        "compute": compute,
        "travel": travel,
        "update": float(np.median(updates)) if updates else None,
        "seconds": record.seconds,
        "updates": record.updates,
        "staleness": float(np.mean(record.staleness)) if record.staleness else None,
    }


def _gradient(net: str, batch: int, seed: int) -> tuple[Callable[..., Any], np.ndarray]:
    """Give the gradient as a function of flat weights, and the first weights."""
    import tensorflow as tf

    from dlguide import models

    model = models.build(net, seed=seed, dropout=0.0)
    variables = model.trainable_variables
    sizes = [int(np.prod(each.shape)) for each in variables]
    random = np.random.default_rng(seed)
    shape, classes = model.input_shape[1:], model.output_shape[-1]
    images = tf.constant(random.random((batch, *shape), np.float32))
    labels = tf.constant(random.integers(0, classes, batch), tf.int32)

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
