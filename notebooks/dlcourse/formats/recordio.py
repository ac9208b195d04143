"""RecordIO: records one after the other, with an index at the file's end."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np

from dlguide.data.formats.dataset import crc32c
from dlguide.data.formats.records import FRAMINGS, FramedDataset, FramedWriter

_ENDS = 2**64 - 1


class RecordIO:
    """Our seekable record file: a header before each record, an index of offsets at the end.

    A header holds length, CRC-32C of the record and CRC-32C of those two; the length 2^64 - 1
    says that the last record has gone by. After it come the offset of each record (8 bytes
    each), and in the last 32 bytes number of records, CRC-32C of the offsets and the mark. So
    the file can be read from front to back when its end is lost, and then says that it is.
    """

    beginning, mark = b"dlguide-records1", b"dlguide-offsets1"
    before_nbytes, after_nbytes = 16, 0
    has_end = True

    def frame(self, nbytes: int, crc: int) -> tuple[bytes, bytes]:
        """Make the header; there is nothing after a record."""
        head = struct.pack("<QI", nbytes, crc)
        return head + struct.pack("<I", crc32c(head)), b""

    def ending(self, offsets: np.ndarray) -> bytes:
        """Make the end mark, the offsets and the last 32 bytes."""
        table = np.asarray(offsets, "<u8").tobytes()
        last = struct.pack("<QII", len(offsets), crc32c(table), 0) + self.mark
        return self.frame(_ENDS, 0)[0] + table + last

    def declared(self, head: bytes) -> int | None:
        """Read a record's length from the bytes before it; None for the end mark."""
        if head[12:] != struct.pack("<I", crc32c(head[:12])):
            raise ValueError("its header does not fit the checksum of the header")
        nbytes = int.from_bytes(head[:8], "little")
        return None if nbytes == _ENDS else nbytes


FRAMINGS["recordio"] = RecordIO()
FORMAT = (partial(FramedWriter, kind="recordio"), FramedDataset)
