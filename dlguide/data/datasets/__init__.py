"""Data sets of labelled images, and which sample belongs to which rank."""

from dlguide.data.datasets.images import Dataset, image_shape, load, names, present
from dlguide.data.datasets.sharding import BlockShuffle, RankShard, epoch_batches, shard

__all__ = [
    "BlockShuffle",
    "Dataset",
    "RankShard",
    "epoch_batches",
    "image_shape",
    "load",
    "names",
    "present",
    "shard",
]
