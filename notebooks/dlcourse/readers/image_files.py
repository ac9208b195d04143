"""Images, lists and tables of published data sets, checked when they are read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from dlguide.data.formats.sample import Sample
from dlguide.errors import DataError, MissingComponentError

# Without this list Pillow asks all its decoders; the one for EPS starts another program.
FORMATS = ("JPEG", "PNG")
# length, name and checksum of the part that ends a PNG
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
# What Pillow's decoders raise for damaged files.
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, Image.DecompressionBombError)


def require_existing(path: Path, what: str, origin: str = "") -> Path:
    """Return a path that must be there; the error's text says where the data come from."""
    if not path.exists():
        raise MissingComponentError(
            f"There is no {what} at {path}. {origin}{' ' * bool(origin)}Give the folder that holds "
            "the data set; it may be copied from another machine."
        )
    return path


def read_image(path: Path, mode: str) -> tuple[np.ndarray, str]:
    """Decode an image file wholly; return its pixels and its format, whatever its name says."""
    return decode_image(_contents(path), mode, str(path))


def file_sample(path: Path, labels: tuple[int, ...], key: str) -> Sample:
    """Take an image file as it is for a sample, after decoding it to see that it is whole."""
    contents = _contents(path)
    decode_image(contents, None, str(path))
    return Sample(contents, labels, key)


def decode_image(contents: bytes, mode: str | None, where: str) -> tuple[np.ndarray, str]:
    """Decode the bytes of an image file wholly; return the pixels and the file's format.

    A changed bit in a PNG is found by its checksums. A JPEG has none: there a changed bit may
    give other pixels, and only a checksum kept elsewhere shows it.
    """
    try:
        with Image.open(io.BytesIO(contents), formats=FORMATS) as image:
            image.verify()  # the checksums of a PNG, which decoding does not look at
        with Image.open(io.BytesIO(contents), formats=FORMATS) as image:
            if image.format == "PNG" and _PNG_END not in contents:
                raise OSError("its last part, IEND, is damaged or missing")
            pixels = np.asarray(image if mode is None else image.convert(mode))
            return pixels, (image.format or "").lower()
    except DAMAGE as error:
        size = len(contents)
        raise DataError(f"{where}: no image that can be read ({size} bytes): {error}") from error


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: the image is missing.") from None
    except OSError as error:
        raise DataError(f"{path}: no image that can be read: {error.strerror}.") from error


def read_lines(path: Path, what: str, origin: str = "") -> list[str]:
    """Read a text file line by line."""
    try:
        return require_existing(path, what, origin).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: no text from byte {error.start} on.") from error
