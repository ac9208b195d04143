"""What a training is asked to do: checked before any rank starts to work."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import models
from dlguide.data import datasets
from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import (
    MissingComponentError,
    require,
    require_count,
    require_known,
)
from dlguide.parallel.compression import named
from dlguide.parallel.compressors import Compressor
from dlguide.training.rates import OPTIMIZERS, rates_of, scaled_rate
from dlguide.training.schedules_collapsed import Collapsed
from dlguide.training.schedules_recipe import Recipe

if TYPE_CHECKING:
    import keras

DEVICES = ("cpu", "gpu")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `fit`, which tells what each one means."""

    net: str | Callable[[], keras.Model]
    data: str | Dataset | Pipeline
    epochs: int
    batch: int
    optimizer: str | Callable[[], keras.Optimizer]
    learning_rate: float | None
    rate_scaling: str | None
    seed: int
    samples: int | None
    dropout: float | None
    dtype: str
    shuffle: bool
    device: str
    evaluate: bool
    checkpoint: str | None
    compression: str | Compressor = "none"
    timeline: str | None = None
    test: Dataset | Pipeline | None = None
    schedule: Recipe | Collapsed | None = None
    workers: int = 1
    save_every: int | None = None

    def check(self) -> None:
        """Check all that can be checked without TensorFlow and the data."""
        if not callable(self.net):
            self._require_classifier()
        if not isinstance(self.data, Dataset | Pipeline):
            require_known(self.data, datasets.names(), "data")
        self._require_pipelines_fit()
        self._require_images_fit()
        require_count(self.epochs, "epochs")
        require_count(self.batch, "batch")
        require_count(self.workers, "workers")
        require_count(self.seed, "seed", least=0)
        if self.samples is not None:
            require_count(self.samples, "samples")
        require_known(self.device, DEVICES, "device")
        if self.save_every is not None:
            require_count(self.save_every, "save_every")
            must, then = "be None without a folder", "Give one with `checkpoint`."
            require(self.checkpoint is not None, "save_every", must, self.save_every, then)
        if named(self.compression).keeps_errors:
            then = "Use fp16, bf16 or none, which remember nothing."
            must = "be None where `compression` remembers errors, which no checkpoint holds"
            require(self.checkpoint is None, "checkpoint", must, self.checkpoint, then)
            must = "not scale losses where `compression` remembers errors"
            require(self.dtype != "mixed_float16", "dtype", must, self.dtype, then)
        self._require_rates_fit()

    def _require_rates_fit(self) -> None:
        asked = (self.learning_rate, self.rate_scaling)
        if self.schedule is None:
            if not callable(self.optimizer):
                scaled_rate(self.optimizer, 1, *asked)
                return
            must, then = "an optimizer of your own", "Set the rate where the optimizer is made."
        else:
            kinds, then = (Recipe, Collapsed), "See `dlguide.training.schedules`."
            require(
                isinstance(self.schedule, kinds), "schedule", "be a recipe", self.schedule, then
            )
            recipe = rates_of(self.schedule)
            then = "Make it as long as the training: a shorter one may end inside a warmup."
            must = f"be as long as the training, {self.epochs} epochs"
            fits = math.isclose(recipe.epochs, self.epochs)
            require(fits, "schedule", must, f"{recipe.epochs:g} epochs", then)
            if not callable(self.optimizer):
                require_known(self.optimizer, OPTIMIZERS, "optimizer")
            collapses = isinstance(self.schedule, Collapsed)
            must = "be a function that takes `weight_decay` where `schedule` is a collapsed one"
            fits = callable(self.optimizer) or not collapses
            require(fits, "optimizer", must, self.optimizer, "`optimizers.momentum_sgd` does.")
            must, then = "a schedule", "Scale the rates of the schedule: `schedules.scaled`."
        for name, value in zip(("learning_rate", "rate_scaling"), asked, strict=True):
            require(value is None, name, f"be None with {must}", value, then)

    def _require_pipelines_fit(self) -> None:
        must = "be a Dataset or a Pipeline where `data` is a Pipeline"
        needed = isinstance(self.data, Pipeline) and self.evaluate
        fits = isinstance(self.test, Dataset | Pipeline) or (self.test is None and not needed)
        require(fits, "test", must, self.test, "Give one, or use `evaluate=False`.")
        must = "have one label a sample, which is what `fit` learns"
        for name, one in (("data", self.data), ("test", self.test)):
            if isinstance(one, Pipeline):
                shape = one.source.label_shape
                require(not shape, name, must, f"labels of shape {shape}")

    def _require_classifier(self) -> None:
        """Refuse a name whose net does not give one logit a class."""
        classifiers = models.names("digits", "classifier")
        known = set(models.names()) - set(models.names("imagenet"))
        then = "Build it with `models.build` and train it in a loop of your own."
        other = isinstance(self.net, str) and self.net in known and self.net not in classifiers
        require(not other, "net", "be a net that tells classes apart", self.net, then)
        require_known(self.net, classifiers, "net")

    def _require_images_fit(self) -> None:
        """Refuse images that a named net does not take; a function may build any net."""
        if callable(self.net) or isinstance(self.data, Pipeline):
            return  # a pipeline's images have their size when they have been decoded
        if isinstance(self.data, Dataset):
            name, shape = self.data.name, self.data.train_images.shape[1:]
        else:
            name, shape = self.data, datasets.image_shape(self.data)
        wanted = models.sample_shape(self.net)
        known = [one for one in datasets.names() if datasets.image_shape(one) == wanted]
        ready = f"{' or '.join(known)}, or " if known else ""
        require(
            shape == wanted,
            "data",
            f"hold images of {_by(wanted)} for {self.net}",
            f"{name} of {_by(shape)}",
            f"Use {ready}a function as `net` that builds one for {_by(shape)}.",
        )

    def names(self) -> dict[str, Any]:
        """All arguments, JSON-able: functions and data sets by their names."""
        return {one.name: name_of(getattr(self, one.name)) for one in fields(self)}

    def identity(self) -> dict[str, Any]:
        """The arguments that a training cannot change when it goes on from a checkpoint."""
        kept = ("net", "data", "optimizer", "samples", "dropout", "dtype", "seed", "shuffle")
        return {name: value for name, value in self.names().items() if name in (*kept, "schedule")}


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def name_of(value: Any) -> Any:
    """Name what has a name; give numbers of NumPy as Python's, anything else back.

    A partial is named with what it was given and a lambda with a checksum of its code, so that
    another momentum or another net is another training.
    """
    if isinstance(value, partial):
        given = [str(name_of(each)) for each in value.args]
        given += [f"{name}={name_of(each)}" for name, each in value.keywords.items()]
        return f"{name_of(value.func)}({', '.join(given)})"
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__name__)
        return f"{name} {_checksum(value.__code__):08x}" if name.endswith("<lambda>") else name
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Pipeline):
        return value.fingerprint()  # of one name two nodes may have different data
    if isinstance(value, Collapsed):
        return {"rates": value.rates.config(), "weight_decay": value.weight_decay.config()}
    if isinstance(value, Recipe):
        return value.config()
    if isinstance(value, Dataset | Compressor):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        inside = (f"{one.name}={name_of(getattr(value, one.name))}" for one in fields(value))
        return f"{type(value).__name__}({', '.join(inside)})"
    plain = value is None or isinstance(value, str | int | float)
    return value if plain else type(value).__name__


def _checksum(code: CodeType) -> int:
    """Of what the code does, not of where it stands."""
    inner = [_checksum(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return zlib.crc32(repr((code.co_code, code.co_names, inner)).encode())


def load_data(
    data: str | Dataset | Pipeline, samples: int | None, batch: int, ranks: int, workers: int = 1
) -> Dataset | Pipeline:
    """Load the data and check that it is enough for `batch` on every rank."""
    whole = datasets.load(data) if isinstance(data, str) else data
    there = whole.samples if isinstance(whole, Pipeline) else len(whole.train_labels)
    used = there if samples is None else samples
    require(used <= there, "samples", f"be at most the {there} of {whole.name}", samples)
    shard = used // (ranks * workers)
    them = f"ranks than {ranks}" if workers == 1 else f"workers than {ranks * workers} in all"
    require(
        batch <= shard,
        "batch",
        f"be at most the {shard} samples of one {'rank' if workers == 1 else 'worker'}'s shard",
        batch,
        f"Use a smaller batch, more samples than {used} or fewer {them}.",
    )
    if isinstance(whole, Pipeline):
        return whole.replace(samples=used, batch=batch, rank=0, ranks=1)
    return whole if samples is None else whole.first(samples)


def require_device(device: str) -> str:
    """Give TensorFlow's name of a device, or say that there is none."""
    import tensorflow as tf

    if not tf.config.list_physical_devices(device.upper()):
        raise MissingComponentError(
            f"TensorFlow sees no {device} on this machine. Use `device='cpu'`, or install a "
            f"TensorFlow that was built for your {device}."
        )
    return f"/{device.upper()}:0"
