"""Experiments: change one factor at a time, train with several seeds, compare.

baseline = ExperimentConfig(model="mlp", samples=5000, epochs=4, base_rate=0.05)
configs = each_seed({"baseline": baseline, "8": replace(baseline, virtual_workers=8)}, range(5))
results = run(configs, folder="build/experiments/workers")
print(table(results, accuracy=0.85))
print(compare(select(results, "8"), select(results, "baseline")))
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.communicator import SingleProcess
from dlguide.data import datasets
from dlguide.data.datasets import Dataset
from dlguide.errors import (
    require,
    require_count,
    require_known,
    require_not_negative,
    require_positive,
)
from dlguide.files import atomic_write, require_writable
from dlguide.measure import TrainingResult
from dlguide.training import schedules
from dlguide.training.config import FitConfig, TrainingJob
from dlguide.training.divergence import DivergedError
from dlguide.training.schedules import EpochSchedule
from dlguide.training.trainer import fit

if TYPE_CHECKING:
    import keras

    from dlguide.cluster import Cluster
    from dlguide.cluster.tasks import TaskResult

__all__ = [
    "ExperimentConfig",
    "ExperimentResult",
    "ExperimentTable",
    "PairedDifference",
    "RecordError",
    "compare",
    "confidence_interval",
    "each_seed",
    "run",
    "select",
    "table",
]

FORMAT = 3  # of the records
CONFIDENCE = 0.95
_ROUNDING = 1e-12  # standard errors below it are 0, computed in floating point
_NAMES = {
    "rate_scaling": schedules.SCALING,
    "decay": ("none", "step", "linear", "polynomial", "cosine"),
}
# These decay over the epochs after the warmup; "none" and "step" count from the beginning.
_AFTER_WARMUP = {
    "linear": schedules.linear,
    "polynomial": schedules.Polynomial,
    "cosine": schedules.Cosine,
}


class RecordError(RuntimeError):
    """A record of an experiment that is damaged or belongs to another training."""


# --- which trainings ---


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One training of an experiment in plain values: SGD with momentum 0.9 on a named data set.

    The global batch is virtual_workers x batch_per_worker. The learning rate that the warmup
    leads up to follows it:

        rate = base_rate f(global batch / base_batch),  f(k) = 1, k or sqrt(k) by `rate_scaling`

    The decays "none" and "step" (a tenth at each of the `boundaries`) count their epochs from the
    beginning of the training, as in Nyholm's thesis; "linear", "polynomial" and "cosine" fall to 0
    over the epochs after the warmup, as in the PRACE best practice guide.

    Args:
        name: label in tables and plots; it does not change what is trained.
        model: a name that `fit` takes, or one of `run(models=...)`.
        samples: training samples, the first ones; None for all (count).
        warmup: None, "constant", "stepping" or "gradual", for `warmup_epochs`, rising
            with each "step" or each "epoch" (`per`).

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
    epochs: int = 4
    batch_per_worker: int = 32
    virtual_workers: int = 1
    rate_scaling: str = "none"
    base_rate: float = 0.1
    base_batch: int = 32
    warmup: str | None = None
    warmup_epochs: float = 0.0
    per: str = "step"
    decay: str = "none"
    boundaries: tuple[float, ...] = ()
    weight_decay: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"boundaries": tuple(map(float, self.boundaries))}
        for name in ("epochs", "batch_per_worker", "virtual_workers", "base_batch"):
            checked[name] = require_count(getattr(self, name), name)
        if self.samples is not None:
            checked["samples"] = require_count(self.samples, "samples")
        checked["seed"] = require_count(self.seed, "seed", least=0)
        checked["base_rate"] = require_positive(self.base_rate, "base_rate")
        for name in ("warmup_epochs", "weight_decay"):
            checked[name] = require_not_negative(getattr(self, name), name)
        for name, value in checked.items():  # plain Python values: JSON has no NumPy types
            object.__setattr__(self, name, value)
        for name in ("name", "model", "data"):
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
        """Images per step over all workers (count)."""
        return self.virtual_workers * self.batch_per_worker

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
            whole = schedules.StepDecay(self.rate, self.boundaries, self.epochs)
        else:
            whole = schedules.Constant(self.rate, self.epochs)
        return start.over(whole) if start else whole

    def identity(self) -> dict[str, Any]:
        """Return the values that determine the training, JSON-able; others have their default."""
        without_effect = {
            "name": True,
            "rate_scaling": self.global_batch == self.base_batch,
            "warmup_epochs": self.warmup is None,
            "per": self.warmup is None,
            "boundaries": self.decay != "step",
        }
        unused = {one.name: one.default for one in fields(self) if without_effect.get(one.name)}
        values = asdict(self) | unused
        return values | {"boundaries": list(values["boundaries"])}

    def key(self) -> str:
        """Name the record of this training."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def each_seed(
    named: Mapping[str, ExperimentConfig], seeds: Iterable[int] = (0,)
) -> list[ExperimentConfig]:
    """Return configs with their names, each of them repeated with several seeds.

    Raises:
        ValueError: if there is no config or no seed, or a seed comes twice.
    """
    seeds = list(seeds)
    require(bool(named), "named", "hold at least one ExperimentConfig", dict(named))
    require(bool(seeds), "seeds", "hold at least one seed", seeds)
    then = "Repeating one training shows nothing about chance."
    require(len(set(seeds)) == len(seeds), "seeds", "differ", seeds, then)
    return [replace(one, name=name, seed=seed) for name, one in named.items() for seed in seeds]


# --- results and their records ---


@dataclass(frozen=True)
class ExperimentResult:
    """Result of one training; one that diverged has no TrainingResult, and no accuracy.

    `diverged_at` is the epoch, and the step of it, whose loss was not finite, both from 1.
    """

    config: ExperimentConfig
    run: TrainingResult | None
    diverged_at: tuple[int, int] | None = None

    @property
    def diverged(self) -> bool:
        """Whether its loss stopped being a finite number."""
        return self.diverged_at is not None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last epoch (fraction)."""
        return self.run.test_accuracy[-1] if self.run else None

    def seconds_to(self, accuracy: float) -> float | None:
        """Return the training time until a test accuracy was reached for good (s), or None."""
        if self.run is None or self.run.test_accuracy[-1] < accuracy:
            return None
        reached = [one >= accuracy for one in self.run.test_accuracy]
        epoch = len(reached) - reached[::-1].index(False) if False in reached else 0
        spans = [end - begin for name, begin, end in self.run.phases if name == "train"]
        return float(sum(spans[: epoch + 1]))


def select(results: Sequence[ExperimentResult], name: str) -> list[ExperimentResult]:
    """Return the results of one name, one for each seed.

    Raises:
        ValueError: if no result has that name.
    """
    require_known(name, dict.fromkeys(one.config.name for one in results), "name")
    return [one for one in results if one.config.name == name]


def write_record(result: ExperimentResult, path: Path) -> None:
    """Write a result atomically, with a checksum."""
    body = {
        "format": FORMAT,
        "config": result.config.identity(),
        "run": result.run and result.run.as_dict(),
        "diverged_at": result.diverged_at,
    }
    with atomic_write(path) as file:
        file.write(json.dumps({**body, "crc32": _crc32(body)}) + "\n")


def read_record(path: Path, config: ExperimentConfig) -> ExperimentResult:
    """Read a result, which must be of this config and takes its name."""
    then = "Delete the file to train this one again; the others are kept."
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        checksum = body.pop("crc32")
        whole = checksum == _crc32(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is damaged and cannot be read ({error}). {then}") from error
    if not whole:
        raise RecordError(f"{path} is damaged: its checksum does not match. {then}")
    if body["format"] != FORMAT or body["config"] != config.identity():
        raise RecordError(f"{path} is the record of another training. {then}")
    lost, run = body["diverged_at"], body["run"]
    return ExperimentResult(config, run and TrainingResult.from_dict(run), lost and tuple(lost))


def _crc32(body: dict[str, Any]) -> int:
    # of the body as JSON returns it: with lists instead of tuples
    return zlib.crc32(json.dumps(json.loads(json.dumps(body)), sort_keys=True).encode())


# --- trainings ---


def run(
    configs: Sequence[ExperimentConfig],
    folder: str | os.PathLike | None = None,
    cluster: Cluster | None = None,
    models: Mapping[str, Callable[[], keras.Model]] | None = None,
    show: bool = True,
) -> list[ExperimentResult]:
    """Make the trainings of an experiment and record each of them when it ends.

    A training on record is not repeated, so an interrupted experiment resumes and loses only the
    trainings that were running; to measure times here, use a new folder or None. A training whose
    loss stops being a finite number is recorded as diverged. Equal configs are trained once. With
    a cluster, each rank takes the next training as soon as it is free; trainings that run at the
    same time share memory and caches: each is slower than alone.

    Args:
        configs: from `each_seed`.
        folder: of the records, one file per training; None keeps none.
        cluster: ranks that train; None for this process.
        models: name -> function that builds a model; a changed model needs another name.
        show: whether to print progress.

    Returns:
        list: one ExperimentResult for each config, in their order.

    Raises:
        ValueError: if a training is impossible, before any is made.
        RecordError: if a record is damaged, before any training is made.
        RuntimeError: if a training failed on a rank; the others are on record.
    """
    configs, models = list(configs), dict(models or {})
    require(bool(configs), "configs", "hold at least one ExperimentConfig", configs)
    for config in configs:
        require(isinstance(config, ExperimentConfig), "configs", "hold ExperimentConfigs", config)
        _require_possible(config, models)
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="dlguide-experiments-"))
        require_writable(folder, "folder")
        paths = [Path(folder) / f"{config.key()}.json" for config in configs]
        todo: dict[Path, ExperimentConfig] = {}
        for path, config in zip(paths, configs, strict=True):
            if path.exists():
                read_record(path, config)  # damage is an error now, not after hours of training
            else:
                todo.setdefault(path, config)
        record = _Recorder(list(todo), show)
        if cluster is None:
            for config in todo.values():
                record(train(models, config))
        else:
            made = partial(train, models)
            for one in cluster.map(made, list(todo.values()), on_result=record.task):
                if one.error:
                    raise RuntimeError(f"A training failed: {one.error}\n{one.traceback}")
        return [read_record(path, config) for path, config in zip(paths, configs, strict=True)]


class _Recorder:
    """Records the trainings that end, and prints their progress, at most ten lines."""

    def __init__(self, paths: Sequence[Path], show: bool) -> None:
        self.folder, self.total = paths[0].parent if paths else Path(), len(paths)
        self.show, self.done, self.begin_s = show, 0, time.monotonic()

    def task(self, ended: TaskResult) -> None:
        """Record what a rank has trained, unless it failed."""
        if not ended.error:
            self(ended.value)

    def __call__(self, result: ExperimentResult) -> None:
        config = result.config
        write_record(result, self.folder / f"{config.key()}.json")
        self.done += 1
        done, total = self.done, self.total
        if not self.show or 10 * done // total == 10 * (done - 1) // total:
            return
        outcome = "diverged" if result.diverged else f"{result.accuracy:.2%}"
        left_s = (time.monotonic() - self.begin_s) * (total - done) / done
        left = f", about {left_s:.0f} s left" if done < total else ""
        name = config.name or config.model
        print(f"{done} of {total}: {name}, seed {config.seed}: {outcome}{left}", flush=True)


def train(models: Mapping, config: ExperimentConfig) -> ExperimentResult:
    """Make one training in this process."""
    options = _fit_options(config, models)
    try:
        return ExperimentResult(config, fit(**options, comm=SingleProcess()))
    except DivergedError as error:
        return ExperimentResult(config, None, (error.epoch, error.step))


def _require_possible(config: ExperimentConfig, models: Mapping) -> None:
    """Check that `fit` can do a training, before anything is trained."""
    options = _fit_options(config, models)
    samples = len(options["data"].train_labels)
    config.require_samples(samples)
    steps = math.ceil(samples / config.global_batch)
    config.schedule().to_steps(steps, epochs=config.epochs)
    TrainingJob(**options).check()


def _fit_options(config: ExperimentConfig, models: Mapping) -> dict[str, Any]:
    whole = _load(config.data)
    return {
        "model": models.get(config.model, config.model),
        "data": whole if config.samples is None else whole.first(config.samples),
        "epochs": config.epochs,
        "batch_per_rank": config.global_batch,
        "learning_rate": config.schedule(),
        "optimizer": partial(_optimizer, config),
        "config": FitConfig(seed=config.seed, virtual_workers=config.virtual_workers),
    }


@lru_cache(maxsize=2)
def _load(name: str) -> Dataset:
    # the trainings of an experiment share the data; reading it takes longer than some of them
    return datasets.load(name)


def _optimizer(config: ExperimentConfig, rate: Any) -> keras.Optimizer:
    from dlguide.training.optimizers import MomentumSGD

    return MomentumSGD(rate, weight_decay=config.weight_decay or None)


# --- two recipes ---


@dataclass(frozen=True)
class PairedDifference:
    """Difference in accuracy of two recipes, first - second, seed by seed; prints as a sentence.

    `values` are those of the seeds with which neither diverged (fractions), `diverged` counts the
    seeds with which the first and the second one did.
    """

    first: str
    second: str
    values: tuple[float, ...]
    diverged: tuple[int, int] = (0, 0)

    @property
    def mean(self) -> float | None:
        """Mean difference; None without a pair."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def clear(self) -> bool:
        """Whether 0 lies outside the 95 % confidence interval of the mean.

        Never for one value, nor for two equal ones, which a finite test set may give by chance.
        """
        interval = confidence_interval(self.values)
        if interval is None or (len(self.values) < 3 and np.ptp(self.values) < _ROUNDING):
            return False
        return interval[0] > 0 or interval[1] < 0

    def __str__(self) -> str:
        names = zip((self.first, self.second), self.diverged, strict=True)
        lost = [f"{name} diverged with {n} seed{'s' * (n > 1)}" for name, n in names if n]
        return self._mean_in_words() + (f" But {' and '.join(lost)}, left out here." * bool(lost))

    def _mean_in_words(self) -> str:
        if self.mean is None:
            return f"{self.first} and {self.second} share no seed with which neither diverged."
        side = "above" if self.mean > 0 else "below"
        words = f"{self.first} is {100 * abs(self.mean):.2f} points {side} {self.second}"
        if self.mean == 0:
            words = f"{self.first} and {self.second} have equal means"
        interval = confidence_interval(self.values)
        if interval is None:
            return f"{words} with one seed, which shows nothing about chance."
        low, high = (100 * end for end in interval)
        words += f" (95 % interval {low:+.2f} to {high:+.2f}, {len(self.values)} pairs of seeds)"
        return f"{words}: {'clear' if self.clear else 'not distinguishable from chance'}."


def compare(
    first: Sequence[ExperimentResult], second: Sequence[ExperimentResult]
) -> PairedDifference:
    """Return the difference in accuracy of two recipes over the seeds that both have.

    The same seed affects both recipes alike, so the differences of pairs with equal seed vary
    less than the accuracies. A pair of which one diverged has no difference and is counted.

    Args:
        first: results of one name.
        second: results of another name.

    Raises:
        ValueError: if one of them holds several recipes, or they share no seed.
    """
    ones = {one.config.seed: one for one in _require_one_recipe(first)}
    others = {one.config.seed: one for one in _require_one_recipe(second)}
    both = [seed for seed in ones if seed in others]
    then = "Train both with the same seeds."
    require(bool(both), "second", f"share a seed with {sorted(ones)}", sorted(others), then)
    values = tuple(
        ones[seed].accuracy - others[seed].accuracy
        for seed in both
        if not ones[seed].diverged and not others[seed].diverged
    )
    lost = tuple(sum(each[seed].diverged for seed in both) for each in (ones, others))
    return PairedDifference(first[0].config.name, second[0].config.name, values, lost)


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of some values, by Student's t.

    Args:
        values: one for each seed, for example paired differences.

    Returns:
        tuple: lower and upper end; None for fewer than 2 values.
    """
    if len(values) < 2:
        return None
    from scipy import stats

    t = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    mean, half = float(np.mean(values)), float(t * stats.sem(values))
    return mean - half, mean + half


def _require_one_recipe(results: Sequence[ExperimentResult]) -> Sequence[ExperimentResult]:
    """Require results that differ in their seed only."""
    require(bool(results), "results", "hold at least one ExperimentResult", results)
    first = results[0].config.identity()
    for one in results:
        other = one.config.identity()
        odd = [name for name in first if name != "seed" and first[name] != other[name]]
        must = f"differ in their seed only under the name {results[0].config.name!r}"
        require(not odd, "results", must, f"other values of {', '.join(odd)}")
    seeds = [one.config.seed for one in results]
    require(len(set(seeds)) == len(seeds), "results", "have each seed once", seeds)
    return results


# --- tables ---


@dataclass(frozen=True)
class ExperimentRow:
    """Results of one recipe over its seeds.

    Accuracies are on the test set after the last epoch, of the seeds that did not diverge; None if
    all did. `reached` counts the seeds that reached the accuracy asked for and did not lose it;
    `seconds` is the median time of training until then, None if half or more never did.
    """

    seeds: int
    diverged: int
    accuracy: float | None
    standard_error: float | None
    lowest: float | None
    highest: float | None
    images_per_s: float | None
    reached: int
    seconds: float | None


@dataclass(frozen=True)
class ExperimentTable:
    """Rows of an experiment by name; prints as text. `target` is the accuracy that is timed."""

    rows: dict[str, ExperimentRow]
    target: float | None = None

    def __getitem__(self, name: str) -> ExperimentRow:
        return self.rows[require_known(name, self.rows, "name")]

    def __str__(self) -> str:
        head = ["", "seeds", "test accuracy (%)", "lowest to highest", "images/s"]
        if self.target is not None:
            head.append(f"s until {100 * self.target:g} % held")
        cells = [head, *(self._cells(*item) for item in self.rows.items())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            padded = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
            lines.append("  ".join([line[0].ljust(widths[0]), *padded[1:]]).rstrip())
        return "\n".join(lines)

    def _cells(self, name: str, row: ExperimentRow) -> list[str]:
        accuracy, between, speed = "all diverged", "", ""
        if row.accuracy is not None:
            error = "" if row.standard_error is None else f" ± {100 * row.standard_error:.2f}"
            accuracy = f"{100 * row.accuracy:.2f}{error}"
            between = f"{100 * row.lowest:.2f} to {100 * row.highest:.2f}"
            speed = f"{row.images_per_s:.0f}"
            if row.diverged:
                accuracy += f" ({row.diverged} diverged)"
        cells = [name, str(row.seeds), accuracy, between, speed]
        if self.target is not None:
            seconds = "never" if row.seconds is None else f"{row.seconds:.2f}"
            some = f" ({row.reached} of {row.seeds})" if 0 < row.reached < row.seeds else ""
            cells.append(seconds + some)
        return cells


def table(results: Sequence[ExperimentResult], accuracy: float | None = None) -> ExperimentTable:
    """Return a table of results, one row for each name in the order of their first results.

    Args:
        results: of `run`.
        accuracy: test accuracy whose time is tabulated (fraction); None for none.

    Raises:
        ValueError: if results of one row differ in more than their seed.
    """
    fits = accuracy is None or 0 < accuracy <= 1
    require(fits, "accuracy", "be a fraction above 0 and at most 1", accuracy, "95 % is 0.95.")
    require(bool(results), "results", "hold at least one ExperimentResult", results)
    names = dict.fromkeys(one.config.name for one in results)
    rows = {name: _row(_require_one_recipe(select(results, name)), accuracy) for name in names}
    return ExperimentTable(rows, accuracy)


def _row(results: Sequence[ExperimentResult], accuracy: float | None) -> ExperimentRow:
    from scipy import stats

    values = [one.accuracy for one in results if not one.diverged]
    times = [None if accuracy is None else one.seconds_to(accuracy) for one in results]
    reached = [one for one in times if one is not None]
    median = float(np.median(reached + [math.inf] * (len(results) - len(reached))))
    speeds = [one.run.images_per_s for one in results if one.run]
    return ExperimentRow(
        seeds=len(results),
        diverged=len(results) - len(values),
        accuracy=float(np.mean(values)) if values else None,
        standard_error=float(stats.sem(values)) if len(values) > 1 else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        images_per_s=float(np.median(speeds)) if speeds else None,
        reached=len(reached),
        seconds=median if math.isfinite(median) else None,
    )
