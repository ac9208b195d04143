"""Positions in memory of a tensor's elements in plain and blocked layouts, by oneDNN's tags."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from dlguide.errors import require


def addresses(shape: Sequence[int], tag: str) -> np.ndarray:
    """Return the position in memory of every element of a tensor.

    In a plain layout the tag is the order of the dimensions a, b, c, d, the innermost one last.
    In a blocked one a capital letter is a dimension cut into blocks; numbers and letters at the
    end are the blocks, again the innermost one last. The last block may be filled up with
    unused elements.

    Args:
        tag: such as "abcd" (NCHW), "acdb" (NHWC), "aBcd16b" (nChw16c).

    >>> addresses((1, 2, 1, 3), "acdb")[0, :, 0, :].tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    outer, blocks = _parse_tag(tag, len(shape))
    left = {
        letter: np.arange(length).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        for axis, (letter, length) in enumerate(zip(sorted(outer), shape, strict=True))
    }
    sizes = dict(zip(sorted(outer), shape, strict=True))
    places, stride = np.zeros(shape, np.int64), 1
    for block, letter in reversed(blocks):
        places = places + left[letter] % block * stride
        left[letter], sizes[letter] = left[letter] // block, math.ceil(sizes[letter] / block)
        stride *= block
    for letter in reversed(outer):
        places = places + left[letter] * stride
        stride *= sizes[letter]
    return places


def arrange(array: np.ndarray, tag: str) -> np.ndarray:
    """Copy a tensor into memory in another layout."""
    places = addresses(array.shape, tag)
    outer, blocks = _parse_tag(tag, array.ndim)
    sizes = dict(zip(sorted(outer), array.shape, strict=True))
    for letter, length in sizes.items():
        block = math.prod(each for each, cut in blocks if cut == letter)
        sizes[letter] = -(-length // block) * block
    memory = np.zeros(math.prod(sizes.values()), array.dtype)
    memory[places.ravel()] = array.ravel()
    return memory


def _parse_tag(tag: str, dimensions: int) -> tuple[list[str], list[tuple[int, str]]]:
    """Split a tag: the outer dimensions in order, then the blocks as (length, dimension)."""
    parts = re.fullmatch(r"([A-Za-z]+?)((?:[1-9]\d*[a-z])*)", tag if isinstance(tag, str) else "")
    outer, inner = parts.groups() if parts else ("", "")
    blocks = [(int(size), letter) for size, letter in re.findall(r"(\d+)([a-z])", inner)]
    named = sorted(outer.lower()) == [chr(ord("a") + axis) for axis in range(dimensions)]
    cut = {letter.lower() for letter in outer if letter.isupper()}
    require(
        named and cut == {letter for _, letter in blocks},
        "tag",
        f'name {dimensions} dimensions once each, such as "abcd" or "aBcd16b"',
        tag,
        "Write a dimension that is cut into blocks as a capital letter.",
    )
    return list(outer.lower()), blocks
