"""ExperimentConfig: one training of an experiment in plain values, and the trainings to compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.training import schedules
from dlguide.training.schedules import EpochSchedule

if TYPE_CHECKING:
    from dlguide.training.experiments.running import ExperimentResult

_NAMES = {
    "rate_scaling": schedules.SCALING,
    "decay": ("none", "step", "linear", "polynomial", "cosine"),
    "optimizer": ("momentum", "adam", "lars", "lamb"),
    "dtype": ("float32", "float64", "mixed_bfloat16", "mixed_float16"),  # of `models.build`
}
# These decay over the epochs after the warmup; "none" and "step" count from the beginning.
_AFTER_WARMUP = {
    "linear": schedules.linear,
    "polynomial": schedules.Polynomial,
    "cosine": schedules.Cosine,
}


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """The configuration of one training of an experiment, in plain values.

    The global batch is ranks x virtual_workers x batch_per_worker. The learning rate that the
    warmup leads up to follows it:

        rate = base_rate f(global batch / base_batch),  f(k) = 1, k or sqrt(k) by `rate_scaling`

    The decays "none" and "step" count their epochs from the beginning of the training, as in
    Nyholm's thesis; "linear", "polynomial" and "cosine" fall to 0 over the epochs after the
    warmup, as in the PRACE best practice guide.

    Args:
        name: label in tables and plots; it does not change what is trained.
        model: a name that `fit` takes, or one of `run(models=...)`.
        data: a name that `fit` takes, or one of `run(data=...)`.
        samples: training samples, the first ones; None for all (count).
        test_samples: test samples, the first ones; None for all (count).
        epochs: passes over the training samples (count).
        batch_per_worker: images per virtual worker and step (count). The `batch_per_rank` of
            `fit` is virtual_workers times as large.
        virtual_workers: workers that each rank computes one after the other (count).
        ranks: processes that train together (count).
        threads: of each process; None for its default (count).
        rate_scaling: how the rate follows the global batch: "none", "linear" or "sqrt".
        base_rate: learning rate for a global batch of `base_batch`.
        base_batch: global batch for which `base_rate` was chosen (count).
        warmup: None, "constant", "stepping" or "gradual".
        warmup_epochs: its length; ignored without a warmup (epochs).
        per: whether a warmup rises with each "step" or each "epoch".
        decay: "none", "step", "linear", "polynomial" or "cosine".
        boundaries: epochs at which a "step" decay multiplies the rate by `factor`.
        factor: of a "step" decay.
        optimizer: "momentum", "adam", "lars" or "lamb".
        momentum: of "momentum" and "lars".
        weight_decay: of all but "adam".
        trust: trust coefficient of "lars".
        dtype: as in `FitConfig`.
        dropout: as in `FitConfig`.
        seed: of the initial weights, of the order of samples and of dropout.

    Raises:
        ValueError: if a value is not allowed, or values do not fit together.

    >>> config = ExperimentConfig(batch_per_worker=32, virtual_workers=32, rate_scaling="linear",
    ...                           base_rate=0.05, base_batch=32)
    >>> config.global_batch, config.rate
    (1024, 1.6)
    """

    name: str = ""
    model: str = "mlp"
    data: str = "mnist"
    samples: int | None = None
    test_samples: int | None = None
    epochs: int = 4
    batch_per_worker: int = 32
    virtual_workers: int = 1
    ranks: int = 1
    threads: int | None = None
    rate_scaling: str = "none"
    base_rate: float = 0.1
    base_batch: int = 32
    warmup: str | None = None
    warmup_epochs: float = 0.0
    per: str = "step"
    decay: str = "none"
    boundaries: tuple[float, ...] = ()
    factor: float = 0.1
    optimizer: str = "momentum"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    trust: float = 0.001
    dtype: str = "float32"
    dropout: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"boundaries": tuple(map(float, self.boundaries))}
        for name in ("epochs", "batch_per_worker", "virtual_workers", "ranks", "base_batch"):
            checked[name] = require_count(getattr(self, name), name)
        for name in ("samples", "test_samples", "threads"):
            if getattr(self, name) is not None:
                checked[name] = require_count(getattr(self, name), name)
        checked["seed"] = require_count(self.seed, "seed", least=0)
        for name in ("base_rate", "factor", "trust"):
            checked[name] = require_positive(getattr(self, name), name)
        for name in ("warmup_epochs", "momentum", "weight_decay"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and 0 <= value < float("inf")
            require(number, name, "be a number of at least 0", value)
            checked[name] = float(value)
        must = "be below 1, or no step is ever forgotten"
        require(self.momentum < 1, "momentum", must, self.momentum, "0.9 is usual.")
        if self.dropout is not None:
            fits = isinstance(self.dropout, Real) and 0 <= self.dropout < 1
            require(fits, "dropout", "be None or a fraction of 0 to below 1", self.dropout)
            checked["dropout"] = float(self.dropout)
        for name, value in checked.items():  # plain Python values: JSON has no NumPy types
            object.__setattr__(self, name, value)
        for name in ("name", "model", "data", "dtype"):
            value, then = getattr(self, name), "`run` takes models and data by name."
            require(isinstance(value, str), name, "be a text", value, then)
        for name, known in _NAMES.items():
            require_known(getattr(self, name), known, name)
        if self.warmup is not None:
            require_known(self.warmup, schedules.WARMUPS, "warmup")
            must, then = "be more than 0 for a warmup", "Give its length, or `warmup=None`."
            require(self.warmup_epochs > 0, "warmup_epochs", must, self.warmup_epochs, then)
            must = f"be less than the {self.epochs} epochs of the training"
            then = "Shorten the warmup or train longer."
            fits = self.warmup_epochs < self.epochs
            require(fits, "warmup_epochs", must, self.warmup_epochs, then)
        if self.decay == "step":
            must, then = "name the epochs of a step decay", "For example (2, 3) of 4 epochs."
            require(bool(self.boundaries), "boundaries", must, self.boundaries, then)
        if self.samples is not None:
            self.require_samples(self.samples)
        self.schedule()

    def require_samples(self, samples: int) -> None:
        """Require as many training samples as one global batch has."""
        must = f"give a global batch of at most the {samples} samples of {self.data}"
        then = "Use fewer workers or more samples."
        fits = self.global_batch <= samples
        require(fits, "batch_per_worker", must, self.global_batch, then)

    @property
    def global_batch(self) -> int:
        """Images per step over all workers and ranks (count)."""
        return self.ranks * self.virtual_workers * self.batch_per_worker

    @property
    def rate(self) -> float:
        """Learning rate for the global batch, to which a warmup leads up."""
        batches = (self.global_batch, self.base_batch)
        return schedules.scaled(self.base_rate, *batches, self.rate_scaling)

    def schedule(self) -> EpochSchedule:
        """Build the learning-rate schedule of the whole training."""
        length, start = self.warmup_epochs if self.warmup else 0.0, None
        if self.warmup:
            # a stepping warmup has its own formula; one that would not rise stays level
            first = None if self.warmup == "stepping" else min(self.base_rate, self.rate)
            start = schedules.warmup(self.warmup, self.rate, length, first, self.per)
        if self.decay in _AFTER_WARMUP:
            falling = _AFTER_WARMUP[self.decay](self.rate, self.epochs - length)
            return start.then(falling) if start else falling
        if self.decay == "step":
            whole = schedules.StepDecay(self.rate, self.boundaries, self.epochs, self.factor)
        else:
            whole = schedules.Constant(self.rate, self.epochs)
        return start.over(whole) if start else whole

    def identity(self) -> dict[str, Any]:
        """Return the values that determine the training, JSON-able; others have their default."""
        unused = ["name"]
        if self.global_batch == self.base_batch:
            unused.append("rate_scaling")
        if self.warmup is None:
            unused += ["warmup_epochs", "per"]
        if self.decay != "step":
            unused += ["boundaries", "factor"]
        if self.optimizer not in ("momentum", "lars"):
            unused.append("momentum")
        if self.optimizer == "adam":
            unused.append("weight_decay")
        if self.optimizer != "lars":
            unused.append("trust")
        default = {field.name: field.default for field in fields(self)}
        return _json(asdict(self) | {name: default[name] for name in unused})

    def key(self, digest: str = "") -> str:
        """Name the record of this training, on the caller's own data of that digest."""
        text = json.dumps([self.identity(), digest], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, JSON-able; `from_dict` reads them."""
        return _json(asdict(self))

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> ExperimentConfig:
        """Build a config from the result of `as_dict` or `identity`."""
        for name in record:
            require_known(name, [field.name for field in fields(cls)], "record")
        return cls(**record)


def _json(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"boundaries": list(values["boundaries"])}


FACTORS = tuple(
    field.name for field in fields(ExperimentConfig) if field.name not in ("name", "seed")
)


def one_factor(
    baseline: ExperimentConfig,
    factors: Mapping[str | tuple[str, ...], Iterable[Any]],
    seeds: Iterable[int] = (0,),
) -> list[ExperimentConfig]:
    """Change one factor of a baseline at a time, over several seeds.

        one_factor(baseline, {"virtual_workers": (8, 32),
                              ("rate_scaling", "warmup"): [("linear", "gradual")]})

    A training that is already listed is not listed again: a value that equals the baseline's, or
    one without effect, such as a scaling of the rate if the batch is the base batch.

    Args:
        baseline: the config that all others are compared with.
        factors: for each field of the config its values; fields that change together are a
            tuple, and so are their values.
        seeds: every training is made with each of them.

    Returns:
        list: configs with names such as "baseline", "virtual_workers 8" or "rate_scaling linear,
            warmup gradual"; all seeds of a name are neighbours.

    Raises:
        ValueError: if a field is unknown or a training is impossible.
    """
    named = {baseline.name or "baseline": baseline}
    for factor, values in factors.items():
        names = (factor,) if isinstance(factor, str) else tuple(factor)
        for name in names:
            require_known(name, FACTORS, "factors")
        for value in values:
            each = (value,) if isinstance(factor, str) else tuple(value)
            must = f"have {len(names)} values for {', '.join(names)}"
            require(len(each) == len(names), "factors", must, value)
            label = ", ".join(f"{n} {_text(v)}" for n, v in zip(names, each, strict=True))
            named[label] = replace(baseline, **dict(zip(names, each, strict=True)))
    first: dict[str, str] = {}
    for name, config in named.items():
        first.setdefault(config.key(), name)
    return each_seed({name: named[name] for name in first.values()}, seeds)


def each_seed(
    named: Mapping[str, ExperimentConfig], seeds: Iterable[int] = (0,)
) -> list[ExperimentConfig]:
    """Name configs and repeat each of them with several seeds.

    Two names of one training are both kept; `run` trains it once.

    Args:
        named: name -> config.
        seeds: of initial weights, order of samples and dropout.

    Returns:
        list: all seeds of the first name, then those of the next one.

    Raises:
        ValueError: if there is no config or no seed, or a seed comes twice.
    """
    seeds = list(seeds)
    require(bool(named), "named", "hold at least one ExperimentConfig", dict(named))
    require(bool(seeds), "seeds", "hold at least one seed", seeds)
    then = "Repeating one training shows nothing about chance."
    require(len(set(seeds)) == len(seeds), "seeds", "differ", seeds, then)
    return [replace(one, name=name, seed=seed) for name, one in named.items() for seed in seeds]


def select(results: Sequence[ExperimentResult], name: str) -> list[ExperimentResult]:
    """Select the results of one name, all its seeds.

    Returns:
        list: one result for each seed.

    Raises:
        ValueError: if no result has that name.
    """
    require_known(name, dict.fromkeys(one.config.name for one in results), "name")
    return [one for one in results if one.config.name == name]


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
