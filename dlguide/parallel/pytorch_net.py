"""The course's MNIST net written in PyTorch, with the weights of the Keras net.

PyTorch is an optional part of the installation. A process loads it here or TensorFlow elsewhere,
not both: each has threads of its own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import MissingComponentError, require_count, require_known
from dlguide.parallel import pytorch_weights

if TYPE_CHECKING:
    import torch


# Our names of the orders in memory, and PyTorch's.
LAYOUTS = {"channels_first": "contiguous_format", "channels_last": "channels_last"}


def require_pytorch() -> None:
    """Say how to install PyTorch when it is not there."""
    if importlib.util.find_spec("torch") is None:
        raise MissingComponentError(
            "PyTorch is an optional part and is not installed. Run `make pytorch`."
        )


def set_threads(threads: int | None = None) -> int:
    """Set how many threads PyTorch divides one operation among."""
    import torch

    if threads is None:
        named = os.environ.get("OMP_NUM_THREADS", "")
        threads = int(named) if named.isdigit() else len(os.sched_getaffinity(0))
    torch.set_num_threads(require_count(threads, "threads"))
    return torch.get_num_threads()


def build(weights: Sequence[np.ndarray], layout: str = "channels_first") -> torch.nn.Module:
    """Build the net "mnist_cnn" without dropout and give it weights.

    Args:
        weights: as the Keras net's `get_weights` returns them, float32 or float64.
        layout: how the convolutions keep their numbers in memory; "channels_first" is PyTorch's
            usual one. Shapes and results are the same.

    Returns:
        torch.nn.Module: logits of shape (batch, 10) for images of shape (batch, 1, 28, 28).

    Raises:
        MissingComponentError: when PyTorch is not installed.
        ValueError: when the weights are not those of this net, or the layout is not known.
    """
    require_known(layout, LAYOUTS, "layout")
    pytorch_weights.require_shapes(weights)
    require_pytorch()
    import torch

    nn, dtype = torch.nn, torch.from_numpy(np.zeros(1, weights[0].dtype)).dtype
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)),
    ).to(dtype)
    with torch.no_grad():
        for parameter, array in zip(
            net.parameters(), pytorch_weights.to_pytorch(weights), strict=True
        ):
            parameter.copy_(torch.from_numpy(array))
    return net.to(memory_format=getattr(torch, LAYOUTS[layout]))


def weights_of(net: torch.nn.Module) -> list[np.ndarray]:
    """Read the net's weights."""
    return pytorch_weights.to_keras([each.detach().numpy() for each in net.parameters()])


def gradients_of(net: torch.nn.Module) -> list[np.ndarray]:
    """Read the gradients that the last backward pass has left."""
    return pytorch_weights.to_keras([each.grad.numpy() for each in net.parameters()])


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[Any, Any]:
    """Turn a batch as the data sets give it into PyTorch's tensors.

    With one channel, height x width x 1 and 1 x height x width are the same bytes: nothing is
    copied but the labels, which PyTorch wants as 64-bit integers.
    """
    import torch

    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, 3, 1)))
    return pixels, torch.from_numpy(labels.astype(np.int64))


def look(
    weights: Sequence[np.ndarray], images: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Give the logits of some images and the gradient of their mean loss."""
    net = build(weights)
    import torch

    pixels, classes = tensors(images.astype(weights[0].dtype), labels)
    logits = net(pixels)
    torch.nn.functional.cross_entropy(logits, classes).backward()
    return logits.detach().numpy(), gradients_of(net)
