"""Weights of another training as the beginning of this one: all layers but the last.

The last layer answers the old question, all before it sees. What comes along is checked name by
name and shape by shape before anything changes.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray.net import HEAD
from dlguide.errors import MissingComponentError, require
from dlguide.training import checkpoint
from dlguide.training.checkpoint import Checkpoint, CheckpointError
from dlguide.training.schedules import from_config

if TYPE_CHECKING:
    import keras

# A checkpoint at which the rate was still this part of the largest has learned much and can
# still move; behind it the rate only falls.
STILL = 0.5


@dataclass(frozen=True)
class Origin:
    """Where first weights come from.

    Args:
        path: the file.
        epoch: epochs of training behind them (count); 0 where the file does not say.
        rate: learning rate at which they were training when they were written; None where the
            file does not say.
        global_batch: images of a step of that training (count); None where it does not say.
    """

    path: str
    epoch: int = 0
    rate: float | None = None
    global_batch: int | None = None


def choose(folder: str | os.PathLike, which: str = "chosen") -> Path:
    """Pick one of the checkpoints of a pre-training.

    "chosen" is the latest one at which the learning rate was still at least half of the
    largest: the guide says not to take the last one and to go on with the checkpoint's rate,
    which at the end of a schedule has fallen.

    Args:
        folder: of the pre-training's checkpoints.
        which: "chosen", "last" or "early" (the first there is).

    Returns:
        pathlib.Path: the file.

    Raises:
        CheckpointError: when there is none, or none that says at which rate it was training.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.4.3.
    """
    require(which in ("chosen", "last", "early"), "which", "be chosen, last or early", which)
    files = [one for one in checkpoint.finished(Path(folder))
             if not checkpoint.is_within(one)]  # fmt: skip
    if not files:
        raise CheckpointError(
            f"There is no checkpoint of a pre-training in {folder}: looked for files like "
            "checkpoint-000000100.dlguide there. Pre-train first, or name a file."
        )
    if which != "chosen":
        return files[-1 if which == "last" else 0]
    found = [checkpoint.read(one)[0] for one in files]
    rates = [rate_of(one) for one in found]
    known = [rate for rate in rates if rate is not None]
    highest = max([*known, *filter(None, map(_peak, found))], default=0.0)
    good = [file for file, rate in zip(files, rates, strict=True)
            if rate is not None and rate >= STILL * highest > 0]  # fmt: skip
    if not good:
        raise CheckpointError(
            f"None of the {len(files)} checkpoints in {folder} was training at a rate of at least "
            f"{STILL:g} of the largest, {highest:g}: looked at {files[0].name} to "
            f"{files[-1].name}, whose rates are {known}. Keep earlier ones, or name a file as "
            "`weights` to start from it all the same."
        )
    return good[-1]


def rate_of(found: Checkpoint) -> float | None:
    """Tell the learning rate of the last step before a checkpoint was written."""
    stored, recipe = found.settings.get("rate"), _recipe(found)
    if stored is not None:
        return float(stored)
    if recipe is None or not found.epoch:
        return None
    return float(recipe.at(found.step // found.epoch).rate(found.step - 1))


def transfer(model: keras.Model, path: str | os.PathLike) -> Origin:
    """Set all layers but the last to what a file holds.

    Args:
        model: the net, whose last layer is called "logits" and keeps its weights.
        path: a checkpoint of dlguide (of this case, or of `usecases.imagenet`), a folder of
            such, of which `choose` picks one, or a Keras file that ends in .weights.h5, of the
            same net with any number of classes.

    Returns:
        Origin: what the file says of itself.

    Raises:
        MissingComponentError: when there is no such file.
        CheckpointError: when it is damaged, or holds the weights of another net; nothing has
            changed then.
    """
    path = require_there(path, model.name)
    if path.is_dir():
        path = choose(path)
    if path.suffix == ".h5":
        return _from_keras(model, path)
    found, arrays = checkpoint.read(path)
    there = {name: array for (name, _, _), array in zip(found.arrays, arrays, strict=True)}
    mine = _body(model)
    for variable in mine:
        array = there.get(variable.path)
        fits = array is not None and array.shape == tuple(variable.shape)
        if not fits:
            holds = "nothing of that name" if array is None else f"one of shape {array.shape}"
            raise _another(model, path, f"{variable.path} of shape {tuple(variable.shape)}", holds)
    for variable in mine:
        variable.assign(there[variable.path].astype(variable.dtype))
    batch = found.settings.get("global_batch")
    return Origin(str(path), found.epoch, rate_of(found), batch)


def require_there(path: str | os.PathLike, net: str) -> Path:
    """Return the path of weights that must be there."""
    path = Path(path)
    if not path.exists():
        raise MissingComponentError(
            f"There are no weights at {path}. Looked for a file .dlguide or .weights.h5 of "
            f"{net}, or a folder of such checkpoints. Name one that is there, or leave "
            "`weights` out to pre-train on made radiographs."
        )
    return path


def _from_keras(model: keras.Model, path: Path) -> Origin:
    import keras

    shapes = _shapes(path)
    wanted = Counter(tuple(variable.shape) for variable in _body(model))
    missing = sorted((wanted - shapes).items(), key=str)
    if missing:
        shape, count = missing[0]
        raise _another(model, path, f"{count} more arrays of shape {shape}", _short(shapes))
    left = shapes - wanted
    (kernel, _) = (tuple(variable.shape) for variable in model.get_layer(HEAD).weights)
    heads = [shape for shape in left if len(shape) == 2 and shape[0] == kernel[0]]
    if len(heads) != 1 or left[(heads[0][1],)] < 1:
        what = f"a last layer of shape ({kernel[0]}, classes)"
        raise _another(model, path, what, _short(left))
    # the same net with as many classes as the file has, to be read as Keras reads its own
    config = model.get_config()
    for layer in config["layers"]:
        if layer["config"]["name"] == HEAD:
            layer["config"]["units"] = heads[0][1]
    whole = keras.Model.from_config(config)
    try:
        whole.load_weights(path)
    except (ValueError, KeyError, OSError) as error:
        raise _another(model, path, f"the layers of {model.name}", f"others ({error})") from error
    for variable, value in zip(_body(model), _body(whole), strict=True):
        variable.assign(value)
    return Origin(str(path))


def _body(model: keras.Model) -> list[Any]:
    head = {id(variable) for variable in model.get_layer(HEAD).weights}
    return [variable for variable in model.weights if id(variable) not in head]


def _shapes(path: Path) -> Counter:
    """Count the arrays of a Keras file by their shapes, but for those of an optimizer."""
    import h5py

    found: Counter = Counter()

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("optimizer"):
            found[tuple(item.shape)] += 1

    try:
        with h5py.File(path) as file:
            file.visititems(note)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read as HDF5: {error}. It may be cut short: fetch it again."
        ) from error
    return found


def _short(shapes: Counter) -> str:
    largest = sorted(shapes, key=lambda shape: -int(np.prod(shape)))[:3]
    return f"{sum(shapes.values())} arrays, the largest of shapes {largest}"


def _another(model: keras.Model, path: Path, wanted: str, holds: str) -> CheckpointError:
    return CheckpointError(
        f"{path} holds the weights of another net than {model.name} for images of "
        f"{tuple(model.inputs[0].shape[1:])}: looked for {wanted}, found {holds}. Give weights of "
        f"{model.name}, or choose the net they belong to with `net`."
    )


def _recipe(found: Checkpoint) -> Any:
    config = found.settings.get("schedule")
    if isinstance(config, dict):
        return from_config(config.get("rates", config))
    return None


def _peak(found: Checkpoint) -> float | None:
    recipe = _recipe(found)
    if recipe is None or not found.epoch:
        return None
    return float(recipe.at(found.step // found.epoch).rates().max())
