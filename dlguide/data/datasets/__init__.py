"""Data sets of labelled images, and which sample belongs to which rank."""

from dlguide.data.datasets.images import Dataset
from dlguide.data.datasets.loading import image_shape, load, names, present
from dlguide.data.datasets.sharing import Step, epoch_batches, shard

__all__ = [
    "Dataset",
    "Step",
    "epoch_batches",
    "image_shape",
    "load",
    "names",
    "present",
    "shard",
]
