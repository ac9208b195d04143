"""Compare ways to send less: bytes on the wire beside the accuracy that they leave.

    python benchmarks/compression_accuracy.py
    python benchmarks/compression_accuracy.py --samples 10000 --epochs 1 --only none top_k

All train the MNIST network on the same ranks, samples, epochs, seed and learning rate; only what
travels between the ranks differs. Printed: test accuracy and its distance from the uncompressed
one (goal: at most 0.5 points), bytes a step that one rank hands over, predicted and counted, and
images/s. Arrays below `--small` numbers go whole: here those are the biases. Local SGD and block
momentum synchronise every 16 steps; their bytes are spread over the steps. With one seed,
differences of a few tenths of a point may be chance: `--seeds` takes more.
"""

from __future__ import annotations

import argparse
import math
from functools import partial

from dlguide import models, training
from dlguide.cluster import Cluster
from dlguide.machine import describe, threads
from dlguide.parallel import compression, local_sgd

EVERY_STEPS = 16


def main() -> None:
    """Print one line for each way as soon as it is known."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--samples", type=int, default=60000, help="training images an epoch")
    options.add_argument("--epochs", type=int, default=2, help="epochs")
    options.add_argument("--batch", type=int, default=100, help="images per rank and step")
    options.add_argument("--ranks", type=int, default=2, help="ranks")
    options.add_argument("--optimizer", default="sgd", help="sgd or adam")
    options.add_argument("--seeds", type=int, default=1, help="seeds, of which the mean is told")
    options.add_argument("--first-seed", type=int, default=0, help="the first of the seeds")
    options.add_argument("--small", type=int, default=256, help="numbers below which none is cut")
    options.add_argument("--only", nargs="*", help="names of ways")
    chosen = options.parse_args()
    ways = {
        "none": compression.none(),
        "fp16": compression.fp16(),
        "bf16": compression.bf16(),
        "top_k 1 %": compression.top_k(0.01, small=chosen.small),
        "one_bit": compression.one_bit(small=chosen.small),
        "power_sgd 4": compression.power_sgd(4, small=chosen.small),
        "averaging": local_sgd.LocalSGD(),
        "block momentum": local_sgd.BlockMomentum(1 - 1 / chosen.ranks),
    }
    if chosen.only:
        ways = {name: way for name, way in ways.items() if name.split()[0] in chosen.only}
    shapes = models.build("mnist_cnn").trainable_variables
    print(
        f"{'way':16}{'accuracy':>10}{'points':>8}{'predicted':>11}{'counted':>11}{'images/s':>10}"
    )
    plain = None
    with Cluster(threads.plan(describe(), ranks=chosen.ranks), magics=False) as cluster:
        for name, way in ways.items():
            seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
            found = [_train(cluster, way, seed, chosen) for seed in seeds]
            accuracy, counted, images_per_s = (
                sum(x) / len(found) for x in zip(*found, strict=True)
            )
            plain = accuracy if plain is None else plain
            print(
                f"{name:16}{accuracy:10.2%}{100 * (accuracy - plain):8.2f}"
                f"{_predicted(way, shapes, chosen):11.0f}{counted:11.0f}{images_per_s:10.0f}",
                flush=True,
            )


def _predicted(way: object, shapes: list, chosen: argparse.Namespace) -> float:
    if isinstance(way, local_sgd.LocalSGD):
        steps = chosen.epochs * math.ceil(chosen.samples / (chosen.batch * chosen.ranks))
        return way.nbytes(shapes, chosen.ranks) * math.ceil(steps / EVERY_STEPS) / steps
    return way.step_nbytes(shapes, chosen.ranks)


def _train(
    cluster: Cluster, way: object, seed: int, chosen: argparse.Namespace
) -> tuple[float, float, float]:
    """Give accuracy, bytes a step, and images/s."""
    same = {"epochs": chosen.epochs, "optimizer": chosen.optimizer, "batch_per_rank": chosen.batch}
    own = {"samples": chosen.samples, "seed": seed}
    if isinstance(way, local_sgd.LocalSGD):
        # without this module on the ranks' path, the function must travel with its names
        return cluster.run(partial(_apart, way, EVERY_STEPS), **same, **own)[0]
    run = cluster.run(training.fit, **same, config=training.FitConfig(compression=way, **own))[0]
    return run.test_accuracy[-1], run.sent_nbytes / len(run.step_s), run.images_per_s


def _apart(way, every_steps, epochs, batch_per_rank, samples, seed, optimizer):
    """Train as `fit` does, but each rank by itself between synchronisations."""
    from time import perf_counter

    import numpy as np
    from mpi4py import MPI

    from dlguide import measure, models
    from dlguide.data import datasets
    from dlguide.parallel import local_sgd
    from dlguide.training import connect
    from dlguide.training.config import make_optimizer
    from dlguide.training.feed import iter_batches
    from dlguide.training.step import evaluator, train_step
    from dlguide.training.virtual_workers import reseed_dropout

    comm, data = MPI.COMM_WORLD, datasets.load("mnist").first(samples)
    model = models.build("mnist_cnn", seed)
    rule = make_optimizer(optimizer)
    rule.build(model.trainable_variables)
    meet = local_sgd.ModelSynchroniser(way, comm, every_steps, model)
    meet.begin()
    alone = train_step(model, rule)

    # the loss of a rank's own batch: `fit` divides by the global batch and sums the gradients
    def step(x, y, scale):
        result = alone(x, y, scale * comm.size)
        meet.after_step()
        return result

    step_s, images = [], []
    for epoch in range(epochs):
        parts = datasets.epoch_batches(
            len(data.train_labels), batch_per_rank, comm.rank, comm.size, epoch, seed, True
        )
        reseed_dropout(model, seed, comm.rank, epoch * len(parts))
        for part, batch in zip(parts, iter_batches(data, parts), strict=True):
            begin = perf_counter()
            np.asarray(step(*batch))
            step_s.append(perf_counter() - begin)
            images.append(part.global_size)
    meet.finish()
    accuracy = evaluator(model, data, connect())()["accuracy"]
    # one step in so many has a meeting: the mean over all tells what the median would hide
    warm = measure.training_result.WARMUP_STEPS
    images_per_s = sum(images[warm:]) / sum(step_s[warm:])
    return accuracy, meet.sent / len(step_s), images_per_s


if __name__ == "__main__":
    main()
