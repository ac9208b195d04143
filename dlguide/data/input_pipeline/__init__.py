"""From files to batches, with `tf.data`: read, decode, crop, batch, augment, prefetch.

    from dlguide.data import input_pipeline

    pipeline = input_pipeline.build(
        "digits-tfrecord", batch=100, channels=1, augment=(input_pipeline.PaddedCrop(28, 28, 2),)
    )
    for images, labels in pipeline.epoch(0):
        ...

A batch depends on seed, epoch, step and the ranks, on nothing else: not on threads, caches, or
whether the epoch was begun at its first step.
"""

from __future__ import annotations

from dlguide.data.input_pipeline.augment import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    CentreCrop,
    Flip,
    Normalise,
    Operation,
    PaddedCrop,
    ResizedCrop,
)
from dlguide.data.input_pipeline.building import build
from dlguide.data.input_pipeline.epoch import Epoch
from dlguide.data.input_pipeline.identity import identity
from dlguide.data.input_pipeline.order import Runs
from dlguide.data.input_pipeline.pipeline import Pipeline
from dlguide.data.input_pipeline.plain import plain
from dlguide.data.input_pipeline.shards import ShardSource
from dlguide.data.input_pipeline.sources import ArraySource, FileSource, Source
from dlguide.data.input_pipeline.stored import FormatSource

__all__ = [
    "IMAGENET_DEVIATION",
    "IMAGENET_MEAN",
    "ArraySource",
    "CentreCrop",
    "Epoch",
    "FileSource",
    "Flip",
    "FormatSource",
    "Normalise",
    "Operation",
    "PaddedCrop",
    "Pipeline",
    "ResizedCrop",
    "Runs",
    "ShardSource",
    "Source",
    "build",
    "identity",
    "plain",
]
