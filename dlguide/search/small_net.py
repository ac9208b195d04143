"""A small net in NumPy whose rate, batch and width can be searched in milliseconds.

To compare methods of search one needs many searches, and so thousands of trainings: too many for
a framework that builds and traces each net anew. This is the net of `dlguide.parallel.trials` with
a width of its own: one hidden layer, plain SGD with momentum, a rate that falls to zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlguide.data.datasets import Dataset
from dlguide.errors import require, require_count
from dlguide.parallel import trials

MOMENTUM = 0.9


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images in three parts: to train on, to choose by, and to judge by in the end."""

    train: np.ndarray
    train_labels: np.ndarray
    validation: np.ndarray
    validation_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    @classmethod
    def of(cls, data: Dataset, train: int, validation: int) -> Images:
        """Cut the first training images into two parts; the test images stay what they are."""
        there = len(data.train_labels)
        total = require_count(train, "train") + require_count(validation, "validation")
        require(total <= there, "train", f"leave {validation} of the {there} images", train)
        flat = data.train_images[:total].reshape(total, -1).copy()
        labels = data.train_labels[:total].copy()
        test = data.test_images.reshape(len(data.test_labels), -1)
        return cls(
            flat[:train], labels[:train], flat[train:], labels[train:], test, data.test_labels
        )

    def without_test(self) -> Images:
        """Leave the test images out: what searches must not see them, and they need not travel."""
        parts = self.train, self.train_labels, self.validation, self.validation_labels
        return Images(*parts, self.test[:0], self.test_labels[:0])


def train(
    parameters: Mapping[str, Any], epochs: int, seed: int, images: Images
) -> tuple[list[np.ndarray], list[float]]:
    """Train the net once on one process.

    Args:
        parameters: "rate" of SGD, "batch" (images a step) and "width" of the hidden layer.
        epochs: passes over the training images (count).
        seed: of the first weights and of the order of images.
        images: training and validation images.

    Returns:
        tuple: the weights, and the validation error after each epoch (share that is wrong).

    Raises:
        ValueError: when an epoch, a batch or a width is no count.
    """
    require_count(epochs, "epochs")
    batch = require_count(parameters["batch"], "batch")
    random = np.random.default_rng(seed)
    weights = first_weights(require_count(parameters["width"], "width"), random)
    speeds = [np.zeros_like(weight) for weight in weights]
    each = -(-len(images.train) // batch)
    step, errors = 0, []
    for _ in range(epochs):
        order = random.permutation(len(images.train))
        for part in np.array_split(order, each):
            rate = np.float32(parameters["rate"] * (1 - step / (epochs * each)))
            with np.errstate(all="ignore"):  # a rate that is too large ends in NaN, by itself
                sums = trials.gradients(weights, images.train[part], images.train_labels[part])
                for weight, speed, gradient in zip(weights, speeds, sums, strict=True):
                    speed *= np.float32(MOMENTUM)
                    speed -= rate * gradient / np.float32(len(part))
                    weight += speed
            step += 1
        errors.append(error(weights, images.validation, images.validation_labels))
    return weights, errors


def first_weights(width: int, random: np.random.Generator) -> list[np.ndarray]:
    """Draw the weights before training, uniform within Glorot's bounds, and biases of zero."""
    found = []
    for inputs, outputs in ((784, width), (width, 10)):
        bound = np.sqrt(6 / (inputs + outputs))
        found.append(random.uniform(-bound, bound, (inputs, outputs)).astype(np.float32))
        found.append(np.zeros(outputs, np.float32))
    return found


def error(weights: Sequence[np.ndarray], images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images that a net takes for another digit."""
    inner, inner_bias, outer, outer_bias = weights
    with np.errstate(all="ignore"):
        logits = np.maximum(images @ inner + inner_bias, 0) @ outer + outer_bias
    if not np.isfinite(logits).all():
        return float("nan")
    return float((logits.argmax(axis=1) != labels).mean())
