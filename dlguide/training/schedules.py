"""The learning rate over a training: scaling rules, warmups, decays, and what they need.

A recipe is put together in epochs, and each training fixes the steps:

    recipe = warmup("gradual", 1.6, 5, start=0.05).over(step_decay(1.6, (30, 60, 80), 90))
    schedule = recipe.at(steps_per_epoch=312)
    optimizer = keras.optimizers.SGD(as_keras(schedule), momentum=0.9)

Step 0 is the first update. A piece of T steps has its first value at step 0 and its last one at
step T, which is the first step of what follows. All rates are per global batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlguide.errors import require, require_known, require_positive
from dlguide.training.schedules_collapsed import Collapsed, collapsed
from dlguide.training.schedules_keras import as_keras
from dlguide.training.schedules_parts import (
    Constant,
    Cosine,
    Exponential,
    Polynomial,
    Ramp,
    StepDecay,
    Triangles,
    recipe_from,
)
from dlguide.training.schedules_performance import performance
from dlguide.training.schedules_recipe import Recipe, Schedule
from dlguide.training.schedules_rules import momentum_correction, scaled
from dlguide.training.schedules_steps import require_rate

__all__ = [
    "Collapsed",
    "Recipe",
    "Schedule",
    "as_keras",
    "collapsed",
    "constant",
    "cosine",
    "cyclic",
    "exponential",
    "linear",
    "momentum_correction",
    "performance",
    "polynomial",
    "recipe_from",
    "scaled",
    "step_decay",
    "warmup",
]

WARMUPS = ("constant", "stepping", "gradual")


def warmup(
    kind: str,
    rate: float,
    epochs: float,
    start: float | None = None,
    per: str = "step",
) -> Recipe:
    """Begin with a small rate, which the net bears while its weights still change fast.

    - "constant" holds `start` and then jumps to `rate`.
    - "gradual" goes from `start` to `rate` in a straight line.
    - "stepping" does so from rate / (epochs + 1).

    With per="step" the line rises at every step, as Goyal et al. do it. With per="epoch" it is a
    staircase, as the thesis has it, whose last stair is one stair below `rate`.

    Args:
        kind: one of `WARMUPS`.
        rate: where it arrives at the end of the warmup, usually the scaled rate.
        epochs: its length; whole with per="epoch" (epochs).
        start: the first rate, usually the one for a single worker; None for "stepping".
        per: "step" or "epoch".

    Returns:
        Recipe: of that length; put `.then(...)` or `.over(...)` behind it.

    Raises:
        ValueError: when a value does not fit, for example a start above `rate`.

    Source:
        Goyal et al., arXiv:1706.02677, section 2.2 (constant, gradual); the thesis, appendices 9
        and 13 (stepping and gradual per epoch).

    >>> stairs = warmup("stepping", 1.2, 5, per="epoch").at(steps_per_epoch=10)
    >>> [round(stairs.rate(10 * epoch), 2) for epoch in range(6)]
    [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    """
    require_known(kind, WARMUPS, "kind")
    require_positive(rate, "rate")
    if kind == "stepping":
        must = "be None for stepping, which starts at rate / (epochs + 1)"
        require(start is None, "start", must, start, 'Use "gradual" for a start of your own.')
        start = rate / (require_positive(epochs, "epochs") + 1)
    require_rate(start, "start")
    then = "A warmup rises; give the rate of a single worker."
    require(start <= rate, "start", f"be at most the {rate:g} of `rate`", start, then)
    if kind == "constant":
        return Constant(start, epochs)
    return Ramp(start, rate, epochs, per)


def constant(rate: float, epochs: float) -> Recipe:
    """Keep one rate.

    Args:
        rate: the rate.
        epochs: its length (epochs).

    Returns:
        Recipe: of that length.
    """
    return Constant(rate, epochs)


def step_decay(
    rate: float, boundaries: Sequence[float], epochs: float, factor: float = 0.1
) -> Recipe:
    """Multiply the rate by a factor at some epochs.

        rate factor^(number of boundaries passed)

    Args:
        rate: the first rate.
        boundaries: where it changes, rising, counted from the beginning (epochs).
        epochs: its length (epochs).
        factor: a tenth in most recipes.

    Returns:
        Recipe: of that length.

    Raises:
        ValueError: when the boundaries do not rise or lie outside.

    Source:
        Goyal et al., arXiv:1706.02677, section 5.1: epochs 30, 60 and 80 of 90.
    """
    then = "The length of the whole comes after them."
    listed = isinstance(boundaries, Iterable) and not isinstance(boundaries, str)
    require(listed, "boundaries", "be epochs, such as (30, 60, 80)", boundaries, then)
    return StepDecay(rate, tuple(boundaries), factor, epochs)


def exponential(
    rate: float, epochs: float, every: float, factor: float = 0.1, staircase: bool = False
) -> Recipe:
    """Multiply the rate by a factor in every so many epochs.

        rate factor^(t / every)

    Args:
        rate: the first rate.
        epochs: its length (epochs).
        every: in which time the rate changes by `factor` (epochs).
        factor: a tenth in the thesis.
        staircase: change at the end of each such time only.

    Returns:
        Recipe: of that length.

    Source:
        The thesis, section 2.3 (exponential scheduling); its experiment 4: a tenth every 30.
    """
    return Exponential(rate, factor, every, epochs, staircase)


def polynomial(rate: float, epochs: float, power: float = 2.0, end: float = 0.0) -> Recipe:
    """Lower the rate with a power of the time that is left.

        end + (rate - end) (1 - t/T)^power

    Args:
        rate: the first rate.
        epochs: its length T (epochs).
        power: 2 in the papers on LARS and in collapsed decay.
        end: the rate it arrives at.

    Returns:
        Recipe: of that length.

    Source:
        You, Gitman and Ginsburg, arXiv:1708.03888, algorithm 1.
    """
    return Polynomial(rate, end, epochs, power)


def linear(rate: float, epochs: float, end: float = 0.0) -> Recipe:
    """Lower the rate in a straight line.

    Args:
        rate: the first rate.
        epochs: its length (epochs).
        end: the rate it arrives at.

    Returns:
        Recipe: of that length.

    Source:
        The guide, section 6.2.7: for 85 epochs after a warmup of 5.
    """
    return Polynomial(rate, end, epochs, 1.0)


def cosine(rate: float, epochs: float, end: float = 0.0) -> Recipe:
    """Lower the rate along half a wave.

        end + (rate - end) (1 + cos(pi t/T)) / 2

    Args:
        rate: the first rate.
        epochs: its length T (epochs).
        end: the rate it arrives at.

    Returns:
        Recipe: of that length, without restarts.

    Source:
        Loshchilov and Hutter, arXiv:1608.03983, equation 5.
    """
    return Cosine(rate, end, epochs)


def cyclic(low: float, high: float, epochs: float, cycle: float, shrink: float = 1.0) -> Recipe:
    """Let the rate rise from low to high and fall again in every cycle.

    Args:
        low: the rate where a cycle begins and ends.
        high: the rate in the middle of the first cycle.
        epochs: its length (epochs).
        cycle: the length of one rise and fall (epochs).
        shrink: high - low of a cycle over that of the one before; 0.5 halves it each time.

    Returns:
        Recipe: of that length.

    Source:
        Smith, arXiv:1506.01186, section 3 (triangular; triangular2 with shrink 0.5). The guide,
        section 6.2.6, Figure 22.
    """
    return Triangles(low, high, cycle, epochs, shrink)
