"""The work that every candidate does alike: one net, one global batch, the same first weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dlguide import models
from dlguide.errors import require, require_count, require_known
from dlguide.training.optimizers import OPTIMIZERS

DATA = ("mnist", "random")


@dataclass(frozen=True)
class Work:
    """One training step, the same for all candidates however many ranks share it.

    Args:
        net: a net of `dlguide.models`.
        batch: images of one step over all ranks, the global batch (count).
        data: "mnist", or "random" images of the net's own shape.
        optimizer: "adam" or "sgd".
        seed: of the first weights and the order of the images.
        image: height and width of a large net's images (pixels); None takes the net's own.
    """

    net: str = "mnist_cnn"
    batch: int = 100
    data: str = "mnist"
    optimizer: str = "adam"
    seed: int = 0
    image: int | None = None

    def check(self) -> None:
        """Check all that can be checked without TensorFlow.

        Raises:
            ValueError: in the house's form, for the first field that does not hold.
        """
        require_known(self.net, models.names("digits", "imagenet"), "net")
        require_count(self.batch, "batch")
        require_known(self.data, DATA, "data")
        require_known(self.optimizer, OPTIMIZERS, "optimizer")
        require_count(self.seed, "seed", least=0)
        small = self.net in models.names("digits")
        fits = f'be "random" for {self.net}, whose images are not those of MNIST'
        require(self.data == "random" or small, "data", fits, self.data)
        require(self.image is None or not small, "image", f"be None for {self.net}", self.image)
        if self.image is not None:
            require_count(self.image, "image")

    def share(self, ranks: int) -> int:
        """Give the images of one rank in one step.

        Args:
            ranks: number of ranks (count).

        Returns:
            int: batch / ranks.

        Raises:
            ValueError: when the ranks do not divide the batch.
        """
        require_count(ranks, "ranks")
        least = f"divide the global batch of {self.batch}"
        require(self.batch % ranks == 0, "ranks", least, ranks, "Choose another batch.")
        return self.batch // ranks

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Work:
        """Build the work again from what `as_dict` gave."""
        return cls(**plain)
