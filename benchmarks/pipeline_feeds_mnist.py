"""Measure how long the training step of the MNIST CNN waits for its input pipeline.

Run it on ranks, with nothing else on the machine:

    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 \
        mpiexec -n 2 python benchmarks/pipeline_feeds_mnist.py

Waiting is the part of a step before its batch is there (`TrainingResult.wait_s`), over the whole
step, on the rank that waits longest, an epoch after the other. It is measured for arrays in memory,
and for PNG files in TFRecord that are decoded and augmented. The pipeline computes on the same
cores as the training: what that costs is its share of the limit, the speed of arrays without one.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile

import numpy as np
from PIL import Image
from report import report

from dlguide.data import datasets, formats
from dlguide.data import input_pipeline as ip
from dlguide.measure.training_result import WARMUP_STEPS
from dlguide.training import FitConfig, connect, fit


def written(data, path):
    """Write digits as PNG files in TFRecord."""
    with formats.create(path, "tfrecord", shard_samples=2000) as writer:
        for image, label in zip(data.train_images, data.train_labels, strict=True):
            file = io.BytesIO()
            Image.fromarray((image[..., 0] * 255).round().astype(np.uint8)).save(file, "png")
            writer.append(formats.Sample(file.getvalue(), (int(label),)))


def main() -> None:
    """Print one line for each way to feed the net."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batch", type=int, default=100, help="images per rank and step")
    options.add_argument("--steps", type=int, default=40, help="steps of an epoch")
    options.add_argument("--epochs", type=int, default=5)
    chosen = options.parse_args()

    comm = connect(True)
    data = datasets.load("mnist").first(chosen.batch * chosen.steps * comm.size, 10)
    folder = tempfile.mkdtemp()
    written(data, f"{folder}/digits")
    stored = ip.Pipeline(f"{folder}/digits", chosen.batch, channels=1)
    small = (ip.PaddedCrop(28, 28, 2),)
    ways = {
        "arrays, no pipeline": data,
        "arrays": ip.Pipeline(data, chosen.batch),
        "PNG": stored,
        "PNG, cropped": stored.replace(augment=small),
        "PNG decoded once, cropped": stored.replace(augment=small, cache="decoded"),
    }
    first = None
    for name, source in ways.items():
        run = fit(
            "mnist_cnn", source, epochs=chosen.epochs, batch_per_rank=chosen.batch,
            comm=comm, config=FitConfig(evaluate=False), on_result=lambda **numbers: None,
        )  # fmt: skip
        parts, seconds = [], []
        for epoch in range(chosen.epochs):
            steps = slice(epoch * chosen.steps + WARMUP_STEPS, (epoch + 1) * chosen.steps)
            parts.append(sum(run.wait_s[steps]) / sum(run.step_s[steps]))
            seconds.append(sum(run.step_s[steps]))
        everyone = comm.allgather_bytes(np.array(parts).tobytes())
        longest = np.max([np.frombuffer(each) for each in everyone], axis=0)
        first = run.images_per_s if first is None else first
        if comm.rank == 0:
            what, share = f"share of a step waiting for {name}", run.images_per_s / first
            report(what, longest, most=0.05, share=share, seconds=[seconds])
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
