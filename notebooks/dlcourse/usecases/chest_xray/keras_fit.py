"""Keras' `fit` and a loop written by hand: the same steps, timed in turns.

The guide measured 85 s per epoch with Keras and 18 s with TensorFlow, and does not say how either
was fed. Four variants of the same steps, with equal weights after them:

    loop            our compiled step, fed from TFRecords by tf.data
    fit             Keras' `fit`, fed in the same way
    fit, eager      `run_eagerly=True`: every operation by itself, as in debugging
    fit, Python     `fit` fed by a Python class whose one thread decodes the PNG files
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dlcourse.usecases.chest_xray import model as nets
from dlcourse.usecases.chest_xray.data import read
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.chest_xray.training import RATE, class_weights, label_step, weighted_loss
from dlguide import measure
from dlguide.data import formats
from dlguide.errors import require, require_count
from dlguide.measure import Ratio, Timing

if TYPE_CHECKING:
    import keras

LOOP = "loop"
VARIANTS = (LOOP, "fit", "fit, eager", "fit, Python")
# The weights after an epoch are equal apart from the order of a few sums in single precision.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class KerasTimings:
    """Times of an epoch with each variant.

    Args:
        times: name of a variant -> its epochs (s).
        steps: of an epoch (count).
        global_batch: radiographs of a step (count).
        weight_difference: largest difference of a weight from the loop's after an epoch, as a
            share of the largest change of a weight.
    """

    times: dict[str, Timing]
    steps: int
    global_batch: int
    weight_difference: float

    @property
    def others(self) -> tuple[str, ...]:
        """All variants but the loop."""
        return tuple(name for name in self.times if name != LOOP)

    def ratio(self, name: str) -> Ratio:
        """The time of a variant over the loop's; prints as number and range of the quartiles."""
        return measure.ratio(self.times[name], self.times[LOOP])

    def overhead_s(self, name: str) -> float:
        """The additional time per step of a variant: difference of the medians (s)."""
        return (self.times[name].median - self.times[LOOP].median) / self.steps


def time_keras_fit(
    packed: str | os.PathLike,
    global_batch: int = 32,
    variants: tuple[str, ...] = VARIANTS,
    repeats: int = 5,
    net: str = nets.SMALL,
    seed: int = 0,
) -> KerasTimings:
    """Time epochs of `fit` and of the loop in turns, after a check that they do the same.

    Args:
        packed: folder of a packed collection.
        global_batch: radiographs of a step (count).
        variants: some of `VARIANTS`, the loop among them.
        repeats: timed epochs of each variant, after one that is not timed (count).
        net: one of `NETS`.
        seed: of the initial weights.

    Raises:
        ValueError: if a variant is unknown, or its weights are not those of the loop.
    """
    known = set(variants) <= set(VARIANTS) and LOOP in variants
    must = f"be some of {', '.join(VARIANTS)}, the loop among them"
    require(known, "variants", must, variants)
    require_count(repeats, "repeats", least=2)
    labels = read(packed).train.labels
    with formats.open(os.path.join(packed, "train")) as records:
        image = Image.open(io.BytesIO(records[0].data)).height
    runs: dict[str, tuple[Any, Callable[[], None]]] = {}
    for name in variants:
        model = nets.build(net, image, seed=seed)
        runs[name] = model, _epoch(name, model, labels, global_batch, packed)
    before = _weights(model)
    for _, epoch in runs.values():
        epoch()  # the first one traces, and all must come to the same weights
    loop = _weights(runs[LOOP][0])
    changed = max(np.abs(one - was).max() for one, was in zip(loop, before, strict=True))
    difference = max(
        float(np.abs(one - other).max() / changed)
        for model, _ in runs.values()
        for one, other in zip(_weights(model), loop, strict=True)
    )
    must = f"come to the weights of the loop, up to {_TOLERANCE:g} of what an epoch changes"
    require(difference <= _TOLERANCE, "variants", must, f"{difference:.2g}")
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, (_, epoch) in runs.items():
            start = perf_counter()
            epoch()
            seconds[name].append(perf_counter() - start)
    times = {name: Timing(tuple(each)) for name, each in seconds.items()}
    return KerasTimings(times, -(-len(labels) // global_batch), global_batch, difference)


def _weights(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(each).copy() for each in model.trainable_weights]


def _epoch(
    name: str, model: keras.Model, labels: np.ndarray, batch: int, packed: str | os.PathLike
) -> Callable[[], None]:
    """Return a function that takes an epoch's steps, always in the order of the records."""
    from dlguide.training.optimizers import MomentumSGD

    weights = class_weights(labels)
    optimizer = MomentumSGD(RATE / 10, weight_decay=None)
    records = _records(packed, model.name, batch)
    if name == LOOP:
        optimizer.build(model.trainable_variables)
        compiled = label_step(model, optimizer, 1, weights)

        def epoch() -> None:
            for images, truth in records:
                numbers = compiled(images, truth, 1 / len(truth))
            float(numbers[0])  # waits for the last step

        return epoch
    model.compile(
        optimizer,
        lambda truth, logits: weighted_loss(truth, logits, weights),
        jit_compile=False,
        run_eagerly=name == "fit, eager",
    )
    source = records if name != "fit, Python" else _decoding(packed, model.name, batch)

    def fitted() -> None:
        model.fit(source, shuffle=False, verbose=0)

    return fitted


def _records(packed: str | os.PathLike, net: str, batch: int) -> Any:
    """Read and decode TFRecords while the steps run, in the order in which they were written."""
    import tensorflow as tf

    known = {
        "data": tf.io.FixedLenFeature([], tf.string),
        "labels": tf.io.FixedLenFeature([len(FINDINGS)], tf.int64),
    }
    ready, channels = nets.normalisation(net), nets.channels(net)

    def parsed(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, known)
        image = ready.apply(tf.io.decode_png(found["data"], channels), None)
        return image, tf.cast(found["labels"], tf.int32)

    folder = Path(packed, "train")
    files = [str(folder / one.name) for one in formats.read_manifest(folder).of_role("data")]
    return tf.data.TFRecordDataset(files).map(parsed).batch(batch).prefetch(2)


def _decoding(packed: str | os.PathLike, net: str, batch: int) -> Any:
    """A data set for `fit` that decodes radiographs in Python, one batch ahead."""
    import keras

    with formats.open(os.path.join(packed, "train")) as records:
        samples = list(records)
    ready, channels = nets.normalisation(net), nets.channels(net)
    mean, deviation = (np.float32(each) for each in (ready.mean, ready.deviation))

    class Decoding(keras.utils.PyDataset):
        """One batch at a time, decoded by one thread."""

        def __len__(self) -> int:
            return -(-len(samples) // batch)

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
            part = samples[number * batch : (number + 1) * batch]
            pixels = [np.asarray(Image.open(io.BytesIO(one.data))) for one in part]
            images = np.stack(pixels)[..., None].astype(np.float32) / 255
            labels = np.array([one.labels for one in part], np.int32)
            return (images.repeat(channels, axis=-1) - mean) / deviation, labels

    return Decoding()
