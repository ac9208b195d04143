"""The nets of the course beside those for digits and photographs, by name and by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.models import cifar, generative, sequences, volumes
from dlguide.models.described import Described
from dlguide.models.seeded import Seeded

if TYPE_CHECKING:
    import keras

_ROOMS = (cifar, volumes, generative, sequences)
_ROOM_OF = {name: room for room in _ROOMS for name in room.NETS}
NETS: dict[str, Described] = {name: room.NETS[name] for name, room in _ROOM_OF.items()}


def assemble(
    name: str,
    seed: int,
    dropout: float,
    dtype: str,
    dropout_seed: int,
    given: Mapping[str, Any],
) -> keras.Model:
    """Put a net of this course together, with its initial weights."""
    room, net = _ROOM_OF[name], NETS[name]
    sizes = net.resolve(name, given)
    halved = name != "conv_autoencoder" or sizes["image"] % 4 == 0
    then = "The image is halved twice and doubled twice."
    require(halved, "image", "be a multiple of 4", sizes.get("image"), then)
    of_gan = net.task in ("generator", "discriminator")
    start = generative.START_OF_GAN if of_gan else room.START
    return room.assemble(name, Seeded(name, seed, dtype, dropout_seed, **start), sizes, dropout)


def parameters(name: str, given: Mapping[str, Any]) -> int:
    """Count the trainable parameters of a net without building it.

    Args:
        name: a key of `NETS`.
        given: sizes that the caller chose, None for the net's own.

    Returns:
        int: number of trainable parameters (count).

    Raises:
        ValueError: when the net has no such size, or a value is out of range.
    """
    return _ROOM_OF[name].parameters(name, NETS[name].resolve(name, given))
