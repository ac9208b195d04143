"""The road of ResNet-50 to 76.1 %: every number of the guide's training, and the same in small.

GUIDE       448 nodes, two workers each with 16 pictures, 90 epochs
SMALL       one such node, a net of 8 layers, small made-up pictures, 12 epochs
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dlguide.errors import require, require_count, require_positive
from dlguide.training import schedules
from dlguide.training.schedules import CollapsedDecay, EpochSchedule

# What the guide subtracts of red, green and blue (Caffe names them in the other order), and
# what it multiplies with, for pixels of 0 to 255; here as `Normalise` takes them, for 0 to 1.
MEAN = (123 / 255, 117 / 255, 104 / 255)
DEVIATION = (1 / 0.0078125 / 255,) * 3


@dataclass(frozen=True)
class Iterations:
    """The road in updates of the weights, as the guide gives it.

    Args:
        warmup: while the rate rises (count).
        decay: while it falls in a straight line (count).
        snapshot: after which one the last part begins (count).
        collapsed: of the last part (count).
    """

    warmup: int
    decay: int
    snapshot: int
    collapsed: int


@dataclass(frozen=True)
class Road:
    """A training with warmup, linear decay and collapsed decay, in plain numbers.

    Args:
        net: one of `models.names("imagenet")` or a residual net of `models.names("classifier")`.
        image: height and width of what the net sees (pixels).
        stored: height and width of made-up pictures (pixels); 0 where they are real.
        classes: logits (count).
        samples: pictures to train with (count).
        test_samples: pictures to test both endings with (count).
        nodes: computers (count).
        workers_per_node: workers of each (count).
        batch: pictures of a worker in each step (count).
        epochs: of warmup and linear decay together (epochs).
        warmup: of these (epochs).
        collapse_at: where the last part leaves the line (epochs).
        collapse: its length (epochs).
        rate: highest learning rate, of the global batch.
        start: first learning rate.
        weight_decay: before the last part, which has twice as much.
        power: how the rate falls in the last part.
        momentum: of the gradient descent.
        averages: how much of batch normalisation's moving averages a step keeps.
        area: smallest part of a picture that is cut out (0 to 1).
        ratio: smallest width / height of that part; the largest is 1 over it.
        tested: test pictures that are looked at after each epoch, the first ones; None for all,
            where their order is no mixture of the classes (count).
    """

    net: str
    image: int
    stored: int
    classes: int
    samples: int
    test_samples: int
    nodes: int
    workers_per_node: int
    batch: int
    epochs: float
    warmup: float
    collapse_at: float
    collapse: float
    rate: float
    start: float
    weight_decay: float
    power: float = 2.0
    momentum: float = 0.9
    averages: float = 0.95
    area: float = 0.08
    ratio: float = 0.75
    tested: int | None = None

    def __post_init__(self) -> None:
        for name in ("image", "classes", "samples", "test_samples", "nodes", "workers_per_node",
                     "batch"):  # fmt: skip
            require_count(getattr(self, name), name)
        for name in ("epochs", "warmup", "collapse_at", "collapse", "rate", "start"):
            require_positive(getattr(self, name), name)
        must = f"lie between the {self.warmup:g} epochs of warmup and the end at {self.epochs:g}"
        fits = self.warmup < self.collapse_at < self.epochs
        require(fits, "collapse_at", must, self.collapse_at)

    @property
    def workers(self) -> int:
        """Of all nodes (count)."""
        return self.nodes * self.workers_per_node

    @property
    def global_batch(self) -> int:
        """Pictures of a step, of all workers together (count)."""
        return self.workers * self.batch

    @property
    def trunk(self) -> int:
        """Whole epochs that both endings have in common (count)."""
        return int(self.collapse_at)

    @property
    def paid(self) -> float:
        """Epochs that are computed until both endings are there, as the guide did it (epochs)."""
        return self.epochs + self.collapse

    def iterations(self) -> Iterations:
        """Count the updates; an epoch need not be a whole number of them.

        Returns:
            Iterations: the warmup rounded down, the others to the nearest.
        """
        each = self.samples / self.global_batch
        warmup = int(self.warmup * each + 1e-9)
        return Iterations(
            warmup, round(self.epochs * each) - warmup, round(self.collapse_at * each),
            round(self.collapse * each),
        )  # fmt: skip

    def line(self) -> EpochSchedule:
        """Give the learning rate of part 1: up in a straight line, and down to 0."""
        up = schedules.warmup("gradual", self.rate, self.warmup, self.start)
        return up.then(schedules.linear(self.rate, self.epochs - self.warmup))

    def part_1(self, epochs: float | None = None) -> CollapsedDecay:
        """Give part 1, whose weight decay and pictures stay what they are.

        Args:
            epochs: only the first so many; None for all of it.

        Returns:
            CollapsedDecay: one that never collapses.
        """
        rates = self.line() if epochs is None else self.line().beginning(epochs)
        return CollapsedDecay(
            rates, schedules.Constant(self.weight_decay, rates.epochs), rates.epochs
        )

    def part_2(self) -> CollapsedDecay:
        """Give the road that leaves the line for collapsed decay."""
        return schedules.collapsed(
            self.line(), self.collapse_at, self.collapse, self.weight_decay, self.power
        )

    def stretched(self, factor: float) -> Road:
        """Make all phases longer or shorter in proportion."""
        require_positive(factor, "factor")
        lengths = ("epochs", "warmup", "collapse_at", "collapse")
        # rounded: a fifth of 85.5 is 17.1, in binary a little less
        changed = {name: round(getattr(self, name) * factor, 9) for name in lengths}
        return replace(self, **changed)

    def on(self, workers: int) -> Road:
        """Give the road for another number of workers: the rates follow the global batch.

        Args:
            workers: in all (count).

        Returns:
            Road: of one node with all of them where they are no whole number of nodes' workers.

        Source:
            Goyal et al., arXiv:1706.02677, section 2.1 (linear scaling).
        """
        require_count(workers, "workers")
        nodes, rest = divmod(workers, self.workers_per_node)
        where = (nodes, self.workers_per_node) if rest == 0 else (1, workers)
        factor = workers / self.workers
        return replace(
            self, nodes=where[0], workers_per_node=where[1], rate=self.rate * factor,
            start=self.start * factor,
        )  # fmt: skip

    def each(self, batch: int) -> Road:
        """Give the road with another batch of a worker: the rates follow the global batch.

        Args:
            batch: pictures of a worker (count).

        Returns:
            Road: of as many workers.
        """
        factor = require_count(batch, "batch") / self.batch
        return replace(self, batch=batch, rate=self.rate * factor, start=self.start * factor)

    def as_dict(self) -> dict[str, Any]:
        """Give plain numbers, ready for JSON."""
        return asdict(self)


# PRACE guide, tables 5 and 6 and sections 6.2.4 to 6.2.7; rates and weight decay: Intel Caffe,
# models/intel_optimized_models/multinode/resnet50_448nodes (warmup_start_lr 0.1, base_lr 4.8,
# weight_decay 0.00005; base_lr 0.254 and 0.0001 in solver_collapse.prototxt). Table 5 says
# "~1.28M" pictures; the number here is made from the 8040 iterations of 90 epochs: 14 336 x 8040
# / 90. So the iterations agree by construction; ImageNet's 1 281 167 would give 7597 and 7641.
GUIDE = Road(
    net="resnet50", image=224, stored=0, classes=1000, samples=1_280_683, test_samples=50_000,
    nodes=448, workers_per_node=2, batch=16, epochs=90, warmup=5, collapse_at=85.5, collapse=4.5,
    rate=4.8, start=0.1, weight_decay=5e-5,
)  # fmt: skip
PUBLISHED = Iterations(warmup=446, decay=7594, snapshot=7638, collapsed=402)

# The rate was chosen for this net: the guide's, brought to 32 pictures by the linear rule, would
# need the guide's 90 epochs of 40 000 steps. In the guide's proportions the last part would have
# 18 steps, within which neither the weights nor the moving averages follow; it has 54 here.
SMALL = replace(
    GUIDE, net="resnet8", image=20, stored=28, classes=40, samples=960, test_samples=2_400,
    tested=320, nodes=1, epochs=12, warmup=1, collapse_at=10.2, collapse=1.8, rate=0.2,
    start=0.1 * 0.2 / 4.8, weight_decay=1e-4,
)  # fmt: skip
