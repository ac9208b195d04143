"""Layers cut across ranks: each rank holds some columns, rows or channels of the weights.

Every rank must call each function at the same point, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives import allreduce
from dlguide.data.datasets import shard
from dlguide.errors import require

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# what a layer tells of its messages: (direction, collective, bytes of the array)
Told = Callable[[str, str, int], None]


def summed(part: Any, comm: Comm, told: Told | None = None) -> Any:
    """Add up what all ranks have; backward each takes the gradient as it is."""
    import tensorflow as tf

    @tf.custom_gradient
    def add(part: Any) -> tuple[Any, Any]:
        return _allreduce(part, comm, "forward", told), lambda gradient: gradient

    return add(part)


def copied(whole: Any, comm: Comm, told: Told | None = None) -> Any:
    """Hand on what all ranks have alike; backward their gradients are added up.

    Each rank uses the tensor for its own part of the work, so each knows a part of its gradient.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def copy(whole: Any) -> tuple[Any, Any]:
        backward = lambda gradient: _allreduce(gradient, comm, "backward", told)  # noqa: E731
        return tf.identity(whole), backward

    return copy(whole)


def gathered(part: Any, comm: Comm, told: Told | None = None) -> Any:
    """Put the parts of the last dimension together; backward each takes its part."""
    import tensorflow as tf

    @tf.custom_gradient
    def gather(part: Any) -> tuple[Any, Any]:
        parts = comm.allgather(part.numpy())
        ends = np.cumsum([each.shape[-1] for each in parts])
        own = slice(ends[comm.rank] - parts[comm.rank].shape[-1], ends[comm.rank])
        whole = np.concatenate(parts, axis=-1)
        _tell(told, "forward", "allgather", whole)
        return tf.constant(whole), lambda gradient: gradient[..., own]

    return gather(part)


def dense_by_column(
    inputs: Any, kernel: Any, bias: Any, comm: Comm, told: Told | None = None
) -> Any:
    """Compute this rank's columns of a dense layer, Y_r = X W_r + b_r.

    Forward no message. Backward one allreduce: every column has a part in the gradient of X.
    """
    return copied(inputs, comm, told) @ kernel + bias


def dense_by_row(inputs: Any, kernel: Any, bias: Any, comm: Comm, told: Told | None = None) -> Any:
    """Compute a dense layer from this rank's rows, Y = sum of X_r W_r, + b.

    Forward one allreduce. Backward no message: all ranks know the gradient of Y.
    """
    return summed(inputs @ kernel, comm, told) + bias


def convolution_by_output(
    images: Any,
    kernel: Any,
    bias: Any,
    comm: Comm,
    stride: int = 1,
    padding: str = "valid",
    told: Told | None = None,
) -> Any:
    """Compute this rank's output channels of a convolution; messages as `dense_by_column`."""
    import tensorflow as tf

    whole = copied(images, comm, told)
    return tf.nn.conv2d(whole, kernel, stride, padding.upper()) + bias


def convolution_by_input(
    images: Any,
    kernel: Any,
    bias: Any,
    comm: Comm,
    stride: int = 1,
    padding: str = "valid",
    told: Told | None = None,
) -> Any:
    """Compute a convolution from this rank's input channels; messages as `dense_by_row`."""
    import tensorflow as tf

    part = tf.nn.conv2d(images, kernel, stride, padding.upper())
    return summed(part, comm, told) + bias


def share(count: int, ranks: int, rank: int, name: str) -> slice:
    """Cut what a net must have at least once per rank into parts that differ by at most one."""
    require(count >= ranks, name, f"be at least the {ranks} ranks", count, "Use fewer ranks.")
    return shard(count, rank, ranks)


def columns(kernel: np.ndarray, comm: Comm) -> np.ndarray:
    """Take this rank's columns of a dense kernel, or output channels of a convolution's."""
    return kernel[..., share(kernel.shape[-1], comm.size, comm.rank, "units")]


def rows(kernel: np.ndarray, comm: Comm) -> np.ndarray:
    """Take this rank's rows of a dense kernel, or input channels of a convolution's.

    Args:
        kernel: the whole kernel; its last but one dimension is cut.
        comm: the ranks.

    Returns:
        numpy.ndarray: a view.

    Raises:
        ValueError: when there are more ranks than rows.
    """
    return kernel[..., share(kernel.shape[-2], comm.size, comm.rank, "inputs"), :]


def _allreduce(tensor: Any, comm: Comm, direction: str, told: Told | None) -> Any:
    import tensorflow as tf

    array = tensor.numpy().copy()
    _tell(told, direction, "allreduce", array)
    return tf.constant(allreduce(array, comm, check=False))


def _tell(told: Told | None, direction: str, collective: str, array: np.ndarray) -> None:
    if told is not None:
        told(direction, collective, array.nbytes)
