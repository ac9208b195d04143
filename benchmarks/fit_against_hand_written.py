"""Compare `training.fit` with the shortest Horovod loop one can write by hand.

Run it on ranks, with nothing else on the machine:

    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 \
        mpiexec -n 2 python benchmarks/fit_against_hand_written.py

Both train the same net from the same weights on the same batches in the same order. First it is
asserted that they end with the same weights; then they take turns. Printed is the throughput of
`fit` over the other, from the median step of each turn.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import horovod.tensorflow as native
import keras
import numpy as np
import tensorflow as tf
from report import compare

import dlguide.horovod as hvd
from dlguide import measure, models
from dlguide.data import datasets
from dlguide.measure import Timing
from dlguide.training import FitConfig, connect, fit

RATE, SEED = 0.01, 0


def hand_written(data, batch, seconds):
    """The loop of a first Horovod script: Horovod's own allreduce, nothing checked or reported."""
    rank, ranks = native.rank(), native.size()
    model = models.build("mnist_cnn", SEED, dropout=0.0)
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    optimizer.build(model.trainable_variables)
    native.broadcast_variables([v.value for v in model.variables], root_rank=0)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = native.grouped_allreduce(gradients)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    parts = datasets.epoch_batches(len(data.train_labels), batch, rank, ranks, seed=SEED)
    begin = perf_counter()
    for part in parts:
        step(data.train_images[part.indices], data.train_labels[part.indices])
        end = perf_counter()
        seconds.append(end - begin)
        begin = end
    return model


def with_fit(data, batch, seconds):
    """The same by `training.fit`."""
    built = []

    def net():
        built.append(models.build("mnist_cnn", SEED, dropout=0.0))
        return built[0]

    run = fit(
        net,
        data,
        batch_per_rank=batch,
        optimizer=lambda: keras.optimizers.SGD(RATE, momentum=0.9),
        comm=connect(True, "horovod"),  # both by the same exchange
        config=FitConfig(seed=SEED, evaluate=False),
    )
    seconds.extend(run.step_s)
    return built[0]


def main() -> None:
    """Print both medians and their ratio."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batch", type=int, default=100, help="images per rank and step")
    options.add_argument("--steps", type=int, default=60, help="steps of one turn")
    options.add_argument("--turns", type=int, default=5, help="turns of each, interleaved")
    chosen = options.parse_args()

    hvd.init()
    # Divisible, so that the mean of the ranks' means, which the hand-written loop takes, is right.
    data = datasets.load("mnist").first(chosen.batch * chosen.steps * hvd.size())
    ways = {"hand-written": hand_written, "training.fit": with_fit}
    medians = {name: [] for name in ways}
    steps = {name: [] for name in ways}
    for turn in range(chosen.turns + 1):  # the first warms up, and shows that the work is equal
        weights = {}
        for name, way in ways.items():
            seconds = []
            weights[name] = way(data, chosen.batch, seconds).trainable_weights
            if turn:
                # The first steps trace; on the slowest rank, as all wait for it.
                here = np.asarray(seconds[measure.training_result.WARMUP_STEPS :])
                slowest = hvd.allreduce(here, op=hvd.Max, name="seconds").numpy()
                medians[name].append(float(np.median(slowest)))
                steps[name].extend(slowest.tolist())
        for ours, theirs in zip(*weights.values(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)

    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, batch {chosen.batch}: weights are equal after all turns")
        for name in ways:
            speed = hvd.size() * chosen.batch / float(np.median(steps[name]))
            print(f"{name:>13}: a step takes {Timing(tuple(steps[name]))}, {speed:.0f} images/s")
        compare("throughput of `fit` / hand-written", *list(medians.values())[::-1], least=0.98)


if __name__ == "__main__":
    main()
