"""Pipelines whose images are let alone: for evaluation, and for the last epochs of a training."""

from __future__ import annotations

from dlguide.data.input_pipeline.augment import CentreCrop, Flip, Operation, PaddedCrop, ResizedCrop
from dlguide.data.input_pipeline.pipeline import Pipeline
from dlguide.data.input_pipeline.sources import ArraySource
from dlguide.errors import require


def plain(pipeline: Pipeline) -> Pipeline:
    """Give the same pipeline with nothing random in its images.

    Flips are left out, and padded crops of images that have the crop's size already; of others,
    and of files, whose images can have any size, the middle is cut out. In the place of a
    `ResizedCrop` stands the middle of the image, of the same size, cut from one whose shorter
    side is 8/7 of it (224 from 256 pixels).

    Args:
        pipeline: with any operations.

    Returns:
        Pipeline: of the same samples in the same order.

    Raises:
        ValueError: when it has a random operation of another kind, or a padded crop that is
            known to be larger than the image.

    Source:
        Goyal et al., arXiv:1706.02677, section 5.1 (the middle of the image).
    """
    kept, size = [], _size(pipeline)
    for operation in pipeline.augment:
        instead = _plain(operation, size)
        kept += [] if instead is None else [instead]
        crops = isinstance(operation, PaddedCrop | ResizedCrop | CentreCrop)
        if crops or operation.sizes:
            size = (operation.rows, operation.columns) if crops else None
    return pipeline.replace(augment=tuple(kept))


def _size(pipeline: Pipeline) -> tuple[int, int] | None:
    """Give rows and columns of the images before all operations, where they are known."""
    if isinstance(pipeline.source, ArraySource):
        return pipeline.source.images.shape[1:3]
    return pipeline.raw[:2] if pipeline.raw is not None else None


def _plain(operation: Operation, size: tuple[int, int] | None) -> Operation | None:
    if isinstance(operation, Flip):
        return None
    if isinstance(operation, PaddedCrop):
        wanted = operation.rows, operation.columns
        if size == wanted:
            return None
        fits = size is None or (size[0] >= wanted[0] and size[1] >= wanted[1])
        must = f"hold no padded crop larger than the image of {size}, to be made plain"
        require(fits, "augment", must, wanted, "Nothing in the image says where to pad it.")
        return CentreCrop(*wanted)
    if isinstance(operation, ResizedCrop):
        longer = max(operation.rows, operation.columns)
        return CentreCrop(operation.rows, operation.columns, round(longer * 8 / 7))
    must = "hold no random operation but Flip, PaddedCrop and ResizedCrop, to be made plain"
    require(operation.draws == 0, "augment", must, type(operation).__name__)
    return operation
