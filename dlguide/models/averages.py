"""How fast batch normalisation's moving averages follow the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlguide.errors import require

if TYPE_CHECKING:
    import keras


def set_momentum(model: keras.Model, momentum: float) -> int:
    """Set how much of the moving averages a step keeps, before the net is trained.

        average <- momentum average + (1 - momentum) batch's own

    The weights of the batches fall like momentum^k, so about 1 / (1 - momentum) batches count.
    Caffe calls it `moving_average_fraction`; PyTorch's `momentum` is 1 minus this one.

    Args:
        model: any net of Keras, its parts included.
        momentum: at least 0 and below 1; 0.95 in the guide's training with large batches.

    Returns:
        int: layers of batch normalisation that were changed (count).

    Raises:
        ValueError: when it is out of range.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.6; Ioffe and Szegedy,
        arXiv:1502.03167, section 3.1.
    """
    import keras

    require(0 <= momentum < 1, "momentum", "be at least 0 and below 1", momentum)
    found = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    for layer in found:
        layer.momentum = float(momentum)
    return len(found)
