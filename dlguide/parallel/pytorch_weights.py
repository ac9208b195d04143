"""The weights of the course's MNIST net as Keras holds them and as PyTorch does: NumPy only.

The same numbers in another order. Keras keeps images as height x width x channels and a
convolution's kernel as height x width x inputs x outputs; PyTorch keeps channels x height x width
and outputs x inputs x height x width, and a dense layer's kernel with its axes exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlguide.errors import require

# Of "mnist_cnn": what Keras' trainable variables are called and look like, in their order.
SHAPES = {
    "conv1.kernel": (5, 5, 1, 32),
    "conv1.bias": (32,),
    "conv2.kernel": (5, 5, 32, 64),
    "conv2.bias": (64,),
    "hidden.kernel": (1024, 128),
    "hidden.bias": (128,),
    "logits.kernel": (128, 10),
    "logits.bias": (10,),
}
# The order in which PyTorch's backward pass delivers their gradients, the last layer's first.
READY = (
    *("logits.bias", "logits.kernel", "hidden.bias", "hidden.kernel"),
    *("conv2.kernel", "conv2.bias", "conv1.kernel", "conv1.bias"),
)
# What the last pooling gives to the first dense layer, as Keras flattens it.
FLATTENED = (4, 4, 64)


def to_pytorch(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Put Keras' weights into PyTorch's order."""
    require_shapes(arrays)
    out = []
    for name, array in zip(SHAPES, arrays, strict=True):
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif name == "hidden.kernel":
            # its rows belong to pixels: Keras counts channels fastest, PyTorch columns
            array = array.reshape(*FLATTENED, -1).transpose(3, 2, 0, 1).reshape(array.shape[::-1])
        elif array.ndim == 2:
            array = array.T
        out.append(np.ascontiguousarray(array))
    return out


def to_keras(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Put the weights of the PyTorch net into Keras' order."""
    out = []
    for name, array in zip(SHAPES, arrays, strict=True):
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)
        elif name == "hidden.kernel":
            height, width, channels = FLATTENED
            pixels = array.reshape(-1, channels, height, width)
            array = pixels.transpose(2, 3, 1, 0).reshape(array.shape[::-1])
        elif array.ndim == 2:
            array = array.T
        out.append(np.ascontiguousarray(array))
    require_shapes(out)
    return out


def require_shapes(arrays: Sequence[np.ndarray]) -> None:
    """Say so when arrays are not the weights of "mnist_cnn" as Keras holds them."""
    shapes = [tuple(array.shape) for array in arrays]
    then = 'Take `models.build("mnist_cnn").get_weights()`.'
    require(shapes == list(SHAPES.values()), "weights", "be those of mnist_cnn", shapes, then)


def nbytes(arrays: Sequence[np.ndarray]) -> int:
    """Add up the bytes of arrays."""
    return sum(array.nbytes for array in arrays)
