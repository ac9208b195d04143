"""Keras' `fit` against a loop of one's own: the same steps, timed in turns.

The guide measured 85 s an epoch with Keras and 18 s with TensorFlow, and says of neither how it
was fed. Four ways to take the same steps, with equal weights behind the last one:

    loop            our compiled step, fed from TFRecords by tf.data beside it
    fit             Keras' `fit`, fed alike
    fit, eager      `run_eagerly=True`: every operation by itself, as when one looks for a fault
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

from dlcourse.usecases.chest_xray import net as nets
from dlcourse.usecases.chest_xray.collection import read
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.chest_xray.pretraining import RATE
from dlcourse.usecases.chest_xray.steps import balance, label_step, weighted_loss
from dlguide import measure
from dlguide.data import formats
from dlguide.errors import require, require_count
from dlguide.measure import Ratio, Timing

if TYPE_CHECKING:
    import keras

LOOP = "loop"
WAYS = (LOOP, "fit", "fit, eager", "fit, Python")
# Weights after an epoch are equal but for the order of a few sums in single precision.
ALIKE = 1e-3


@dataclass(frozen=True)
class Race:
    """Times of an epoch by each way.

    Args:
        times: of each way, name by name (s).
        steps: of an epoch (count).
        batch: radiographs of a step (count).
        apart: largest distance of a way's weights from the loop's after an epoch, over the
            largest change of a weight.
    """

    times: dict[str, Timing]
    steps: int
    batch: int
    apart: float

    @property
    def others(self) -> tuple[str, ...]:
        """All ways but the loop."""
        return tuple(name for name in self.times if name != LOOP)

    def ratio(self, name: str) -> Ratio:
        """How many times as long as the loop a way takes, with what the quartiles allow.

        Args:
            name: of the way.

        Returns:
            measure.Ratio: prints as number and range.
        """
        return measure.ratio(self.times[name], self.times[LOOP])

    def overhead_s(self, name: str) -> float:
        """What a way spends on a step beside what the loop does (s).

        Args:
            name: of the way.

        Returns:
            float: difference of the medians over the steps.
        """
        return (self.times[name].median - self.times[LOOP].median) / self.steps


def race(
    packed: str | os.PathLike,
    batch: int = 32,
    ways: tuple[str, ...] = WAYS,
    repeats: int = 5,
    net: str = nets.SMALL,
    seed: int = 0,
) -> Race:
    """Time epochs of `fit` and of the loop in turns, after showing that they do the same.

    Args:
        packed: folder of a packed collection.
        batch: radiographs of a step (count).
        ways: some of `WAYS`, the loop among them.
        repeats: epochs of each way that count; one more goes before them (count).
        net: one of `NETS`.
        seed: of the first weights.

    Returns:
        Race: times and how equal the weights were.

    Raises:
        ValueError: when a way is unknown, or its weights are not those of the loop.
    """
    known = set(ways) <= set(WAYS) and LOOP in ways
    require(known, "ways", f"be some of {', '.join(WAYS)}, the loop among them", ways)
    require_count(repeats, "repeats", least=2)
    collection = read(packed)
    image = _size(packed)
    begin: list[np.ndarray] = []
    runs: dict[str, tuple[Any, Callable[[], None]]] = {}
    for name in ways:
        model = nets.build(net, image, seed=seed)
        begin = [np.asarray(each).copy() for each in model.trainable_weights]
        runs[name] = model, _way(name, model, collection.train.labels, batch, packed)
    for _, epoch in runs.values():
        epoch()  # the first one traces, and shows that all do the same
    apart = max(_apart(model, runs[LOOP][0], begin) for model, _ in runs.values())
    must = f"come to the weights of the loop, up to {ALIKE:g} of what an epoch changes"
    require(apart <= ALIKE, "ways", must, f"{apart:.2g}")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (_, epoch) in runs.items():
            start = perf_counter()
            epoch()
            seconds[name].append(perf_counter() - start)
    steps = -(-len(collection.train) // batch)
    times = {name: Timing(tuple(each)) for name, each in seconds.items()}
    return Race(times, steps, batch, apart)


def _way(
    name: str, model: keras.Model, labels: np.ndarray, batch: int, packed: str | os.PathLike
) -> Callable[[], None]:
    """Give a function that takes an epoch's steps, always in the order of the records."""
    weights = balance(labels)
    from dlguide.training.optimizers import MomentumSGD

    rule = MomentumSGD(RATE / 10, weight_decay=None)
    records = _records(packed, model.name, batch)
    if name == LOOP:
        rule.build(model.trainable_variables)
        one = label_step(model, rule, 1, weights)

        def epoch() -> None:
            for images, truth in records:
                told = one(images, truth, 1 / len(truth))
            float(told[0])  # waits for the last step

        return epoch
    model.compile(
        rule,
        lambda truth, logits: weighted_loss(truth, logits, weights),
        jit_compile=False,
        run_eagerly=name == "fit, eager",
    )
    fed = records if name != "fit, Python" else _decoding(packed, model.name, batch)

    def fitted() -> None:
        model.fit(fed, shuffle=False, verbose=0)

    return fitted


def _records(packed: str | os.PathLike, net: str, batch: int) -> Any:
    """Read and decode TFRecords beside the steps, in the order in which they were written."""
    import tensorflow as tf

    known = {
        "data": tf.io.FixedLenFeature([], tf.string),
        "labels": tf.io.FixedLenFeature([len(FINDINGS)], tf.int64),
    }
    ready, channels = nets.normalised(net), nets.channels(net)

    def parsed(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, known)
        image = ready.apply(tf.io.decode_png(found["data"], channels), None)
        return image, tf.cast(found["labels"], tf.int32)

    folder = Path(packed, "train")
    files = [str(folder / one.name) for one in formats.read_manifest(folder).of_role("data")]
    return tf.data.TFRecordDataset(files).map(parsed).batch(batch).prefetch(2)


def _decoding(packed: str | os.PathLike, net: str, batch: int) -> Any:
    """Make a class for `fit` that decodes radiographs in Python; Keras asks a batch ahead."""
    import keras

    with formats.open(os.path.join(packed, "train")) as records:
        samples = list(records)
    ready, channels = nets.normalised(net), nets.channels(net)
    mean, deviation = (np.float32(each) for each in (ready.mean, ready.deviation))

    class Decoding(keras.utils.PyDataset):
        """A batch at a time, decoded by this thread."""

        def __len__(self) -> int:
            return -(-len(samples) // batch)

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
            part = samples[number * batch : (number + 1) * batch]
            pixels = [np.asarray(Image.open(io.BytesIO(one.data))) for one in part]
            images = np.stack(pixels)[..., None].astype(np.float32) / 255
            labels = np.array([one.labels for one in part], np.int32)
            return (images.repeat(channels, axis=-1) - mean) / deviation, labels

    return Decoding()


def _size(packed: str | os.PathLike) -> int:
    with formats.open(os.path.join(packed, "train")) as records:
        return Image.open(io.BytesIO(records[0].data)).height


def _apart(model: keras.Model, loop: keras.Model, begin: list[np.ndarray]) -> float:
    moved = max(np.abs(np.asarray(one) - was).max()
                for one, was in zip(loop.trainable_weights, begin, strict=True))  # fmt: skip
    far = max(np.abs(np.asarray(one) - np.asarray(other)).max()
              for one, other in zip(model.trainable_weights, loop.trainable_weights,
                                    strict=True))  # fmt: skip
    return float(far / moved)
