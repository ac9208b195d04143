"""Texts that people type into variables: where a word stands, and what is wrong with it there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dlguide.errors import require
from dlguide.machine.affinity import spans

MAX_LIST = 4096  # CPUs of one list: more is a typing error, such as a missing comma


def require_at(
    condition: Any, name: str, must: str, text: str, start: int, end: int, then: str = ""
) -> None:
    """Raise a ValueError that points at a place in a text unless `condition` holds."""
    if condition:
        return
    came = repr(text[start:end]) if text[start:end] else "nothing"
    shown = text.replace("\n", " ").replace("\t", " ")
    first = f"`{name}` must {must}, got {came} at column {start + 1}. {then}".rstrip()
    raise ValueError(f"{first}\n    {shown}\n    {' ' * start}{'^' * max(end - start, 1)}")


def require_word(name: str, word: Word, known: Iterable[str], what: str) -> str:
    """Return the word in small letters when it is a known one, or list those with its place."""
    names = sorted(known)
    said = word.said.lower()
    near = get_close_matches(said, names, n=1)
    then = f"Did you mean {near[0]}?" if near else ""
    word.require(said in names, name, f"have {what} here, one of {', '.join(names)}", then)
    return said


@dataclass(frozen=True)
class Word:
    """A piece of a text and its place in it."""

    text: str
    start: int
    end: int

    @property
    def said(self) -> str:
        """The piece itself."""
        return self.text[self.start : self.end]

    def require(self, condition: Any, name: str, must: str, then: str = "") -> None:
        """Raise a ValueError that points at this word unless `condition` holds."""
        require_at(condition, name, must, self.text, self.start, self.end, then)

    def part(self, start: int, end: int) -> Word:
        """Return a piece of this word."""
        return Word(self.text, self.start + start, self.start + end)

    def split(self, separators: str) -> Iterator[Word]:
        """Cut the word at separators that are not inside brackets, without blanks around."""
        depth = begin = 0
        for place, letter in enumerate(self.said + separators[0]):
            depth += (letter in "[{(") - (letter in "]})")
            if (letter in separators and depth <= 0) or place == self.end - self.start:
                piece = self.said[begin:place]
                blank = len(piece) - len(piece.lstrip())
                yield self.part(begin + blank, begin + max(len(piece.rstrip()), blank))
                begin = place + 1

    def count(self, name: str, what: str, least: int = 0) -> int:
        """Return the word as a whole number."""
        plain = self.said.isascii() and self.said.isdigit() and len(self.said) < 10
        must = f"have {what} here, a whole number of at least {least}"
        self.require(plain and int(self.said) >= least, name, must)
        return int(self.said)


def whole(text: Any, name: str) -> Word:
    """Return a whole text as a word."""
    plain = isinstance(text, str | int) and not isinstance(text, bool)
    require(plain, name, "be a text or a whole number", text)
    said = str(text)
    require(bool(said.strip()), name, "hold at least one word", said)
    blank = len(said) - len(said.lstrip())
    return Word(said, blank, len(said.rstrip()))


def cpu_words(
    word: Word, name: str, separators: str = ",", there: Collection[int] | None = None
) -> list[tuple[int, ...]]:
    """Read a list of logical CPUs: `3`, spans `0-5`, spans with a stride `0-6:2`, sets `{4,5}`."""
    found: list[tuple[int, ...]] = []
    pieces = list(word.split(separators))
    if " " in separators:  # blanks in a row, or after a comma
        pieces = [piece for piece in pieces if piece.said]
    for piece in pieces:
        inner = piece.part(1, len(piece.said) - 1)
        if re.fullmatch(r"\{.*\}", piece.said):
            found.append(tuple(cpu for cpus in cpu_words(inner, name, ",", there) for cpu in cpus))
            continue
        entry = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", piece.said)
        must = "have a CPU here, such as 3, 0-5, 0-6:2 or {4,5}"
        piece.require(entry, name, must)
        low, high, stride = int(entry[1]), int(entry[2] or entry[1]), int(entry[3] or 1)
        piece.require(low <= high, name, "have spans that go upwards")
        piece.require(stride > 0, name, "have a stride of at least 1")
        cpus = range(low, high + 1, stride)
        require_there(piece, name, cpus, there)
        few = len(found) + len(cpus) <= MAX_LIST
        piece.require(few, name, f"list at most {MAX_LIST} CPUs")
        found += [(cpu,) for cpu in cpus]
    word.require(found, name, "list at least one CPU")
    return found


def require_there(
    word: Word, name: str, cpus: Iterable[int], there: Collection[int] | None
) -> None:
    """Raise a ValueError that points at a word unless the machine has its CPUs."""
    if there is None:
        return
    missing = [cpu for cpu in cpus if cpu not in there]
    must = f"name CPUs of the machine here, which has {spans(there)}"
    word.require(not missing, name, must, "Look at the numbering with `lscpu -e`.")
