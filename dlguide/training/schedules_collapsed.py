"""Collapsed decay: a few last epochs on plain images that gain what a training left undone."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide.errors import require_positive
from dlguide.training.schedules_parts import Collapse, Constant
from dlguide.training.schedules_recipe import Recipe


@dataclass(frozen=True)
class Collapsed:
    """A training that ends with collapsed decay: what changes in its last epochs.

    Args:
        rates: the learning rate.
        weight_decay: the weight decay, a recipe of the same length.
        at: where the last part begins, from which on images are no longer augmented (epochs;
            `fit` takes the nearest whole step).
    """

    rates: Recipe
    weight_decay: Recipe
    at: float

    def augments(self, epoch: float) -> bool:
        """Tell whether images are augmented."""
        return epoch < self.at


def collapsed(
    recipe: Recipe,
    at: float,
    epochs: float,
    weight_decay: float,
    power: float = 2.0,
    weight_decay_factor: float = 2.0,
) -> Collapsed:
    """Leave a recipe before its end, and finish in a few epochs that are unlike the others.

    From the epoch `at` on images are no longer scaled and cut at random, the weight decay is
    doubled, and the rate falls from the one it has there:

        rate(at) (1 - t/T)^power

    The guide's training of ResNet-50 with a global batch of 14 336 (448 nodes) went up to 4.8 in
    446 steps and down in a straight line for 7 594. It was left after step 7 638 of 8 040, which
    is epoch 85.5, and finished in 402 steps from 0.254. Top-1 accuracy rose from 75.6 to 76.1 %.

    Args:
        recipe: the rates without it.
        at: where to leave it (epochs).
        epochs: how long the last part is (epochs).
        weight_decay: before the last part; 0.00005 in that training.
        power: how the rate falls.
        weight_decay_factor: what the weight decay is multiplied with.

    Returns:
        Collapsed: rates, weight decay and augmentation of at + epochs epochs.

    Raises:
        ValueError: when `at` lies behind the recipe's end or a number is not positive.

    Source:
        The guide, section 6.2.7; Intel Caffe, models/intel_optimized_models/multinode/
        resnet50_448nodes, solver.prototxt and solver_collapse.prototxt.
    """
    rates = Collapse(recipe, at, epochs, power)
    before = require_positive(weight_decay, "weight_decay")
    after = before * require_positive(weight_decay_factor, "weight_decay_factor")
    return Collapsed(rates, Constant(before, at).then(Constant(after, epochs)), at)
