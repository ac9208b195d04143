"""What one rank does in `bench.scaling`: the parts of a step in turns, and the step itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from dlguide.bench.patient import patient

# The parts that are measured in turns: one rank by itself, all ranks without exchange at the
# same time, the update alone, update with exchange, and the real step.
PARTS = ("alone", "together", "update", "exchange", "step")
RATE = 1e-3  # of SGD: speed does not depend on it, the weights must stay finite


def synchronous(
    net: str, batch: int, alone_batch: int, steps: int, rounds: int, seed: int
) -> dict[str, list[float]]:
    """Measure on all ranks, in rounds, so that a disturbance hits all parts alike; collective.

    Args:
        net: one of `nets.classifier_names()`.
        batch: images of each rank and step (count).
        alone_batch: images of the step of one rank by itself (count).
        steps: of each part and round that count; one more goes before them (count).
        rounds: how often each part has its turn (count).
        seed: of weights and images.

    Returns:
        dict: for each of `PARTS` the times on this rank (s); `alone` on rank 0 only.
    """
    from mpi4py import MPI

    comm = patient(MPI.COMM_WORLD)
    calls = _calls(net, batch, alone_batch, seed)
    found: dict[str, list[float]] = {part: [] for part in PARTS}

    def once(part: str) -> float:
        if part in ("update", "exchange"):
            # as in a step: after a computation, which leaves other data in the caches
            calls["together"]()
        if part in ("together", "update", "exchange"):
            MPI.COMM_WORLD.Barrier()
        return _timed(calls[part])

    for part in PARTS:
        once(part)  # traces, and makes the ranks agree on what they exchange
    comm.Barrier()
    for _ in range(rounds):
        for part in PARTS:
            if part != "alone" or comm.rank == 0:
                found[part] += [once(part) for _ in range(steps + 1)][1:]
            comm.Barrier()
    return found


def _timed(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _calls(net: str, batch: int, alone_batch: int, seed: int) -> dict[str, Callable[[], Any]]:
    """Compile the parts; each waits until it is really done."""
    import tensorflow as tf

    from dlguide import nets
    from dlguide.training.ranks import Alone, Ranks
    from dlguide.training.steps import train_step

    random = np.random.default_rng(seed)

    def made(ranks: Alone) -> tuple[Any, Any]:
        import keras

        model = nets.build(net, seed=seed, dropout=0.0)
        rule = ranks.distribute(keras.optimizers.SGD(RATE))
        rule.build(model.trainable_variables)
        return model, rule

    def step(model: Any, rule: Any, ranks: int, images: int) -> Callable[[], Any]:
        shape, classes = model.input_shape[1:], model.output_shape[-1]
        inputs = tf.constant(random.random((images, *shape), np.float32))
        labels = tf.constant(random.integers(0, classes, images), tf.int32)
        one, scale = train_step(model, rule, ranks), tf.constant(1 / (ranks * images))
        return lambda: float(one(inputs, labels, scale))

    def update(model: Any, rule: Any) -> Callable[[], Any]:
        gradients = [tf.zeros_like(each.value) for each in model.trainable_variables]

        @tf.function(autograph=False)
        def applied() -> Any:
            rule.apply([tf.identity(each) for each in gradients], model.trainable_variables)
            return tf.constant(0.0)

        return lambda: float(applied())

    many = Ranks()
    own, shared = made(Alone()), made(many)
    return {
        "alone": step(*own, 1, alone_batch),
        "together": step(*own, 1, batch),
        "update": update(*own),
        "exchange": update(*shared),
        "step": step(*shared, many.ranks, batch),
    }


def asynchronous(net: str, batch: int, steps: int, seed: int) -> dict[str, Any]:
    """Train with one server, the last rank, and measure the parts first; collective.

    Args:
        net: one of `nets.classifier_names()`.
        batch: images of each worker and step (count).
        steps: of each worker (count).
        seed: of weights and images.

    Returns:
        dict: on workers `compute` (times of a gradient with all workers busy, s) and `travel`
            (one worker's exchanges with an idle server, s), on the server `update` (s); on all
            the `seconds`, `updates` and mean `staleness` of the training.
    """
    from mpi4py import MPI

    from dlguide.parallel import server

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
    calm = server.train(
        comm, weights, lambda *_: (still.copy(), batch), few, update, "asynchronous"
    )[1]
    travel = calm.waited_s / steps if comm.rank == 0 else None
    updates.clear()
    comm.Barrier()
    record = server.train(comm, weights, gradient, steps, update, "asynchronous")[1]
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

    from dlguide import nets

    model = nets.build(net, seed=seed, dropout=0.0)
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
