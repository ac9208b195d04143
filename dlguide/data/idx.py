"""Files of the IDX form, held against their checksum before they are used."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np

from dlguide.errors import DataError


def read_idx(path: Path, checksum: str, shape: tuple[int, ...], then: str = "") -> np.ndarray:
    """Read an array of bytes from a packed IDX file that is known by its checksum.

    Source:
        LeCun, Cortes, Burges: The MNIST database of handwritten digits (1998), file format.
    """
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: expected SHA-256 {checksum}, found {error.strerror}. {then}"
        ) from error
    found = hashlib.sha256(packed).hexdigest()
    if found != checksum:
        raise DataError(
            f"{path} is damaged or not the original file: expected SHA-256 {checksum}, "
            f"found {found} ({len(packed)} bytes). {then}"
        )
    return _unpack_idx(packed, shape, path, then)


def _unpack_idx(packed: bytes, shape: tuple[int, ...], path: Path, then: str) -> np.ndarray:
    # IDX: two zero bytes, type 8 (unsigned byte), number of axes, their lengths, then the data
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). {then}") from error
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    if raw[: len(header)] != header or len(raw) != len(header) + math.prod(shape):
        raise DataError(f"{path} does not hold bytes of shape {shape}. {then}")
    return np.frombuffer(raw, np.uint8, offset=len(header)).reshape(shape)
