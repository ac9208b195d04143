"""Labelled images in memory, split for training and testing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlguide.errors import require, require_count


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled images, split for training and testing.

    Args:
        name: name of the data set.
        train_images: float32 in [0, 1], shape (samples, rows, columns, channels).
        train_labels: int32 class numbers, shape (samples,).
        test_images: as train_images, other samples.
        test_labels: as train_labels.
        classes: number of classes (count).
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int = 10

    def __repr__(self) -> str:
        shape = " x ".join(str(length) for length in self.train_images.shape[1:])
        return (
            f"{self.name}: {len(self.train_images)} training and {len(self.test_images)} test "
            f"images of {shape}, {self.classes} classes"
        )

    def first(self, train: int, test: int | None = None) -> Dataset:
        """Take the first samples only, for a lesson that must be quick.

        No shuffling: the same samples on every rank and in every run. The arrays are views.

        Args:
            train: number of training samples to keep (count).
            test: number of test samples to keep (count); None keeps all.

        Returns:
            Dataset: the smaller data set.

        Raises:
            ValueError: when there are not that many samples.
        """
        test = len(self.test_images) if test is None else test
        for name, wanted, there in (
            ("train", train, len(self.train_images)),
            ("test", test, len(self.test_images)),
        ):
            require_count(wanted, name)
            require(wanted <= there, name, f"be at most the {there} samples there are", wanted)
        return Dataset(
            self.name,
            self.train_images[:train],
            self.train_labels[:train],
            self.test_images[:test],
            self.test_labels[:test],
            self.classes,
        )
