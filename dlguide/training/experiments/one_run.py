"""One training of an experiment: `fit` with the schedule and the optimizer of a Setting."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from dlguide.data import datasets
from dlguide.data.datasets import Dataset
from dlguide.errors import require
from dlguide.measure import Run
from dlguide.training.config import FitConfig, TrainingJob
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.experiments.record import Divergence
from dlguide.training.experiments.setting import Setting
from dlguide.training.trainer import fit

if TYPE_CHECKING:
    import keras

Own = Mapping[str, Any]  # name -> net or data of one's own


def train(
    setting: Setting, nets: Own, data: Own, parallel: bool, silent: bool = False
) -> Run | Divergence:
    """Train as a setting says, until the end or to where the loss is no number any more.

    Args:
        setting: what to train.
        nets: functions that build nets of one's own.
        data: Datasets of one's own, or functions that give them.
        parallel: with all ranks, every one of which must call this, or in this process alone.
        silent: whether it tells nothing while it trains.

    Returns:
        Run: of this rank; or where it diverged, which all ranks tell alike.
    """
    try:
        return fit(
            nets.get(setting.net, setting.net),
            load(setting, data),
            epochs=setting.epochs,
            batch_per_rank=setting.workers * setting.batch,
            learning_rate=setting.recipe(),
            optimizer=partial(make_optimizer, setting),
            comm=connect(parallel),
            config=config_of(setting),
            on_result=_ignore if silent else None,
        )
    except DivergedError as error:
        return Divergence(error.epoch, error.step)


def config_of(setting: Setting) -> FitConfig:
    """What `fit` does beside its own arguments."""
    return FitConfig(
        seed=setting.seed, dropout=setting.dropout, dtype=setting.dtype,
        virtual_workers=setting.workers,
    )  # fmt: skip


def _ignore(**_numbers: float) -> None:
    """Report no progress."""


def load(setting: Setting, data: Own) -> Dataset:
    """Load the samples that a setting asks for.

    Args:
        setting: names the data and how many.
        data: as in `train`.

    Returns:
        Dataset: views of the whole one.

    Raises:
        ValueError: when there are fewer samples than asked for.
    """
    own = data.get(setting.data)
    whole = own() if callable(own) else own
    whole = _named(setting.data) if whole is None else whole
    samples = len(whole.train_labels) if setting.samples is None else setting.samples
    return whole.first(samples, setting.test_samples)


def digest(setting: Setting, data: Own) -> str:
    """Name data of one's own by its contents: other data is another training."""
    one = load(setting, data)
    if setting.data not in data:
        return ""
    told = hashlib.sha256()
    for array in (one.train_images, one.train_labels, one.test_images, one.test_labels):
        told.update(f"{array.dtype}{array.shape}".encode())
        told.update(array.tobytes())
    return told.hexdigest()


def check(setting: Setting, nets: Own, data: Dataset) -> None:
    """Check that `fit` can do what a setting asks, before anything is trained.

    Args:
        setting: what to train.
        nets: as in `train`.
        data: the samples that `load` gave.

    Raises:
        ValueError: when there are too few samples, a piece of the recipe has not one step, or a
            named net does not take these images.
    """
    samples = len(data.train_labels)
    must = f"be at most the {samples} samples of {setting.data}, ranks x workers x batch"
    fits = setting.global_batch <= samples
    require(fits, "batch", must, setting.global_batch, "Use fewer workers or more samples.")
    recipe = setting.recipe()
    recipe.at(math.ceil(samples / setting.global_batch), epochs=setting.epochs)
    TrainingJob(
        model=nets.get(setting.net, setting.net), data=data, epochs=setting.epochs,
        batch_per_rank=setting.workers * setting.batch, learning_rate=recipe,
        optimizer=partial(make_optimizer, setting), config=config_of(setting),
    ).check()  # fmt: skip


def make_optimizer(setting: Setting, rate: Any) -> keras.Optimizer:
    """Build the optimizer of a setting."""
    import keras

    from dlguide.training import optimizers

    decay = {"weight_decay": setting.weight_decay or None}
    if setting.optimizer == "adam":
        rule = keras.optimizers.Adam(rate)
    elif setting.optimizer == "lamb":
        rule = optimizers.LAMB(rate, **decay)
    elif setting.optimizer == "lars":
        rule = optimizers.LARS(rate, setting.momentum, trust=setting.trust, **decay)
    else:
        rule = optimizers.MomentumSGD(rate, setting.momentum, **decay)
    return keras.optimizers.LossScaleOptimizer(rule) if setting.dtype == "mixed_float16" else rule


@lru_cache(maxsize=1)
def _named(name: str) -> Dataset:
    # an experiment trains on the same data again and again; reading it takes longer than some runs
    return datasets.load(name)
