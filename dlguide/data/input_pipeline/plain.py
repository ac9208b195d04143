"""Pipelines whose images are let alone: for evaluation, and for the last epochs of a training."""

from __future__ import annotations

from dlguide.checks import require
from dlguide.data.input_pipeline.augment import CentreCrop, Flip, Operation, PaddedCrop, ResizedCrop
from dlguide.data.input_pipeline.pipeline import Pipeline


def plain(pipeline: Pipeline) -> Pipeline:
    """Give the same pipeline with nothing random in its images.

    Flips are left out, and padded crops, which are taken to keep the images' size. In the place
    of a `ResizedCrop` stands the middle of the image, of the same size, cut from one whose
    shorter side is 8/7 of it (224 from 256 pixels).

    Args:
        pipeline: with any operations.

    Returns:
        Pipeline: of the same samples in the same order.

    Raises:
        ValueError: when it has a random operation of another kind.

    Source:
        Goyal et al., arXiv:1706.02677, section 5.1 (the middle of the image).
    """
    kept = (_plain(operation) for operation in pipeline.augment)
    return pipeline.replace(augment=tuple(operation for operation in kept if operation is not None))


def _plain(operation: Operation) -> Operation | None:
    if isinstance(operation, Flip | PaddedCrop):
        return None
    if isinstance(operation, ResizedCrop):
        longer = max(operation.rows, operation.columns)
        return CentreCrop(operation.rows, operation.columns, round(longer * 8 / 7))
    must = "hold no random operation but Flip, PaddedCrop and ResizedCrop, to be made plain"
    require(operation.draws == 0, "augment", must, type(operation).__name__)
    return operation
