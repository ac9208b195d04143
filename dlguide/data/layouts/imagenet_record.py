"""One record of ImageNet's TFRecord shards: its features, and what must hold of them."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dlguide.data.formats.sample import MalformedError, features
from dlguide.data.layouts.files import DAMAGE, decode_image

BOX_FIELDS = ("xmin", "ymin", "xmax", "ymax")
_SYNSET = re.compile(r"n\d{8}")
_VALIDATION = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"


class Box(NamedTuple):
    """A bounding box in shares of the picture, 0 to 1: left, top, right, bottom."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, eq=False)
class Record:
    """A labelled picture, still encoded."""

    index: int
    label: int
    synset: str
    text: str
    name: str
    rows: int
    columns: int
    boxes: tuple[Box, ...]
    encoded: bytes = field(repr=False)

    @property
    def pixels(self) -> np.ndarray:
        """The picture decoded: uint8 of shape (rows, columns, 3)."""
        return decode_image(self.encoded, "RGB", f"record {self.index}, {self.name}")[0]


def parse(number: int, contents: bytes, split: str, classes: int) -> Record:
    """Read a record and check that its features fit each other.

    Of the JPEG begin, end and size are checked; it is decoded when its pixels are asked for.
    """
    found = features(contents, 0, len(contents))
    encoded = _one(found, "image/encoded", bytes)
    label = _one(found, "image/class/label", int)
    rows, columns = _one(found, "image/height", int), _one(found, "image/width", int)
    synset, name = _text(found, "image/class/synset"), _text(found, "image/filename")
    if not 1 <= label <= classes:
        raise ValueError(f"label {label} must be 1 to {classes}")
    if not _SYNSET.fullmatch(synset):
        raise ValueError(f"the class must be called n and 8 digits, got {synset!r}")
    fits = name.startswith(f"{synset}_") if split == "train" else _VALIDATION.fullmatch(name)
    if not fits:
        raise ValueError(f"a picture called {name!r} among those of {synset} for {split}")
    _require_jpeg(encoded, rows, columns)
    text = _text(found, "image/class/text") if found.get("image/class/text") else ""
    boxes = _boxes(found, label)
    return Record(number, label - 1, synset, text, name, rows, columns, boxes, encoded)


def _require_jpeg(encoded: bytes, rows: int, columns: int) -> None:
    kind = f"begins with {encoded[:8]!r}"
    if encoded.startswith(_JPEG_BEGIN):
        try:
            with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
                size = image.size
        except DAMAGE as error:
            kind = str(error)
        else:
            if size != (columns, rows):
                raise ValueError(f"its JPEG has {size} pixels, the record says {(columns, rows)}")
            if _JPEG_END in encoded:
                return
            kind = "has no end"
    raise ValueError(f"image/encoded is no whole JPEG ({len(encoded)} bytes): {kind}")


def _boxes(found: dict[str, list], label: int) -> tuple[Box, ...]:
    sides = [found.get(f"image/object/bbox/{side}", []) for side in BOX_FIELDS]
    labels = found.get("image/object/bbox/label", [])
    if len({len(side) for side in sides}) > 1:
        raise ValueError(f"its boxes have {[len(side) for side in sides]} sides")
    if labels and labels != [label] * len(sides[0]):
        raise ValueError(f"its {len(sides[0])} boxes have the labels {labels}, it has {label}")
    boxes = tuple(Box(*box) for box in zip(*sides, strict=True))
    for box in boxes:
        if not (0 <= box.left <= box.right <= 1 and 0 <= box.top <= box.bottom <= 1):
            raise ValueError(f"its {box} is not within the picture, 0 to 1")
    return boxes


def _one(found: dict[str, list], name: str, kind: type) -> Any:
    values = found.get(name)
    if values is None:
        raise MalformedError(f"it has no feature {name!r}")
    if len(values) != 1 or not isinstance(values[0], kind):
        raise MalformedError(f"its feature {name!r} is not one {kind.__name__}")
    return values[0]


def _text(found: dict[str, list], name: str) -> str:
    try:
        return _one(found, name, bytes).decode()
    except UnicodeDecodeError:
        raise MalformedError(f"its feature {name!r} is not UTF-8") from None
