"""What makes two pipelines give the same samples: for ranks that must agree, and checkpoints."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dlguide.data.formats.manifest import NAME
from dlguide.data.input_pipeline.pipeline import Pipeline
from dlguide.data.input_pipeline.shards import ShardSource
from dlguide.data.input_pipeline.sources import ArraySource, FileSource, Source


def identity(pipeline: Pipeline) -> dict[str, Any]:
    """Describe what a pipeline gives, apart from who takes how much of it and how fast.

    Left out are batch, rank, ranks, seed and shuffle, which a training sets, and threads, cache,
    prefetch and throttle, which change no sample. A folder is known by its manifest or by the
    names of its files, not by its place: each node may have a copy of its own.

    Args:
        pipeline: of any source.

    Returns:
        dict: JSON-able; equal for pipelines that give the same samples.
    """
    return {
        "name": pipeline.name,
        "samples": pipeline.samples,
        "order": repr(pipeline.order),
        "augment": repr(pipeline.augment),
        "channels": pipeline.channels,
        "raw": None if pipeline.raw is None else list(pipeline.raw),
        "source": f"{pipeline.source.count} samples, {_checksum(pipeline.source):08x}",
    }


def _checksum(source: Source) -> int:
    """Compute the CRC-32 of what tells one source from another."""
    if isinstance(source, ArraySource):
        ends = source.images[[0, -1]]
        return zlib.crc32(source.labels.tobytes(), zlib.crc32(np.ascontiguousarray(ends).tobytes()))
    if isinstance(source, FileSource):
        found = 0
        for path, labels in zip(source.paths, source.labels, strict=True):
            line = f"{'/'.join(Path(path).parts[-2:])} {labels}\n"
            found = zlib.crc32(line.encode(errors="surrogateescape"), found)
        return found
    if isinstance(source, ShardSource):
        return source.checksum()
    return zlib.crc32((source.path / NAME).read_bytes())
