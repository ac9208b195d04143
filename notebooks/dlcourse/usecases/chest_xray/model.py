"""The nets of the case, and their initial weights from another training.

A small net for lessons, the guide's two (VGG-16, ResNet-50) and CheXNet's DenseNet-121. Transfer
sets all layers but the last, which belongs to the old task; every array is checked by name and
shape before any is changed.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlguide import models
from dlguide.data.input_pipeline import IMAGENET_DEVIATION, IMAGENET_MEAN, Normalise
from dlguide.errors import MissingComponentError, require, require_count, require_known
from dlguide.models.layers import SeededLayers
from dlguide.training import checkpoint
from dlguide.training.checkpoint import Checkpoint, CheckpointError
from dlguide.training.schedules import from_config

if TYPE_CHECKING:
    import keras

SMALL = "chest_cnn"
LARGE = ("vgg16", "resnet50", "densenet121")
NETS = (SMALL, *LARGE)
# Height and width of a net's images unless others are given (pixels).
SIZES = {SMALL: 32, **dict.fromkeys(LARGE, 224)}
DTYPES = ("float32", "float64")
HEAD = "logits"
_FILTERS = (16, 32, 48)
_HIDDEN = 96
# A checkpoint at which the rate was still this share of the largest has learned much and can
# still change; after it the rate only falls.
_SHARE_OF_PEAK = 0.5


def build(
    net: str = SMALL,
    image: int | None = None,
    outputs: int = len(FINDINGS),
    seed: int = 0,
    dtype: str = "float32",
) -> keras.Model:
    """Build a net with one logit for each finding.

    "chest_cnn" has three convolutions of 3 x 3 with 16, 32 and 48 filters, each followed by
    pooling, and a dense layer of 96 units: without batch normalisation, so that ranks train
    exactly as one process does. The others are those of `dlguide.models`; their last layer has
    `outputs` logits.

    Args:
        net: one of `NETS`.
        image: height and width of the radiographs (pixels); None for the net's own.
        outputs: number of logits (count).
        seed: of the initial weights, the same on every rank.
        dtype: "float32" or "float64".

    Returns:
        keras.Model: not compiled; takes (batch, image, image, `channels(net)`). Its last layer
            is called "logits".

    Raises:
        ValueError: if a name is unknown or a number out of range.
    """
    require_known(net, NETS, "net")
    require_known(dtype, DTYPES, "dtype")
    image = SIZES[net] if image is None else require_count(image, "image", least=32)
    require_count(outputs, "outputs")
    if net in LARGE:
        return models.build(net, seed, dtype=dtype, image=image, classes=outputs)
    import keras

    make = SeededLayers(net, require_count(seed, "seed", least=0), dtype, seed, start="HeNormal")
    x = images = keras.Input((image, image, 1), dtype=make.wide, name="images")
    for number, filters in enumerate(_FILTERS, start=1):
        x = make("Conv2D", x, filters, 3, padding="same", activation="relu", name=f"conv{number}")
        x = make("MaxPooling2D", x, 2, name=f"pool{number}")
    x = make("Flatten", x, name="flatten")
    x = make("Dense", x, _HIDDEN, activation="relu", name="hidden")
    return keras.Model(images, make.logits(x, outputs, name=HEAD), name=net)


def channels(net: str) -> int:
    """Channels of a net's images (count)."""
    return 1 if require_known(net, NETS, "net") == SMALL else 3


def normalisation(net: str) -> Normalise:
    """The step of a pipeline that brings grey values to the range of a net."""
    if channels(net) == 1:
        return Normalise((0.5,), (0.25,))
    return Normalise(IMAGENET_MEAN, IMAGENET_DEVIATION)


@dataclass(frozen=True)
class WeightsOrigin:
    """The file that initial weights were read from.

    Args:
        path: the file.
        epoch: epochs of training before it was written (count); 0 if the file does not say.
        rate: learning rate of the last step before; None if the file does not say.
        global_batch: images per step of that training (count); None if it does not say.
    """

    path: str
    epoch: int = 0
    rate: float | None = None
    global_batch: int | None = None


def choose_checkpoint(folder: str | os.PathLike, which: str = "chosen") -> Path:
    """Return one of the checkpoints of a pre-training.

    "chosen" is the latest one at which the learning rate was still at least half of the
    largest: the guide says not to take the last one and to continue with the checkpoint's rate,
    which at the end of a schedule has fallen.

    Args:
        folder: of the pre-training's checkpoints.
        which: "chosen", "last" or "early" (the first there is).

    Raises:
        CheckpointError: if there is none, or none that says at which rate it was training.

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
    highest = max([*known, *filter(None, map(_peak_rate, found))], default=0.0)
    good = [file for file, rate in zip(files, rates, strict=True)
            if rate is not None and rate >= _SHARE_OF_PEAK * highest > 0]  # fmt: skip
    if not good:
        raise CheckpointError(
            f"None of the {len(files)} checkpoints in {folder} was training at a rate of at least "
            f"{_SHARE_OF_PEAK:g} of the largest, {highest:g}: looked at {files[0].name} to "
            f"{files[-1].name}, whose rates are {known}. Keep earlier ones, or name a file as "
            "`weights` to start from it all the same."
        )
    return good[-1]


def rate_of(found: Checkpoint) -> float | None:
    """The learning rate of the last step before a checkpoint was written."""
    stored, schedule = found.settings.get("rate"), _schedule(found)
    if stored is not None:
        return float(stored)
    if schedule is None or not found.epoch:
        return None
    return float(schedule.to_steps(found.step // found.epoch).rate(found.step - 1))


def _peak_rate(found: Checkpoint) -> float | None:
    schedule = _schedule(found)
    if schedule is None or not found.epoch:
        return None
    return float(schedule.to_steps(found.step // found.epoch).rates().max())


def _schedule(found: Checkpoint) -> Any:
    config = found.settings.get("schedule")
    if isinstance(config, dict):
        return from_config(config.get("rates", config))
    return None


def transfer(model: keras.Model, path: str | os.PathLike) -> WeightsOrigin:
    """Set all layers but the last to the weights in a file.

    Args:
        model: the net, whose last layer is called "logits" and keeps its weights.
        path: a checkpoint of dlguide (of this case, or of `usecases.imagenet`), a folder of
            such, from which `choose_checkpoint` takes one, or a Keras file that ends in
            .weights.h5, of the same net with any number of classes.

    Returns:
        WeightsOrigin: what the file says about its training.

    Raises:
        MissingComponentError: if there is no such file.
        CheckpointError: if it is damaged, or holds the weights of another net; the model is
            unchanged then.
    """
    path = require_weights(path, model.name)
    if path.is_dir():
        path = choose_checkpoint(path)
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
            wanted = f"{variable.path} of shape {tuple(variable.shape)}"
            raise _of_another_net(model, path, wanted, holds)
    for variable in mine:
        variable.assign(there[variable.path].astype(variable.dtype))
    batch = found.settings.get("global_batch")
    return WeightsOrigin(str(path), found.epoch, rate_of(found), batch)


def require_weights(path: str | os.PathLike, net: str) -> Path:
    """Return the path of weights; raise if nothing is there."""
    path = Path(path)
    if not path.exists():
        raise MissingComponentError(
            f"There are no weights at {path}. Looked for a file .dlguide or .weights.h5 of "
            f"{net}, or a folder of such checkpoints. Name one that is there, or leave "
            "`weights` out to pre-train on synthetic radiographs."
        )
    return path


def _from_keras(model: keras.Model, path: Path) -> WeightsOrigin:
    import keras

    shapes = _shapes(path)
    wanted = Counter(tuple(variable.shape) for variable in _body(model))
    missing = sorted((wanted - shapes).items(), key=str)
    if missing:
        shape, count = missing[0]
        raise _of_another_net(model, path, f"{count} more arrays of shape {shape}", _short(shapes))
    left = shapes - wanted
    (kernel, _) = (tuple(variable.shape) for variable in model.get_layer(HEAD).weights)
    heads = [shape for shape in left if len(shape) == 2 and shape[0] == kernel[0]]
    if len(heads) != 1 or left[(heads[0][1],)] < 1:
        what = f"a last layer of shape ({kernel[0]}, classes)"
        raise _of_another_net(model, path, what, _short(left))
    # Keras reads the file into the same net with as many classes as the file has
    config = model.get_config()
    for layer in config["layers"]:
        if layer["config"]["name"] == HEAD:
            layer["config"]["units"] = heads[0][1]
    whole = keras.Model.from_config(config)
    try:
        whole.load_weights(path)
    except (ValueError, KeyError, OSError) as error:
        what = f"the layers of {model.name}"
        raise _of_another_net(model, path, what, f"others ({error})") from error
    for variable, value in zip(_body(model), _body(whole), strict=True):
        variable.assign(value)
    return WeightsOrigin(str(path))


def _body(model: keras.Model) -> list[Any]:
    """The weights of all layers but the last."""
    head = {id(variable) for variable in model.get_layer(HEAD).weights}
    return [variable for variable in model.weights if id(variable) not in head]


def _shapes(path: Path) -> Counter:
    """Count the arrays of a Keras file by their shapes, except those of an optimizer."""
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


def _of_another_net(model: keras.Model, path: Path, wanted: str, holds: str) -> CheckpointError:
    return CheckpointError(
        f"{path} holds the weights of another net than {model.name} for images of "
        f"{tuple(model.inputs[0].shape[1:])}: looked for {wanted}, found {holds}. Give weights of "
        f"{model.name}, or choose the net they belong to with `net`."
    )
