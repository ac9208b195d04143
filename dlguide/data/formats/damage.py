"""What is wrong with a data set, and where: file, record and byte."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide.errors import DataError


@dataclass(frozen=True)
class Damage:
    """One place that is not as it was written.

    file (its path), what (is wrong there), record (number in the data set, None where it is not
    one record's), offset (byte in the file, None where the format does not tell).
    """

    file: str
    what: str
    record: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        record = "" if self.record is None else f"record {self.record} "
        offset = "" if self.offset is None else f"at byte {self.offset} "
        place = f"{record}{offset}".strip()
        return f"{self.file}: {place}: {self.what}" if place else f"{self.file}: {self.what}"


class DamageError(DataError):
    """A data set is not as it was written; `damage` says where."""

    def __init__(self, damage: Damage, then: str = "") -> None:
        self.damage = damage
        then = then or (
            "Run `formats.verify` on the data set to see all damage, then restore the file or "
            "convert the data set again."
        )
        super().__init__(f"{damage}. {then}")


@dataclass(frozen=True)
class Report:
    """What verifying a data set found.

    path, kind (of the format), count (records that it should have, or that were found where
    nothing says so), nbytes (that were read), damages (every place found, at most `MOST` of
    them), unchecked (sentences on what this format or this data set gives no means to check).
    """

    path: str
    kind: str
    count: int
    nbytes: int
    damages: tuple[Damage, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no damage was found."""
        return not self.damages

    def __str__(self) -> str:
        state = "no damage found" if self.ok else f"{len(self.damages)} damaged places"
        lines = [f"{self.path}: {self.kind}, {self.count} records, {self.nbytes} bytes: {state}"]
        lines += [f"  {damage}" for damage in self.damages]
        lines += [f"  not checked: {text}" for text in self.unchecked]
        return "\n".join(lines)


# More places than that say no more than that the whole file is to be written again.
MOST = 1000
