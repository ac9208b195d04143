"""The trainings of an experiment, here or on the ranks of a cluster, and the record of each."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import models as known_models
from dlguide.data import datasets
from dlguide.data.datasets import Dataset
from dlguide.errors import require, require_known
from dlguide.files import atomic_write, require_writable
from dlguide.measure import TrainingResult, digest_of
from dlguide.training.config import FitConfig, TrainingJob
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.experiments.config import ExperimentConfig
from dlguide.training.trainer import fit

if TYPE_CHECKING:
    import keras

    from dlguide.cluster import Cluster

FORMAT = 2  # of the records
_UNPICKLE_AND_CALL = """
import sys, cloudpickle
with open(sys.argv[1], "rb") as file:
    function, arguments = cloudpickle.load(file)
function(*arguments)
"""


class RecordError(RuntimeError):
    """A record of an experiment that is damaged or belongs to another training."""


# --- results ---


@dataclass(frozen=True)
class Divergence:
    """Where the loss was first not a finite number: epoch, and step of it, both from 1."""

    epoch: int
    step: int


@dataclass(frozen=True)
class TimeToAccuracy:
    """When a test accuracy was reached that was not lost again until the end of the run.

    seconds (of training, including the tracing of the first step, without evaluation and setup),
    evaluate_s (of all evaluations until then), epochs (count).
    """

    seconds: float
    evaluate_s: float
    epochs: int


@dataclass(frozen=True)
class ExperimentResult:
    """Result of one training: its config, the TrainingResult of each rank, and where it diverged.

    A training that diverged has no TrainingResults, and its accuracy is None.
    """

    config: ExperimentConfig
    runs: tuple[TrainingResult, ...]
    divergence: Divergence | None = None

    @property
    def diverged(self) -> bool:
        """Whether its loss stopped being a finite number."""
        return self.divergence is not None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last epoch (fraction); None if it diverged."""
        return None if self.diverged else self.runs[0].test_accuracy[-1]

    @property
    def images_per_s(self) -> float | None:
        """Steady throughput over all ranks, of the slowest one; None if it diverged."""
        return None if self.diverged else min(run.images_per_s for run in self.runs)

    @property
    def test_error(self) -> tuple[float, ...]:
        """1 - test accuracy after each epoch (fraction)."""
        return tuple(1 - one for one in self.runs[0].test_accuracy) if self.runs else ()

    @property
    def train_error(self) -> tuple[float, ...]:
        """1 - training accuracy of each epoch (fraction); empty if it was not counted."""
        return tuple(1 - one for one in self.runs[0].train_accuracy) if self.runs else ()

    @property
    def loss(self) -> tuple[float, ...]:
        """Mean training loss of each epoch."""
        return self.runs[0].loss if self.runs else ()

    @property
    def train_s(self) -> tuple[float, ...]:
        """Training time until the end of each epoch, of the slowest rank (s)."""
        return self._slowest("train")

    @property
    def evaluate_s(self) -> tuple[float, ...]:
        """Evaluation time until the end of each epoch, of the slowest rank (s)."""
        return self._slowest("evaluate")

    def _slowest(self, phase: str) -> tuple[float, ...]:
        sums = [
            np.cumsum([end - begin for name, begin, end in run.phases if name == phase])
            for run in self.runs
        ]
        return tuple(map(max, zip(*(one.tolist() for one in sums), strict=True)))

    def time_to_accuracy(self, accuracy: float) -> TimeToAccuracy | None:
        """Find the first epoch from which on every evaluation has at least a test accuracy.

        Args:
            accuracy: fraction of correct predictions on the test set.

        Returns:
            TimeToAccuracy: None if it was not reached, or lost again.

        Raises:
            ValueError: if `accuracy` is not a fraction.
        """
        require_fraction(accuracy, "accuracy")
        reached = [one >= accuracy for one in (() if self.diverged else self.runs[0].test_accuracy)]
        if not reached or not reached[-1]:
            return None
        epoch = len(reached) - reached[::-1].index(False) if False in reached else 0
        return TimeToAccuracy(self.train_s[epoch], self.evaluate_s[epoch], epoch + 1)


def require_fraction(value: Any, name: str) -> None:
    """Refuse what is not a fraction, such as a percentage."""
    fits = isinstance(value, int | float) and 0 < value <= 1
    require(fits, name, "be a fraction above 0 and at most 1", value, "95 % is 0.95.")


# --- records ---


def write_record(result: ExperimentResult, path: Path) -> None:
    """Write a result atomically, with a checksum."""
    body = {
        "format": FORMAT,
        "config": result.config.identity(),
        "runs": [run.as_dict() for run in result.runs],
        "divergence": None if result.divergence is None else asdict(result.divergence),
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
    lost = body["divergence"]
    runs = tuple(TrainingResult.from_dict(run) for run in body["runs"])
    return ExperimentResult(config, runs, None if lost is None else Divergence(**lost))


def _crc32(body: dict[str, Any]) -> int:
    # of the body as JSON returns it: with lists instead of tuples
    return zlib.crc32(json.dumps(json.loads(json.dumps(body)), sort_keys=True).encode())


# --- one training ---


def train(
    config: ExperimentConfig, models: Mapping, data: Mapping, all_ranks: bool, silent: bool = False
) -> TrainingResult | Divergence:
    """Train on this process, or on all ranks, each of which must call this."""
    options = _fit_options(config, models, load(config, data))
    on_result = (lambda **_numbers: None) if silent else None
    try:
        return fit(**options, comm=connect(all_ranks), on_result=on_result)
    except DivergedError as error:  # the same on all ranks
        return Divergence(error.epoch, error.step)


def check(config: ExperimentConfig, models: Mapping, data: Dataset) -> None:
    """Check that `fit` can do the training, before anything is trained."""
    samples = len(data.train_labels)
    config.require_samples(samples)
    steps = math.ceil(samples / config.global_batch)
    config.schedule().to_steps(steps, epochs=config.epochs)
    TrainingJob(**_fit_options(config, models, data)).check()


def _fit_options(config: ExperimentConfig, models: Mapping, data: Dataset) -> dict[str, Any]:
    return {
        "model": models.get(config.model, config.model),
        "data": data,
        "epochs": config.epochs,
        "batch_per_rank": config.virtual_workers * config.batch_per_worker,
        "learning_rate": config.schedule(),
        "optimizer": partial(make_optimizer, config),
        "config": FitConfig(
            seed=config.seed, dropout=config.dropout, dtype=config.dtype,
            virtual_workers=config.virtual_workers,
        ),
    }  # fmt: skip


def load(config: ExperimentConfig, data: Mapping) -> Dataset:
    """Load the samples of a config, as views of the whole data set."""
    own = data.get(config.data)
    whole = own() if callable(own) else own
    whole = _load_named(config.data) if whole is None else whole
    samples = len(whole.train_labels) if config.samples is None else config.samples
    return whole.first(samples, config.test_samples)


@lru_cache(maxsize=1)
def _load_named(name: str) -> Dataset:
    # the trainings of an experiment share the data; reading it takes longer than some of them
    return datasets.load(name)


def _digest(data: Dataset) -> str:
    """Name the caller's own data by its contents: other data is another training."""
    return digest_of((data.train_images, data.train_labels, data.test_images, data.test_labels))


def make_optimizer(config: ExperimentConfig, rate: Any) -> keras.Optimizer:
    """Build the optimizer of a config."""
    import keras

    from dlguide.training import optimizers

    decay = {"weight_decay": config.weight_decay or None}
    if config.optimizer == "adam":
        made = keras.optimizers.Adam(rate)
    elif config.optimizer == "lamb":
        made = optimizers.LAMB(rate, **decay)
    elif config.optimizer == "lars":
        made = optimizers.LARS(rate, config.momentum, trust=config.trust, **decay)
    else:
        made = optimizers.MomentumSGD(rate, config.momentum, **decay)
    return keras.optimizers.LossScaleOptimizer(made) if config.dtype == "mixed_float16" else made


# --- all trainings ---


@dataclass(frozen=True)
class ExperimentProgress:
    """Progress of an experiment.

    done and total (trainings of this call without those on record, count), remaining_s (estimated
    by the samples of those that are done, s), result (of the training that just ended).
    """

    done: int
    total: int
    remaining_s: float
    result: ExperimentResult


def print_progress(progress: ExperimentProgress) -> None:
    """Print a line of progress, at most ten in one call of `run`."""
    done, total = progress.done, progress.total
    if 10 * done // total == 10 * (done - 1) // total:
        return
    config, accuracy = progress.result.config, progress.result.accuracy
    outcome = "diverged" if accuracy is None else f"{accuracy:.2%}"
    left = f", about {progress.remaining_s:.0f} s left" if done < total else ""
    name = config.name or config.model
    print(f"{done} of {total}: {name}, seed {config.seed}: {outcome}{left}", flush=True)


def run(
    configs: Sequence[ExperimentConfig],
    folder: str | os.PathLike | None = None,
    cluster: Cluster | None = None,
    progress: Callable[[ExperimentProgress], None] | None = print_progress,
    models: Mapping[str, Callable[[], Any]] | None = None,
    data: Mapping[str, Any] | None = None,
) -> list[ExperimentResult]:
    """Make the trainings of an experiment and record each of them when it ends.

    A training on record is not repeated, so an interrupted experiment resumes and loses only the
    training that was running. A training whose loss stops being a finite number is recorded as
    diverged. Equal configs are trained once.

    With a cluster of p ranks, each rank takes the next training of one rank as soon as it is
    free, and the trainings of p ranks run on all of them together. Trainings that run at the same
    time share memory and caches: each is slower than alone. Without a cluster all run in this
    process, except that a config with a number of threads gets its own process.

    A record holds the times of the machine that made it and ignores later versions of the
    package: to measure times here, use a new folder or None.

    Args:
        configs: from `one_factor` or `each_seed`.
        folder: of the records, one file per training; None keeps none.
        cluster: ranks that train; None for this process.
        progress: called after each training, on the rank that made it; None for no output.
        models: name -> function that builds a model; a changed model needs another name.
        data: name -> Dataset, or a function that returns one.

    Returns:
        list: one ExperimentResult for each config, in their order.

    Raises:
        ValueError: if a training is impossible, before any is made.
        RecordError: if a record is damaged, before any training is made.
    """
    configs, models, data = list(configs), dict(models or {}), dict(data or {})
    require(bool(configs), "configs", "hold at least one ExperimentConfig", configs)
    for config in configs:
        _require_possible(config, cluster, models, data)
    loaded: dict[tuple, Dataset] = {}
    digests: dict[tuple, str] = {}
    keys = []
    for config in configs:
        source = (config.data, config.samples, config.test_samples)
        if source not in loaded:
            loaded[source] = load(config, data)
            digests[source] = _digest(loaded[source]) if config.data in data else ""
        check(config, models, loaded[source])
        keys.append(config.key(digests[source]))
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="dlguide-experiments-"))
        require_writable(folder, "folder")
        paths = [Path(folder) / f"{key}.json" for key in keys]
        todo: dict[str, ExperimentConfig] = {}
        for key, path, config in zip(keys, paths, configs, strict=True):
            if path.exists():
                read_record(path, config)  # damage is an error now, not after hours of training
            else:
                todo.setdefault(key, config)
        claims = Path(stack.enter_context(TemporaryDirectory(prefix="dlguide-experiments-")))
        queue = _Queue(todo, Path(folder), claims, progress, models, data, time.time())
        single = [key for key, one in todo.items() if one.ranks == 1]
        if cluster is None:
            for threads in dict.fromkeys(todo[key].threads for key in single):
                queue.work_with_threads(threads, [k for k in single if todo[k].threads == threads])
        else:
            if single:
                cluster.run(queue.work, single)
            for key, one in todo.items():
                if one.ranks > 1:
                    queue.record(key, cluster.run(train, one, models, data, True, progress is None))
        return [read_record(path, config) for path, config in zip(paths, configs, strict=True)]


def _require_possible(
    config: ExperimentConfig, cluster: Cluster | None, models: Mapping, data: Mapping
) -> None:
    must = "hold ExperimentConfigs"
    require(isinstance(config, ExperimentConfig), "configs", must, config)
    if config.model not in models:
        known = [*known_models.names("digits", "classifier"), *models]
        require_known(config.model, known, "model")
    if config.data not in data:
        require_known(config.data, [*datasets.names(), *data], "data")
    ranks = 1 if cluster is None else cluster.ranks
    must = f"be 1 or the {ranks} of the cluster" if ranks > 1 else "be 1 without a cluster"
    then = f"Give `cluster=Cluster(ranks={config.ranks})`, or use `virtual_workers` on one rank."
    require(config.ranks in (1, ranks), "ranks", must, config.ranks, then)
    if cluster is not None and config.threads is not None:
        present = cluster.plan.threads
        must = f"be None or the {present} of the cluster's ranks"
        then = "Start a cluster with another plan, or run it without one."
        require(config.threads == present, "threads", must, config.threads, then)


@dataclass(frozen=True)
class _Queue:
    """The trainings still to be made; ranks that work on them at once share them by claim files."""

    todo: dict[str, ExperimentConfig]
    folder: Path
    claims: Path
    progress: Callable[[ExperimentProgress], None] | None
    models: Mapping
    data: Mapping
    start_unix_s: float

    def work(self, keys: Sequence[str]) -> None:
        """Make every training that no other rank has claimed."""
        for key in keys:
            try:
                (self.claims / key).touch(exist_ok=False)
            except FileExistsError:
                continue
            silent = self.progress is None
            self.record(key, [train(self.todo[key], self.models, self.data, False, silent)])

    def work_with_threads(self, threads: int | None, keys: Sequence[str]) -> None:
        """Work here, or in a new process: TensorFlow's number of threads is fixed for good."""
        if threads is None:
            self.work(keys)
            return
        import cloudpickle

        payload = self.claims / "payload"
        payload.write_bytes(cloudpickle.dumps((self.work, (keys,))))
        names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
        env = os.environ | dict.fromkeys(names, str(threads)) | {"TF_NUM_INTEROP_THREADS": "1"}
        command = [sys.executable, "-c", _UNPICKLE_AND_CALL, str(payload)]
        ended = subprocess.run(command, env=env, check=False)
        if ended.returncode:
            raise RuntimeError(
                f"The process of the trainings with {threads} threads ended with status "
                f"{ended.returncode}; see its output above. Trainings that ended are on record."
            )

    def record(self, key: str, runs: Sequence[TrainingResult | Divergence]) -> None:
        """Record a training that has ended, and report the progress of all."""
        config = self.todo[key]
        if isinstance(runs[0], Divergence):
            result = ExperimentResult(config, (), runs[0])
        else:
            result = ExperimentResult(config, tuple(runs))
        write_record(result, self.folder / f"{key}.json")
        (self.claims / f"{key}.done").touch()
        if self.progress is None:
            return
        done = [path.stem for path in self.claims.glob("*.done")]
        made = sum(_samples(self.todo[one]) for one in done)
        left = sum(map(_samples, self.todo.values())) - made
        remaining_s = (time.time() - self.start_unix_s) * left / made
        self.progress(ExperimentProgress(len(done), len(self.todo), remaining_s, result))


def _samples(config: ExperimentConfig) -> int:
    """Samples of a training, to estimate its time; for all samples, those of MNIST."""
    return config.epochs * (config.samples or 60_000)
