"""Setting: one training of an experiment, in plain values that a record can hold."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.training import schedules
from dlguide.training.schedules import EpochSchedule

RULES = ("none", "linear", "sqrt")
WARMUPS = (None, *schedules.WARMUPS)
DECAYS = ("none", "step", "linear", "polynomial", "cosine")
OPTIMIZERS = ("momentum", "adam", "lars", "lamb")
DTYPES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")  # of `models.build`
# After the warmup these fall over what is left; "none" and "step" count from the beginning.
_AFTER = {
    "linear": schedules.linear,
    "polynomial": schedules.Polynomial,
    "cosine": schedules.Cosine,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one training of an experiment is asked to do.

    The global batch is ranks x workers x batch. The rate that the warmup leads up to follows it,

        rate = base_rate f(global batch / base_batch),  f(k) = 1, k or sqrt(k) by the rule.

    "none" and "step" count their epochs from the beginning of the training, as the thesis does;
    "linear", "polynomial" and "cosine" fall to 0 over the epochs after the warmup, as the guide
    has it.

    Args:
        name: what tables and plots call it; no part of what is trained.
        net: a name that `fit` takes, or one of `run(nets=...)`.
        data: a name that `fit` takes, or one of `run(data=...)`.
        samples: training samples, the first ones; None for all (count).
        test_samples: test samples, the first ones; None for all (count).
        epochs: passes over the training samples (count).
        batch: images per worker and step (count).
        workers: that one rank plays, as `fit` has it (count).
        ranks: processes that train together (count).
        threads: of each process; None for as many as it has (count).
        rule: how the rate follows the global batch: "none", "linear" or "sqrt".
        base_rate: rate for a global batch of `base_batch`.
        base_batch: global batch that `base_rate` was found for (count).
        warmup: None, "constant", "stepping" or "gradual".
        warmup_epochs: its length, of no account where there is none (epochs).
        per: whether a warmup rises with each "step" or each "epoch".
        decay: one of `DECAYS`.
        boundaries: epochs at which a "step" decay multiplies the rate by `factor`.
        factor: of a "step" decay.
        optimizer: "momentum", "adam", "lars" or "lamb".
        momentum: of "momentum" and "lars".
        weight_decay: of all but "adam".
        trust: trust coefficient of "lars".
        dtype: as `fit` takes it.
        dropout: as `fit` takes it.
        seed: of the first weights, of the order of samples, of dropout.

    Raises:
        ValueError: when a value is not what it must be, or values do not go together.

    >>> setting = Setting(batch=32, workers=32, rule="linear", base_rate=0.05, base_batch=32)
    >>> setting.global_batch, setting.rate
    (1024, 1.6)
    """

    name: str = ""
    net: str = "mlp"
    data: str = "mnist"
    samples: int | None = None
    test_samples: int | None = None
    epochs: int = 4
    batch: int = 32
    workers: int = 1
    ranks: int = 1
    threads: int | None = None
    rule: str = "none"
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
        self._keep("boundaries", tuple(map(float, self.boundaries)))
        for name in ("epochs", "batch", "workers", "ranks", "base_batch"):
            self._keep(name, require_count(getattr(self, name), name))
        for name in ("samples", "test_samples", "threads"):
            if getattr(self, name) is not None:
                self._keep(name, require_count(getattr(self, name), name))
        self._keep("seed", require_count(self.seed, "seed", least=0))
        for name in ("base_rate", "factor", "trust"):
            self._keep(name, require_positive(getattr(self, name), name))
        for name in ("warmup_epochs", "momentum", "weight_decay"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and 0 <= value < float("inf")
            require(number, name, "be a number of at least 0", value)
            self._keep(name, float(value))
        must = "be below 1, or no step is ever forgotten"
        require(self.momentum < 1, "momentum", must, self.momentum, "0.9 is usual.")
        if self.dropout is not None:
            fits = isinstance(self.dropout, Real) and 0 <= self.dropout < 1
            require(fits, "dropout", "be None or a share of 0 to below 1", self.dropout)
            self._keep("dropout", float(self.dropout))
        for name in ("name", "net", "data", "dtype"):
            value = getattr(self, name)
            require(isinstance(value, str), name, "be a text", value, "`run` takes the thing.")
        require_known(self.rule, RULES, "rule")
        require_known(self.decay, DECAYS, "decay")
        require_known(self.optimizer, OPTIMIZERS, "optimizer")
        require_known(self.dtype, DTYPES, "dtype")
        if self.warmup is not None:
            require_known(self.warmup, schedules.WARMUPS, "warmup")
            positive = self.warmup_epochs > 0
            then = "Give its length, or `warmup=None`."
            must = "be more than 0 for a warmup"
            require(positive, "warmup_epochs", must, self.warmup_epochs, then)
            must = f"be less than the {self.epochs} epochs of the training"
            then = "Shorten the warmup or train longer."
            fits = self.warmup_epochs < self.epochs
            require(fits, "warmup_epochs", must, self.warmup_epochs, then)
        if self.decay == "step":
            then = "For example (2, 3) of 4 epochs."
            must = "name the epochs of a step decay"
            require(bool(self.boundaries), "boundaries", must, self.boundaries, then)
        if self.samples is not None:
            must = f"be at most the {self.samples} samples, ranks x workers x batch"
            fits = self.global_batch <= self.samples
            require(fits, "batch", must, self.global_batch, "Use fewer workers or more samples.")
        self.recipe()

    def _keep(self, name: str, value: Any) -> None:
        """Store a value in its plain type: JSON knows none of NumPy's, and lists only."""
        object.__setattr__(self, name, value)

    @property
    def global_batch(self) -> int:
        """Images per step over all workers and ranks (count)."""
        return self.ranks * self.workers * self.batch

    @property
    def rate(self) -> float:
        """The rate for the global batch, to which a warmup leads up."""
        return schedules.scaled(self.base_rate, self.global_batch, self.base_batch, self.rule)

    def recipe(self) -> EpochSchedule:
        """Put the rate's course together.

        Returns:
            EpochSchedule: as long as the training.

        Raises:
            ValueError: when its parts do not go together.
        """
        length, start = self.warmup_epochs if self.warmup else 0.0, None
        if self.warmup:
            # a stepping warmup starts by its own formula; one that would not rise stays level
            first = None if self.warmup == "stepping" else min(self.base_rate, self.rate)
            start = schedules.warmup(self.warmup, self.rate, length, first, self.per)
        if self.decay in _AFTER:
            falling = _AFTER[self.decay](self.rate, self.epochs - length)
            return start.then(falling) if start else falling
        if self.decay == "step":
            whole = schedules.StepDecay(self.rate, self.boundaries, self.epochs, self.factor)
        else:
            whole = schedules.Constant(self.rate, self.epochs)
        return start.over(whole) if start else whole

    def identity(self) -> dict[str, Any]:
        """Give what is trained, without what makes no difference to it.

        The name, the length of a warmup that is not there, the rule where the global batch is
        the base batch, and numbers of other optimizers.
        """
        told = {**self.as_dict(), "name": ""}
        plain = {field.name: field.default for field in fields(self)}
        unused = []
        if self.global_batch == self.base_batch:
            unused.append("rule")
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
        told |= {name: plain[name] for name in unused}
        return told | {"boundaries": list(told["boundaries"])}

    def key(self, digest: str = "") -> str:
        """Name the record of this training.

        Args:
            digest: of data of one's own.

        Returns:
            str: 16 hexadecimal digits.
        """
        text = json.dumps([self.identity(), digest], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Give all fields, JSON-able; `from_dict` reads them back."""
        return asdict(self) | {"boundaries": list(self.boundaries)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Setting:
        """Read a Setting back from what `as_dict` or `identity` wrote."""
        for name in record:
            require_known(name, [field.name for field in fields(cls)], "record")
        return cls(**record)
