"""The training step that all candidates of a search take: net, global batch, data, weights."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide import models
from dlguide.errors import require, require_count, require_known
from dlguide.training.config import OPTIMIZERS

DATA = ("mnist", "random")


@dataclass(frozen=True)
class TuningTask:
    """One training step, the same for all candidates whatever their number of ranks.

    Args:
        net: a net of `dlguide.models`.
        global_batch: images of one step over all ranks (count).
        data: "mnist", or "random" images of the net's shape.
        optimizer: "adam" or "sgd".
        seed: of the initial weights and the order of the images.
        image: height and width of a large net's images; None for the net's own (pixels).
    """

    net: str = "mnist_cnn"
    global_batch: int = 100
    data: str = "mnist"
    optimizer: str = "adam"
    seed: int = 0
    image: int | None = None

    @classmethod
    def checked(
        cls,
        net: str,
        global_batch: int,
        data: str | None,
        optimizer: str,
        seed: int,
        image: int | None,
    ) -> TuningTask:
        """Validate all that can be validated without TensorFlow; `data` None fits the net."""
        require_known(net, models.names("digits", "imagenet"), "net")
        require_count(global_batch, "global_batch")
        small = net in models.names("digits")
        data = ("mnist" if small else "random") if data is None else data
        require_known(data, DATA, "data")
        require_known(optimizer, OPTIMIZERS, "optimizer")
        require_count(seed, "seed", least=0)
        fits = f'be "random" for {net}, whose images are not those of MNIST'
        require(data == "random" or small, "data", fits, data)
        require(image is None or not small, "image", f"be None for {net}", image)
        if image is not None:
            require_count(image, "image")
        return cls(net, global_batch, data, optimizer, seed, image)

    def share(self, ranks: int) -> int:
        """Return the images of one rank in one step."""
        must = f"divide the global batch of {self.global_batch}"
        fits = self.global_batch % require_count(ranks, "ranks") == 0
        require(fits, "ranks", must, ranks, "Choose another batch.")
        return self.global_batch // ranks
