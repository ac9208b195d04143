"""Compare inference in 8-bit integers with float32, on ResNet-50 and on the MNIST network.

    python tests/benchmarks/int8_against_float32.py
    python tests/benchmarks/int8_against_float32.py --batch 8 --turns 21

Both run in onnxruntime with the same threads and the same images, turn by turn; the ratio is of
the medians, with the range of the quartiles (goal: 1.5 for ResNet-50 on a machine with VNNI,
accuracy loss at most 1 point on the trained MNIST network). Every way to write the 8-bit net is
tried: QDQ and QOperator, one scale a channel or a layer, 8 bits of the weights and 7. The end says
what the limit is: how much faster products alone are, and whether VNNI made them so.
"""

from __future__ import annotations

import argparse
import tempfile

import keras
import numpy as np

from dlguide import models
from dlguide.data import datasets
from dlguide.machine import describe, precision

WAYS = {
    "QDQ, a scale a channel": {},
    "QDQ, a scale a layer": {"per_channel": False},
    "QOperator": {"form": "QOperator"},
    "QDQ, weights of 7 bits": {"weight_bits": 7},
}


def main() -> None:
    """Print one line for each net, way and batch, then the limit."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batch", type=int, default=4, help="images of ResNet-50 at once")
    options.add_argument("--turns", type=int, default=11, help="turns of each")
    chosen = options.parse_args()
    print(describe().summary())
    with tempfile.TemporaryDirectory() as folder:
        resnet(folder, chosen.batch, chosen.turns)
        mnist(folder, chosen.turns)
    print(precision.vnni_evidence(precision.measure_onednn(("AVX512_CORE", "DEFAULT"))).summary())


def resnet(folder: str, batch: int, turns: int) -> None:
    """Compare on ResNet-50 with random weights: speed, and how far outputs lie apart."""
    model = models.build("resnet50", seed=0)
    images = np.random.default_rng(0).random((8 + batch, *model.input_shape[1:]), "float32")
    for name, way in WAYS.items():
        quantised = precision.quantise(model, images[:8], folder, **way)
        found = precision.compare(quantised, images[8:], turns)
        line(f"ResNet-50, {batch} images, {name}", found)
    for label, path in (("float32", quantised.float32_path), ("int8", quantised.path)):
        kinds = precision.operators(path, images[8:])
        shown = [f"{count} {kind} {seconds:.4f} s" for kind, (count, seconds) in kinds.items()]
        print(f"    {label}: {', '.join(shown)}")


def mnist(folder: str, turns: int) -> None:
    """Compare on the MNIST network after one epoch: accuracy, and speed for several batches."""
    data = datasets.load()
    model = models.build("mnist_cnn", seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.0015), loss, jit_compile=False)
    model.fit(data.train_images, data.train_labels, batch_size=100, epochs=1, verbose=0)
    quantised = precision.quantise(model, data.train_images[:200], folder)
    right = [
        100 * float(np.mean(precision.infer(path, data.test_images).argmax(1) == data.test_labels))
        for path in (quantised.float32_path, quantised.path)
    ]
    print(f"MNIST accuracy: float32 {right[0]:.2f} %, int8 {right[1]:.2f} % (goal: 1 point)")
    print(f"    files: {quantised.float32_nbytes} and {quantised.nbytes} bytes")
    for batch in (1, 10, 100, 1000):
        found = precision.compare(quantised, data.test_images[:batch], 3 * turns)
        line(f"MNIST network, {batch} images", found)


def line(title: str, found: precision.Int8Comparison) -> None:
    """Print one comparison."""
    rates = [found.batch / each.median for each in (found.float32, found.int8)]
    print(
        f"{title}: float32 {rates[0]:.0f}, int8 {rates[1]:.0f} images/s with {found.threads} "
        f"threads; {found.speed_up} times; outputs {found.distance:.1%} apart",
        flush=True,
    )


if __name__ == "__main__":
    main()
