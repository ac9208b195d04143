"""The nets of the case, and their initial weights from another training.

A small net for lessons, the guide's two (VGG-16, ResNet-50) and CheXNet's DenseNet-121. Transfer
sets all layers but the last, which belongs to the old task; every array is checked by name and
shape before any is changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlguide import models
from dlguide.data.input_pipeline import IMAGENET_DEVIATION, IMAGENET_MEAN, Normalise
from dlguide.errors import MissingComponentError, require, require_count, require_known
from dlguide.training import checkpoint
from dlguide.training.checkpoint import Checkpoint, CheckpointError
from dlguide.training.schedules import from_config

if TYPE_CHECKING:
    import keras

SMALL = "chest_cnn"
REAL = "densenet121"  # the net for real radiographs unless another is asked for
LARGE = ("vgg16", "resnet50", REAL)
NETS = (SMALL, *LARGE)
# Height and width of a net's images unless others are given (pixels).
SIZES = {SMALL: 32, **dict.fromkeys(LARGE, 224)}
DTYPES = ("float32", "float64")
HEAD = "logits"
_FILTERS = (16, 32, 48)
_HIDDEN = 96
# A checkpoint at which the rate was still this share of the largest can still change; after it
# the rate only falls.
_SHARE_OF_PEAK = 0.5


def build(
    net: str = SMALL,
    image: int | None = None,
    outputs: int = len(FINDINGS),
    seed: int = 0,
    dtype: str = "float32",
) -> keras.Model:
    """Build a net whose last layer, "logits", has one output per finding.

    "chest_cnn" has three convolutions of 3 x 3 with 16, 32 and 48 filters, each followed by
    pooling, and a dense layer of 96 units: without batch normalisation, so that ranks train
    exactly as one process does. The others are those of `dlguide.models`. `image` is the height
    and width (pixels), None for the net's own; the initial weights are equal on every rank.
    """
    require_known(net, NETS, "net")
    require_known(dtype, DTYPES, "dtype")
    image = SIZES[net] if image is None else require_count(image, "image", least=32)
    require_count(outputs, "outputs")
    if net in LARGE:
        return models.build(net, seed, dtype=dtype, image=image, classes=outputs)
    import keras

    from dlcourse.nets.seeded import SeededLayers

    make = SeededLayers(net, require_count(seed, "seed", least=0), dtype, seed, start="HeNormal")
    x = images = keras.Input((image, image, 1), dtype=make.wide, name="images")
    for number, filters in enumerate(_FILTERS, start=1):
        x = make(
            keras.layers.Conv2D,
            x,
            filters,
            3,
            padding="same",
            activation="relu",
            name=f"conv{number}",
        )
        x = make(keras.layers.MaxPooling2D, x, 2, name=f"pool{number}")
    x = make(keras.layers.Flatten, x, name="flatten")
    x = make(keras.layers.Dense, x, _HIDDEN, activation="relu", name="hidden")
    return keras.Model(images, make.logits(x, outputs, name=HEAD), name=net)


def normalisation(net: str) -> Normalise:
    """The step of a pipeline that brings grey values to the range of a net."""
    if net in LARGE:
        return Normalise(IMAGENET_MEAN, IMAGENET_DEVIATION)
    return Normalise((0.5,), (0.25,))


def preprocessing(net: str) -> dict[str, list[float]]:
    """What a checkpoint stores beside the weights: the numbers of `normalisation`."""
    ready = normalisation(net)
    return {"mean": list(ready.mean), "deviation": list(ready.deviation)}


@dataclass(frozen=True)
class WeightsOrigin:
    """The file of the initial weights: its epochs, last rate and global batch, where it says so."""

    path: str
    epoch: int = 0
    rate: float | None = None
    global_batch: int | None = None


def choose_checkpoint(folder: str | os.PathLike, which: str = "chosen") -> Path:
    """Return one of the checkpoints of a pre-training.

    "chosen" is the latest one at which the learning rate was still at least half of the
    largest: the guide says not to take the last one and to continue with the checkpoint's rate,
    which at the end of a schedule has fallen. "last" is the last one.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.4.3.
    """
    require(which in ("chosen", "last"), "which", "be chosen or last", which)
    files = [one for one in checkpoint.finished(Path(folder))
             if not checkpoint.is_within(one)]  # fmt: skip
    if not files:
        raise CheckpointError(
            f"There is no checkpoint of a pre-training in {folder}: looked for files like "
            "checkpoint-000000100.dlguide there. Pre-train first, or name a file."
        )
    if which == "last":
        return files[-1]
    found = [checkpoint.read(one)[0] for one in files]
    rates = [rate_of(one) or 0.0 for one in found]
    highest = max([*rates, *filter(None, map(_peak_rate, found))])
    good = [file for file, rate in zip(files, rates, strict=True)
            if rate >= _SHARE_OF_PEAK * highest > 0]  # fmt: skip
    if not good:
        raise CheckpointError(
            f"None of the {len(files)} checkpoints in {folder} was training at a rate of at least "
            f"{_SHARE_OF_PEAK:g} of the largest, {highest:g}: looked at {files[0].name} to "
            f"{files[-1].name}, whose rates are {rates}. Keep earlier ones, or name a file as "
            "`weights` to start from it all the same."
        )
    return good[-1]


def rate_of(found: Checkpoint) -> float | None:
    """The learning rate of the last step before a checkpoint was written."""
    stored, schedule = found.settings.get("rate"), _schedule(found)
    if stored is not None:
        return float(stored)
    return None if schedule is None else float(schedule.rate(found.step - 1))


def _peak_rate(found: Checkpoint) -> float | None:
    schedule = _schedule(found)
    return None if schedule is None else float(schedule.rates().max())


def _schedule(found: Checkpoint) -> Any:
    """The schedule in steps that a checkpoint stores; None if it stores none."""
    config = found.settings.get("schedule")
    if not isinstance(config, dict) or not found.epoch:
        return None
    return from_config(config.get("rates", config)).to_steps(found.step // found.epoch)


def transfer(model: keras.Model, path: str | os.PathLike) -> WeightsOrigin:
    """Set all layers but the last to the weights in a file.

    Args:
        model: the net, whose last layer is called "logits" and keeps its weights.
        path: a checkpoint of dlguide (of this case, or of `usecases.imagenet`), a folder of
            such, from which `choose_checkpoint` takes one, or a Keras file (.h5) of the same net
            with any number of classes, or of its layers but the last ("notop").
    """
    path = require_weights(path, model.name)
    if path.is_dir():
        path = choose_checkpoint(path)
    if path.suffix == ".h5":
        return _from_keras(model, path)
    found, arrays = checkpoint.read(path)
    there = {name: array for (name, _, _), array in zip(found.arrays, arrays, strict=True)}
    mine, ready = _body(model), found.settings.get("preprocessing")
    for variable in mine:
        array = there.get(variable.path)
        if array is None or array.shape != tuple(variable.shape):
            holds = "nothing of that name" if array is None else f"one of shape {array.shape}"
            wanted = f"{variable.path} of shape {tuple(variable.shape)}"
            raise _of_another_net(model, path, wanted, holds)
    if ready not in (None, preprocessing(model.name)):
        raise CheckpointError(
            f"{path} was trained on images prepared with {ready}; {model.name} here gets "
            f"{preprocessing(model.name)}. Its first layer would see other numbers."
        )
    for variable in mine:
        variable.assign(there[variable.path].astype(variable.dtype))
    batch = found.settings.get("global_batch")
    return WeightsOrigin(str(path), found.epoch, rate_of(found), batch)


def require_weights(path: str | os.PathLike, net: str) -> Path:
    """Return the path of weights; raise if nothing is there, or they need other images."""
    path = Path(path)
    if not path.exists():
        raise MissingComponentError(
            f"There are no weights at {path}. Looked for a file .dlguide or .h5 of {net}, or a "
            "folder of such checkpoints. Name one that is there, or leave `weights` out to "
            "pre-train on synthetic radiographs."
        )
    must = f"be a checkpoint of dlguide for {net}"
    then = (
        "Keras' own files of this net expect other images (blue first, 0 to 255, minus a mean). "
        f"Take {REAL}, whose images are prepared as here."
    )
    require(path.suffix != ".h5" or net in (SMALL, REAL), "weights", must, str(path), then)
    return path


def _from_keras(model: keras.Model, path: Path) -> WeightsOrigin:
    """Read a Keras file into a copy of the net with the file's last layer, then take the rest."""
    import keras

    head = model.get_layer(HEAD)
    classes = {shape[1] for shape in _shapes(path)
               if len(shape) == 2 and shape[0] == head.kernel.shape[0]}  # fmt: skip
    config = model.get_config()
    for layer in config["layers"]:
        if layer["config"]["name"] == HEAD:
            layer["config"]["units"] = next(iter(classes), 1)
    whole = keras.Model.from_config(config)
    reader = whole if classes else keras.Model(whole.inputs, whole.get_layer(HEAD).input)
    try:
        reader.load_weights(path)
    except (ValueError, KeyError, OSError) as error:
        raise _of_another_net(model, path, f"its {len(_body(model))} arrays", str(error)) from error
    for variable, value in zip(_body(model), _body(whole), strict=True):
        variable.assign(value)
    return WeightsOrigin(str(path))


def _body(model: keras.Model) -> list[Any]:
    """The weights of all layers but the last."""
    head = {id(variable) for variable in model.get_layer(HEAD).weights}
    return [variable for variable in model.weights if id(variable) not in head]


def _shapes(path: Path) -> list[tuple[int, ...]]:
    """The shapes of the arrays in a Keras file."""
    import h5py

    found: list[tuple[int, ...]] = []
    try:
        with h5py.File(path) as file:
            file.visititems(lambda _, item: found.append(getattr(item, "shape", ())))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read as HDF5: {error}. It may be cut short: fetch it again."
        ) from error
    return found


def _of_another_net(model: keras.Model, path: Path, wanted: str, holds: str) -> CheckpointError:
    return CheckpointError(
        f"{path} holds the weights of another net than {model.name} for images of "
        f"{tuple(model.inputs[0].shape[1:])}: looked for {wanted}, found {holds}. Give weights of "
        f"{model.name}, or choose the net they belong to with `net`."
    )
