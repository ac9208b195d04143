"""What the tests of dlguide.horovod run on every rank: small problems with different data.

The oracle of the optimizers is one process with a plain Keras optimizer and the global batch:
every rank computes it for itself, without communication.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import dlguide.horovod as hvd

ROWS, INPUTS, OUTPUTS = 6, 5, 3


def samples(rank: int, step: int, dtype: str, rows: int = ROWS) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the samples of one rank in one step; no two ranks and steps have the same."""
    random = np.random.default_rng(1000 * rank + step)
    x, y = random.normal(size=(rows, INPUTS)), random.normal(size=(rows, OUTPUTS))
    return tf.constant(x.astype(dtype)), tf.constant(y.astype(dtype))


def all_samples(step: int, dtype: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the global batch: the samples of all ranks."""
    parts = [samples(rank, step, dtype) for rank in range(hvd.size())]
    return tf.concat([x for x, _ in parts], 0), tf.concat([y for _, y in parts], 0)


def weights(dtype: str, seed: int = 7) -> list[keras.Variable]:
    """Return a matrix and a bias."""
    random = np.random.default_rng(seed)
    shapes = (INPUTS, OUTPUTS), (OUTPUTS,)
    return [keras.Variable(random.normal(size=shape), dtype=dtype) for shape in shapes]


def loss_of(variables, x, y):
    """Mean over samples, so that the mean of the ranks' gradients is the global gradient."""
    return tf.reduce_mean((tf.tanh(x @ variables[0].value + variables[1].value) - y) ** 2)


def train(optimizer, data, steps: int, dtype: str, graph: bool) -> np.ndarray:
    """Train from the same start and return all weights in one row."""
    variables = weights(dtype)
    optimizer.build(variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_of(variables, x, y))
        grads = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    run = tf.function(step) if graph else step
    for i in range(steps):
        run(*data(i))
    optimizer.finalize_variable_values(variables)
    return np.concatenate([np.asarray(v).ravel() for v in variables]).astype(np.float64)


def compare(make, wrap=None, make_serial=None, steps=6, dtype="float64", graph=False) -> dict:
    """Train on ranks and in one process; return how far apart, and the spread over the ranks."""
    wrap = wrap or hvd.DistributedOptimizer
    serial = (make_serial or make)()
    serial = train(serial, lambda i: all_samples(i, dtype), steps, dtype, graph)
    mine = train(wrap(make()), lambda i: samples(hvd.rank(), i, dtype), steps, dtype, graph)
    start = np.concatenate([np.asarray(v).ravel() for v in weights(dtype)])
    everyone = hvd.allgather(mine[None], name="weights").numpy()
    return {
        "error": float(np.abs(mine - serial).max() / np.abs(serial).max()),
        "spread": float(np.abs(everyone - everyone[0]).max()),
        "moved": float(np.abs(serial - start).max()),
    }


def names_of_operators(function) -> list[str]:
    """Return the names of Horovod's operators in a traced function and all it calls."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return sorted(node.name for node in nodes if node.op.startswith("Horovod"))


def error_of(call) -> str:
    """Return what a call complains about."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
