"""The learning rate over a training: scaling rules, warmups, decays, and what they need.

A schedule is put together in epochs, and each training fixes the steps:

    rates = warmup("gradual", 1.6, 5, start=0.05).over(StepDecay(1.6, (30, 60, 80), 90))
    schedule = rates.to_steps(steps_per_epoch=312)
    optimizer = keras.optimizers.SGD(as_keras(schedule), momentum=0.9)

`fit(learning_rate=rates)` does the second and third step itself. Step 0 is the first update. A
piece of T steps has its first value at step 0 and its last one at step T, which is the first step
of what follows. All rates are per global batch. Positions are whole steps until the last division,
so that single precision in Keras gives the same rates as double precision in NumPy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count, require_known, require_positive

if TYPE_CHECKING:
    import keras

__all__ = [
    "CollapsedDecay",
    "Constant",
    "Cosine",
    "CyclicLR",
    "EpochSchedule",
    "Exponential",
    "Polynomial",
    "StepDecay",
    "StepSchedule",
    "as_keras",
    "collapsed",
    "from_config",
    "linear",
    "momentum_correction",
    "scaled",
    "warmup",
]

WARMUPS = ("constant", "stepping", "gradual")
PER = ("step", "epoch")
SCALING = {"linear": float, "sqrt": math.sqrt, "none": lambda times: 1.0}


class EpochSchedule(ABC):
    """A learning rate over epochs; `then`, `over` and `beginning` make others of it."""

    epochs: float

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if field.name in _CHECKS:
                _CHECKS[field.name](getattr(self, field.name), field.name)

    @abstractmethod
    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """The rates at whole steps (array) since the piece began, 0 to `steps`."""

    def steps(self, steps_per_epoch: int) -> int:
        """The steps of the whole piece (count)."""
        return whole_steps(self.epochs, steps_per_epoch)

    def then(self, following: EpochSchedule) -> EpochSchedule:
        """Continue with another schedule, which starts at its own epoch 0 where this one ends.

        Args:
            following: for example a linear decay after a warmup.

        Returns:
            EpochSchedule: as long as both together.
        """
        return Chained(self, _require_schedule(following, "following"))

    def over(self, whole: EpochSchedule) -> EpochSchedule:
        """Replace the first epochs of another schedule, whose own epochs go on being counted.

        Args:
            whole: the schedule of the whole training; a decay at epochs 30, 60 and 80 stays there.

        Returns:
            EpochSchedule: as long as `whole`.

        Raises:
            ValueError: if this one is not shorter.
        """
        return Overlay(self, _require_schedule(whole, "whole"))

    def beginning(self, epochs: float) -> EpochSchedule:
        """Take the first epochs only, for a training that continues with another schedule."""
        return Truncated(self, epochs)

    def to_steps(self, steps_per_epoch: int, epochs: float | None = None) -> StepSchedule:
        """Fix the steps of an epoch.

        Args:
            steps_per_epoch: updates of the weights in one epoch: samples / global batch (count).
            epochs: length of the training it is meant for; None for any (epochs).

        Returns:
            StepSchedule: the rate of each step.

        Raises:
            ValueError: if the training is longer or shorter than the schedule, or a piece of it
                is shorter than a step.
        """
        fits = epochs is None or math.isclose(epochs, self.epochs)
        then = "Make the schedule as long as the training; a shorter one may end inside a warmup."
        require(fits, "epochs", f"be the {self.epochs:g} of the schedule", epochs, then)
        return StepSchedule(self, require_count(steps_per_epoch, "steps_per_epoch"))

    def config(self) -> dict[str, Any]:
        """Describe the schedule in plain values.

        Returns:
            dict: JSON-able; `schedules.from_config` builds the schedule from it.
        """
        values = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]
        return {"kind": type(self).__name__, **values}


@dataclass(frozen=True)
class Chained(EpochSchedule):
    """One schedule after another."""

    first: EpochSchedule
    second: EpochSchedule

    @property
    def epochs(self) -> float:
        return self.first.epochs + self.second.epochs

    def steps(self, steps_per_epoch: int) -> int:
        return self.first.steps(steps_per_epoch) + self.second.steps(steps_per_epoch)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        split = self.first.steps(steps_per_epoch)
        before = self.first.value(np.minimum(step, split), steps_per_epoch)
        after = self.second.value(np.maximum(step - split, 0), steps_per_epoch)
        return np.where(step < split, before, after)


@dataclass(frozen=True)
class Overlay(EpochSchedule):
    """One schedule instead of the beginning of another."""

    first: EpochSchedule
    whole: EpochSchedule

    def __post_init__(self) -> None:
        must = f"be longer than the {self.first.epochs:g} epochs that lead into it"
        then = "Shorten the warmup or train longer."
        require(self.first.epochs < self.whole.epochs, "whole", must, self.whole.epochs, then)

    @property
    def epochs(self) -> float:
        return self.whole.epochs

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        split = self.first.steps(steps_per_epoch)
        early = self.first.value(np.minimum(step, split), steps_per_epoch)
        return np.where(step < split, early, self.whole.value(step, steps_per_epoch))


@dataclass(frozen=True)
class Truncated(EpochSchedule):
    """The beginning of another schedule."""

    schedule: EpochSchedule
    epochs: float

    def __post_init__(self) -> None:
        must = f"be above 0 and at most the {self.schedule.epochs:g} epochs of the schedule"
        require(0 < self.epochs <= self.schedule.epochs, "epochs", must, self.epochs)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        return self.schedule.value(step, steps_per_epoch)


@dataclass(frozen=True)
class StepSchedule:
    """The rate of every step of a training.

    Args:
        schedule: the rate over epochs.
        steps_per_epoch: updates of the weights in one epoch (count).
    """

    schedule: EpochSchedule
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _require_schedule(self.schedule, "schedule")
        require_count(self.steps_per_epoch, "steps_per_epoch")
        self.rate(0)  # refuses pieces that are shorter than a step

    @property
    def steps(self) -> int:
        """Length (steps)."""
        return self.schedule.steps(self.steps_per_epoch)

    def rate(self, step: Any) -> Any:
        """Return the rate of a step; steps after the end have the last one.

        Args:
            step: 0 for the first update; a whole number or an array of them.

        Returns:
            float: the rate, an array for an array.

        Raises:
            ValueError: if a step is negative or not whole.
        """
        places = np.asarray(step)
        whole = np.issubdtype(places.dtype, np.integer)
        fits = whole and (not places.size or bool(places.min() >= 0))
        require(fits, "step", "be whole numbers of at least 0", step)
        inside = np.minimum(places.astype(np.int64), self.steps)
        rates = self.schedule.value(inside, self.steps_per_epoch)
        return float(rates) if places.ndim == 0 else rates

    def rates(self) -> np.ndarray:
        """Return the rates of all steps, float64."""
        return self.rate(np.arange(self.steps))


@dataclass(frozen=True)
class Constant(EpochSchedule):
    """One rate for so many epochs."""

    rate: float
    epochs: float

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        return self.rate + 0.0 * np.float64(step)


@dataclass(frozen=True)
class LinearWarmup(EpochSchedule):
    """A straight line from `start` to `end`, at every step or in one stair per epoch."""

    start: float
    end: float
    epochs: float
    per: str

    def __post_init__(self) -> None:
        super().__post_init__()
        stairs = require_known(self.per, PER, "per") == "epoch"
        must = "be whole where the rate changes once an epoch"
        require(not stairs or self.epochs == int(self.epochs), "epochs", must, self.epochs)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        if self.per == "epoch":
            done = np.float64(step // steps_per_epoch) / self.epochs
        else:
            done = np.float64(step) / self.steps(steps_per_epoch)
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True)
class Polynomial(EpochSchedule):
    """The rate falls with a power of the time that is left.

        end + (rate - end) (1 - t/T)^power

    Args:
        rate: the first rate.
        epochs: the length T (epochs).
        power: 2 in the papers on LARS and in collapsed decay.
        end: the last rate.

    Source:
        You, Gitman and Ginsburg, arXiv:1708.03888, algorithm 1.
    """

    rate: float
    epochs: float
    power: float = 2.0
    end: float = 0.0

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        left = _part_left(step, self.steps(steps_per_epoch))
        return self.end + (self.rate - self.end) * left**self.power


@dataclass(frozen=True)
class Cosine(EpochSchedule):
    """The rate falls along half a wave, without restarts.

        end + (rate - end) (1 + cos(pi t/T)) / 2

    Args:
        rate: the first rate.
        epochs: the length T (epochs).
        end: the last rate.

    Source:
        Loshchilov and Hutter, arXiv:1608.03983, equation 5.
    """

    rate: float
    epochs: float
    end: float = 0.0

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        # (1 + cos(pi t)) / 2 = sin(pi (1 - t) / 2) ** 2, which keeps its digits near the end.
        left = _part_left(step, self.steps(steps_per_epoch))
        wave = np.sin(0.5 * math.pi * left)
        return self.end + (self.rate - self.end) * wave * wave


@dataclass(frozen=True)
class Exponential(EpochSchedule):
    """The rate is multiplied by a factor in every so many epochs.

        rate factor^(t / every)

    Args:
        rate: the first rate.
        epochs: the length (epochs).
        every: the time in which the rate changes by `factor` (epochs).
        factor: a tenth in Nyholm's thesis.
        staircase: change at the end of each such time only.

    Source:
        Nyholm's thesis, section 2.3 (exponential scheduling); its experiment 4: a tenth every 30.
    """

    rate: float
    epochs: float
    every: float
    factor: float = 0.1
    staircase: bool = False

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        every = whole_steps(self.every, steps_per_epoch)
        full, rest = np.float64(step // every), np.float64(step % every) / every
        rate = self.rate * self.factor**full
        return rate if self.staircase else rate * self.factor**rest


@dataclass(frozen=True)
class StepDecay(EpochSchedule):
    """The rate is multiplied by a factor at some epochs.

        rate factor^(number of boundaries passed)

    Args:
        rate: the first rate.
        boundaries: where it changes, rising, counted from the beginning (epochs).
        epochs: the length (epochs).
        factor: a tenth in most schedules.

    Raises:
        ValueError: if the boundaries do not rise or lie outside.

    Source:
        Goyal et al., arXiv:1706.02677, section 5.1: epochs 30, 60 and 80 of 90.
    """

    rate: float
    boundaries: tuple[float, ...]
    epochs: float
    factor: float = 0.1

    def __post_init__(self) -> None:
        then = "The length of the whole comes after them."
        listed = isinstance(self.boundaries, Iterable) and not isinstance(self.boundaries, str)
        must = "be epochs, such as (30, 60, 80)"
        require(listed, "boundaries", must, self.boundaries, then)
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        super().__post_init__()
        for each in self.boundaries:
            _require_epochs(each, "boundaries")
        ends = [0.0, *self.boundaries, self.epochs]
        rising = all(a < b for a, b in pairwise(ends))
        must = f"rise and lie between 0 and the {self.epochs:g} epochs"
        require(rising and len(ends) > 2, "boundaries", must, self.boundaries)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        boundaries = [whole_steps(each, steps_per_epoch) for each in self.boundaries]
        return self.rate * self.factor ** sum(np.float64(step >= each) for each in boundaries)


@dataclass(frozen=True)
class CyclicLR(EpochSchedule):
    """The rate rises from low to high and falls again in every cycle.

    Args:
        low: the rate at both ends of a cycle.
        high: the rate in the middle of the first cycle.
        epochs: the length (epochs).
        cycle: the length of one rise and fall (epochs).
        shrink: high - low of a cycle over that of the one before; 0.5 halves it each time.

    Source:
        Smith, arXiv:1506.01186, section 3 (triangular; triangular2 with shrink 0.5). PRACE best
        practice guide, section 6.2.6, Figure 22.
    """

    low: float
    high: float
    epochs: float
    cycle: float
    shrink: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low < self.high, "high", f"be above the {self.low:g} of `low`", self.high)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        cycle = whole_steps(self.cycle, steps_per_epoch)
        height = 1.0 - np.float64(abs(2 * (step % cycle) - cycle)) / cycle
        shrunk = self.shrink ** np.float64(step // cycle)
        return self.low + (self.high - self.low) * height * shrunk


@dataclass(frozen=True)
class Collapse(EpochSchedule):
    """A schedule until the epoch `until`, then from the rate it has there to 0, as a power."""

    schedule: EpochSchedule
    until: float
    last: float
    power: float

    def __post_init__(self) -> None:
        super().__post_init__()
        must = f"lie before the end of the schedule at {self.schedule.epochs:g} epochs"
        require(self.until < self.schedule.epochs, "until", must, self.until)

    @property
    def epochs(self) -> float:
        return self.until + self.last

    def steps(self, steps_per_epoch: int) -> int:
        return sum(whole_steps(each, steps_per_epoch) for each in (self.until, self.last))

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        split = whole_steps(self.until, steps_per_epoch)
        kept = self.schedule.value(np.minimum(step, split), steps_per_epoch)
        last = whole_steps(self.last, steps_per_epoch)
        left = _part_left(np.maximum(step - split, 0), last)
        return np.where(step < split, kept, kept * left**self.power)


def warmup(
    kind: str,
    rate: float,
    epochs: float,
    start: float | None = None,
    per: str = "step",
) -> EpochSchedule:
    """Begin with a small rate, which the net bears while its weights still change fast.

    - "constant" holds `start` and then jumps to `rate`.
    - "gradual" goes from `start` to `rate` in a straight line.
    - "stepping" does so from rate / (epochs + 1).

    With per="step" the line rises at every step, as Goyal et al. do it. With per="epoch" it is a
    staircase, as Nyholm's thesis has it, whose last stair is one stair below `rate`.

    Args:
        kind: one of `WARMUPS`.
        rate: where it arrives at the end of the warmup, usually the scaled rate.
        epochs: its length; whole with per="epoch" (epochs).
        start: the first rate, usually the one for a single worker; None for "stepping".
        per: "step" or "epoch".

    Returns:
        EpochSchedule: of that length; put `.then(...)` or `.over(...)` behind it.

    Raises:
        ValueError: if a value does not fit, for example a start above `rate`.

    Source:
        Goyal et al., arXiv:1706.02677, section 2.2 (constant, gradual); Nyholm's thesis,
        appendices 9 and 13 (stepping and gradual per epoch).

    >>> stairs = warmup("stepping", 1.2, 5, per="epoch").to_steps(steps_per_epoch=10)
    >>> [round(stairs.rate(10 * epoch), 2) for epoch in range(6)]
    [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    """
    require_known(kind, WARMUPS, "kind")
    require_positive(rate, "rate")
    if kind == "stepping":
        must = "be None for stepping, which starts at rate / (epochs + 1)"
        require(start is None, "start", must, start, 'Use "gradual" for a start of your own.')
        start = rate / (require_positive(epochs, "epochs") + 1)
    _require_rate(start, "start")
    then = "A warmup rises; give the rate of a single worker."
    require(start <= rate, "start", f"be at most the {rate:g} of `rate`", start, then)
    if kind == "constant":
        return Constant(start, epochs)
    return LinearWarmup(start, rate, epochs, per)


def linear(rate: float, epochs: float, end: float = 0.0) -> EpochSchedule:
    """Lower the rate in a straight line.

    Args:
        rate: the first rate.
        epochs: its length (epochs).
        end: the rate it arrives at.

    Returns:
        EpochSchedule: of that length.

    Source:
        PRACE best practice guide, section 6.2.7: for 85 epochs after a warmup of 5.
    """
    return Polynomial(rate, epochs, 1.0, end)


@dataclass(frozen=True)
class CollapsedDecay:
    """A training that ends with collapsed decay: what changes in its last epochs.

    Args:
        rates: the learning rate.
        weight_decay: the weight decay, a schedule of the same length.
        at: where the last part begins, from which on images are no longer augmented (epochs;
            `fit` takes the nearest whole step).
    """

    rates: EpochSchedule
    weight_decay: EpochSchedule
    at: float


def collapsed(
    schedule: EpochSchedule,
    at: float,
    epochs: float,
    weight_decay: float,
    power: float = 2.0,
    weight_decay_factor: float = 2.0,
) -> CollapsedDecay:
    """Leave a schedule before its end, and finish in a few epochs that are unlike the others.

    From the epoch `at` on images are no longer scaled and cut at random, the weight decay is
    doubled, and the rate falls from the one it has there:

        rate(at) (1 - t/T)^power

    The guide's training of ResNet-50 with a global batch of 14 336 (448 nodes) went up to 4.8 in
    446 steps and down in a straight line for 7 594. It was left after step 7 638 of 8 040, which
    is epoch 85.5, and finished in 402 steps from 0.254. Top-1 accuracy rose from 75.6 to 76.1 %.

    Args:
        schedule: the rates without it.
        at: where to leave it (epochs).
        epochs: how long the last part is (epochs).
        weight_decay: before the last part; 0.00005 in that training.
        power: how the rate falls.
        weight_decay_factor: what the weight decay is multiplied with.

    Returns:
        CollapsedDecay: rates, weight decay and augmentation of at + epochs epochs.

    Raises:
        ValueError: if `at` lies behind the schedule's end or a number is not positive.

    Source:
        PRACE best practice guide, section 6.2.7; Intel Caffe,
        models/intel_optimized_models/multinode/resnet50_448nodes, solver.prototxt and
        solver_collapse.prototxt.
    """
    rates = Collapse(schedule, at, epochs, power)
    before = require_positive(weight_decay, "weight_decay")
    after = before * require_positive(weight_decay_factor, "weight_decay_factor")
    return CollapsedDecay(rates, Constant(before, at).then(Constant(after, epochs)), at)


def scaled(learning_rate: float, global_batch: int, base_batch: int, rule: str = "linear") -> float:
    """Scale a rate that was found for one global batch to another one.

    With k = global_batch / base_batch the rule "linear" gives k times the rate, "sqrt" its square
    root times the rate, and "none" the rate itself.

    For SGD the rule is linear: with k times the batch there are 1/k of the steps, each with a k
    times smaller variance, so k times the rate walks as far. Adam divides a step by the size of
    the gradients itself; its rule is the square root, and multiplied by k it becomes unstable
    early (a mistake seen in many first Horovod scripts). Only the rate is scaled here: the whole
    rule of Malladi et al. also changes 1 - beta_1 and 1 - beta_2 (times k) and epsilon (divided by
    the square root of k).

    Args:
        learning_rate: the rate for `base_batch`.
        global_batch: to train with: ranks times batch per rank (count).
        base_batch: the global batch the rate was found for (count).
        rule: "linear", "sqrt" or "none".

    Returns:
        float: the rate for `global_batch`.

    Raises:
        ValueError: if a count or the rate is not positive, or the rule is not known.

    Source:
        Goyal et al., arXiv:1706.02677, section 2.1; Nyholm's thesis, experiment 5 (32 x 128 images
        instead of 256, 1.6 instead of 0.1); Malladi et al., arXiv:2205.10287 (Adam).

    >>> scaled(0.1, 32 * 128, 256), scaled(0.1, 1024, 256, "sqrt")
    (1.6, 0.2)
    """
    times = require_count(global_batch, "global_batch") / require_count(base_batch, "base_batch")
    factor = SCALING[require_known(rule, SCALING, "rule")]
    return require_positive(learning_rate, "learning_rate") * factor(times)


def momentum_correction(old_rate: float, new_rate: float) -> float:
    """Return the factor by which velocities are multiplied when the rate changes.

    With the rate inside the velocity, as in Keras' SGD and in Caffe,

        v <- m v - lr g,  w <- w + v

    the old steps in v were made with the old rate. After a rise they are too short, after a fall
    too long, until they are forgotten (some 1 / (1 - m) steps). The factor new / old fixes that:

        v <- m (new / old) v - new g

    With the rate outside, u <- m u + g, w <- w - lr u, as in PyTorch, nothing needs fixing:
    both give the same weights. `optimizers.MomentumSGD` is of that form, so it needs no factor.

    Args:
        old_rate: the rate of the last update.
        new_rate: the rate of the coming one.

    Returns:
        float: new / old.

    Raises:
        ValueError: if a rate is not positive; a velocity made with a rate of 0 holds nothing.

    Source:
        Goyal et al., arXiv:1706.02677, section 3, remark 2, equations 9 and 10.

    >>> momentum_correction(0.25, 0.5)
    2.0
    """
    return require_positive(new_rate, "new_rate") / require_positive(old_rate, "old_rate")


def as_keras(schedule: StepSchedule) -> keras.optimizers.schedules.LearningRateSchedule:
    """Turn a schedule into one that a Keras optimizer asks for the rate of each update.

    The rates are looked up in a table of 4 bytes a step, not computed in the compiled step:
    compilers round such formulas differently in one net and in another, and trainings that
    should be equal to the bit would not be. Keras' SGD keeps the rate inside its velocity, and
    no callback can fix that under such a schedule (`momentum_correction`);
    `optimizers.MomentumSGD` does not need it. Keras counts calls: where an update adds up the
    gradients of k batches, give `EpochSchedule.to_steps` k times as many steps per epoch. A model
    compiled with it opens in another process after `optimizers.register()`.

    Args:
        schedule: the rate of every step.

    Returns:
        keras.optimizers.schedules.LearningRateSchedule: for `learning_rate`.

    Raises:
        ValueError: if it is a schedule, whose steps are not fixed yet, or anything else.
    """
    then = "Fix its steps with `schedule.to_steps(steps_per_epoch)`."
    require(isinstance(schedule, StepSchedule), "schedule", "be a StepSchedule", schedule, then)
    from dlguide.training.optimizers import StepRates

    return StepRates(schedule.schedule.config(), schedule.steps_per_epoch)


def from_config(config: dict[str, Any]) -> EpochSchedule:
    """Make a schedule of its description.

    Args:
        config: as `EpochSchedule.config` gives it.

    Returns:
        EpochSchedule: equal to the described one.

    Raises:
        ValueError: if the kind is not known.
    """
    kinds = {kind.__name__: kind for kind in EpochSchedule.__subclasses__()}
    given = dict(config)
    kind = kinds[require_known(given.pop("kind", None), kinds, "kind")]
    for name, value in given.items():
        if isinstance(value, dict):
            given[name] = from_config(value)
        elif isinstance(value, list):
            given[name] = tuple(value)
    return kind(**given)


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers to Python's, and schedules to their description."""
    if isinstance(value, EpochSchedule):
        return value.config()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def whole_steps(epochs: float, steps_per_epoch: int) -> int:
    """Count the steps of some epochs, to the nearest."""
    steps = round(epochs * steps_per_epoch)
    must = f"make each piece of the schedule a step long, {epochs:g} epochs too"
    require(steps >= 1, "steps_per_epoch", must, steps_per_epoch)
    return steps


def _part_left(step: Any, steps: int) -> Any:
    # The difference of whole numbers is exact; 1 - step / steps would lose digits near the end.
    return np.float64(steps - step) / steps


def _require_schedule(value: Any, name: str) -> EpochSchedule:
    then = "Make one with `schedules.warmup`, `schedules.Cosine` or another of that module."
    require(isinstance(value, EpochSchedule), name, "be an EpochSchedule", value, then)
    return value


def _require_rate(value: Any, name: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and 0 <= value < float("inf")
    require(fits, name, "be a finite rate of at least 0", value)


def _require_epochs(value: Any, name: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and 0 < value < float("inf")
    require(fits, name, "be a number of epochs above 0", value)


# Fields of the schedules -> their check.
_CHECKS = {
    **dict.fromkeys(("rate", "start", "end", "low", "high"), _require_rate),
    **dict.fromkeys(("epochs", "every", "cycle", "until", "last"), _require_epochs),
    **dict.fromkeys(("power", "factor", "shrink"), require_positive),
}
