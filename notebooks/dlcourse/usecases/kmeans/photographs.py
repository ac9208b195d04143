"""Photographs as arrays of colours: read with care, counted, written without a loss."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from dlguide.errors import MissingComponentError, require, require_known

# Without this list Pillow asks all its decoders; the one for EPS starts another program.
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")


def china() -> np.ndarray:
    """Return the photograph of a Chinese temple that comes with scikit-learn.

    Source:
        "China" by danielbuechele (flickr), CC BY 2.0; scikit-learn, `load_sample_image`.
    """
    try:
        from sklearn.datasets import load_sample_image
    except ImportError as error:
        raise MissingComponentError(
            "The photograph comes with scikit-learn, which is not installed. "
            "Run `pip install scikit-learn` or give a file of yours."
        ) from error
    return np.asarray(load_sample_image("china.jpg"))


def read(photograph: str | os.PathLike | np.ndarray) -> np.ndarray:
    """Read a photograph as red, green and blue.

    Grey becomes three equal channels, 16 bits a channel become 8, a photograph that the camera
    has marked as rotated is rotated, and transparent parts become white.

    Args:
        photograph: a file (JPEG, PNG, WebP, TIFF, BMP or GIF), or an array uint8 of shape
            (height, width), (height, width, 3) or, with transparency, (height, width, 4).

    Returns:
        np.ndarray: uint8 of shape (height, width, 3).

    Raises:
        ValueError: if the file is missing, truncated or no picture, or holds several pictures or
            32-bit values; if the array is not as above.
    """
    if isinstance(photograph, np.ndarray):
        return _from_array(photograph)
    text = isinstance(photograph, str | os.PathLike)
    require(text, "photograph", "be a file's name or an array", type(photograph).__name__)
    path = Path(photograph)
    require(_is_file(path), "photograph", "be a file that is there", str(path))
    try:
        with Image.open(path, formats=FORMATS) as image:
            frames = getattr(image, "n_frames", 1)
            image.load()
            still = ImageOps.exif_transpose(image)
            levels = still.mode not in ("I", "F")
            pixels = _flat(still) if levels and frames == 1 else np.zeros(0)
    except Exception as error:  # what decoders raise for damaged files is not documented
        kinds = ", ".join(FORMATS)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        then = f"Pillow says: {reason}. Give a whole file of one of the kinds {kinds}."
        raise ValueError(
            f"`photograph` must be a picture that can be read, got {str(path)!r}. {then}"
        ) from error
    then = "Save one of its pictures and give that."
    require(frames == 1, "photograph", "hold one picture", f"{frames} of them in {path}", then)
    then = "Numbers of 32 bits have no agreed white. Save it with 8 or 16 bits."
    require(levels, "photograph", "have 8 or 16 bits a channel", str(path), then)
    return pixels


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that the system does not take, such as one too long
        return False


def _from_array(pixels: np.ndarray) -> np.ndarray:
    grey = pixels.ndim == 2
    coloured = pixels.ndim == 3 and pixels.shape[-1] in (3, 4)
    shape = f"{pixels.dtype} of shape {pixels.shape}"
    must = "be uint8 of shape (height, width), or (height, width, 3 or 4)"
    require((grey or coloured) and pixels.dtype == np.uint8, "photograph", must, shape)
    require(pixels.size > 0, "photograph", "have at least one pixel", shape)
    return _flat(Image.fromarray(np.ascontiguousarray(pixels)))


def _flat(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I;16"):  # Pillow's own way cuts at 255
        grey = np.rint(np.asarray(image, np.float64) / 257).astype(np.uint8)  # 65535 = 257 * 255
        image = Image.fromarray(grey)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, over)
    return np.array(image.convert("RGB"))


def colours(pixels: np.ndarray) -> int:
    """Count the different colours of a picture.

    >>> colours(np.array([[[1, 2, 3], [3, 2, 1], [1, 2, 3]]], np.uint8))
    2
    """
    red, green, blue = np.moveaxis(np.asarray(pixels, np.uint32), -1, 0)
    return int(np.unique(red << 16 | green << 8 | blue).size)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """Encode a picture; a PNG of at most 256 colours gets a palette (3 bytes per colour)."""
    require_known(kind, ("PNG", "JPEG"), "kind")
    image = Image.fromarray(pixels)
    if kind == "PNG" and colours(pixels) <= 256:
        palette, numbers = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
        image = Image.fromarray(numbers.reshape(pixels.shape[:2]).astype(np.uint8), "L")
        image.putpalette(palette.astype(np.uint8).tobytes())
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(contents: bytes) -> np.ndarray:
    """Decode the bytes of `encoded`."""
    with Image.open(io.BytesIO(contents), formats=("PNG", "JPEG")) as image:
        return np.array(image.convert("RGB"))
