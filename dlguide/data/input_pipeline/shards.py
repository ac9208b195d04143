"""Pictures of published TFRecord shards, read record by record in any order."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.data.input_pipeline.sources import REQUEST_NBYTES, Source
from dlguide.errors import require

if TYPE_CHECKING:
    from dlguide.data.formats.damage import DamageError
    from dlguide.data.readers.imagenet_shards import Shards


class ShardSource(Source):
    """The shards that `readers.imagenet_shards.read` found; each record is checked when read.

    Args:
        shards: of one split.
    """

    def __init__(self, shards: Shards) -> None:
        require(len(shards) > 0, "shards", "hold at least one record", len(shards))
        self.shards, self.count = shards, len(shards)
        self.name = f"shards of {shards.split}"

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        """Read records; each request opens its file, which a throttle counts."""
        found = [self.shards[number] for number in numbers.tolist()]
        if throttle is not None:
            for one in found:
                nbytes = len(one.encoded)
                throttle.take(1, max(1, math.ceil(nbytes / REQUEST_NBYTES)), nbytes)
        labels = self.labels_of([(one.label,) for one in found], numbers)
        return [one.encoded for one in found], labels

    def damaged(self, number: int, what: str) -> DamageError:
        """Name file, record and byte."""
        return self.shards.index.damaged(number, what)

    def close(self) -> None:
        """Nothing stays open."""

    def checksum(self) -> int:
        """Compute the CRC-32 of all records' lengths and checksums, whatever their folder.

        Returns:
            int: the same for the same shards.
        """
        table = self.shards.index.table
        names = " ".join(path.name for path in self.shards.index.paths)
        return zlib.crc32(table.tobytes(), zlib.crc32(names.encode()))
