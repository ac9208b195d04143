"""Texts to learn a language from: characters as tokens, and windows of them.

tokens = texts.novels()
inputs, labels = tokens.windows(length=64, count=32, seed=0, step=7)
"""

from __future__ import annotations

import lzma
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dlguide.errors import DataError, require_known
from dlguide.files import data_folder

__all__ = ["TextTokens", "load", "novels", "tokens"]


def load(name: str = "austen", folder: str | os.PathLike | None = None) -> str:
    """Return a text of `data/texts`, whose README names its source and licence.

    Args:
        folder: the data folder; None takes $DLGUIDE_DATA or the course's.
    """
    place = data_folder(folder) / "texts"
    files = {path.name.split(".")[0]: path for path in sorted(place.glob("*.txt*"))}
    if not files:
        raise DataError(
            f"There are no texts in {place}. Set the environment variable DLGUIDE_DATA to the "
            "`data` folder of a clone."
        )
    path = files[require_known(name, files, "name")]
    content = path.read_bytes()
    return (lzma.decompress(content) if path.suffix == ".xz" else content).decode()


@dataclass(frozen=True, eq=False)
class TextTokens:
    """A text as whole numbers; `alphabet` has the character that each stands for."""

    ids: np.ndarray
    alphabet: str

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return len(self.alphabet)

    def __len__(self) -> int:
        return len(self.ids)

    def text(self, ids: Any) -> str:
        """Return the text of some tokens."""
        return "".join(self.alphabet[int(one)] for one in ids)

    def split(self, share: float) -> tuple[TextTokens, TextTokens]:
        """Cut off the last share of the text, to test with."""
        end = round(len(self) * (1 - share))
        return TextTokens(self.ids[:end], self.alphabet), TextTokens(self.ids[end:], self.alphabet)

    def windows(
        self, length: int, count: int, seed: int, step: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw places of the text, and return what stands there and what follows it.

        The same arguments give the same windows on every rank: let each take its part of them.

        Args:
            length: tokens of a window.
            step: of the training; each draws anew.

        Returns:
            tuple: inputs and labels, int32 of shape (count, length); labels are one token later.
        """
        most = len(self) - 1
        starts = np.random.default_rng([seed, step]).integers(0, most - length + 1, count)
        places = starts[:, None] + np.arange(length)
        return self.ids[places], self.ids[places + 1]


def tokens(text: str) -> TextTokens:
    """Number the characters that occur in a text, in their order.

    >>> one = tokens("abba")
    >>> one.ids.tolist(), one.vocabulary, one.text([1, 0])
    ([0, 1, 1, 0], 2, 'ba')
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    found, ids = np.unique(points, return_inverse=True)
    return TextTokens(ids.astype(np.int32), "".join(map(chr, found.tolist())))


@cache
def novels() -> TextTokens:
    """Return the characters of Austen's two novels, read once in a process."""
    return tokens(load())
