"""What `bench.io` found: speeds of formats, by access pattern and state of the page cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlguide.errors import require
from dlguide.measure import Ratio, Timing, ratio

ACCESS = ("sequential", "random")
PLAIN = "plain read"


@dataclass(frozen=True)
class Speed:
    """One format read in one way."""

    kind: str
    access: str
    cold: bool
    checked: bool
    samples: int
    nbytes: int
    disk_nbytes: int
    opens: int
    kept: float | None
    timing: Timing

    @property
    def samples_per_s(self) -> float:
        """In the median pass."""
        return self.samples / self.timing.median

    @property
    def bytes_per_s(self) -> float:
        """Data of samples in the median pass."""
        return self.nbytes / self.timing.median


@dataclass(frozen=True)
class Comparison:
    """The same samples in several formats on one machine.

    Args:
        machine: its name and processor.
        folder: where the files lay.
        file_system: its kind, as the kernel calls it; empty where unknown.
        names: what is known about directory entries and inodes in cold passes, a sentence.
        speeds: all that was measured.
    """

    machine: str
    folder: str
    file_system: str
    names: str
    speeds: tuple[Speed, ...]

    def speed(self, kind: str, access: str, cold: bool, checked: bool = True) -> Speed:
        """Find one measurement.

        Args:
            kind: of the format.
            access: "sequential" or "random".
            cold: the state of the page cache.
            checked: with all checks, or the bytes alone.

        Returns:
            Speed: what was measured.

        Raises:
            ValueError: when it was not.
        """
        asked = (kind, access, cold, checked)
        found = {(each.kind, each.access, each.cold, each.checked): each for each in self.speeds}
        require(asked in found, "kind", f"be measured, one of {self.kinds()}", asked)
        return found[asked]

    def kinds(self) -> tuple[str, ...]:
        """Name the formats, the plain read last."""
        return tuple(dict.fromkeys(each.kind for each in self.speeds))

    def gain(self, kind: str, access: str, cold: bool) -> Ratio:
        """How many times the samples/s of one file a sample a format gives, all checked.

        Args:
            kind: of the format.
            access: "sequential" or "random".
            cold: the state of the page cache.

        Returns:
            Ratio: median, and the range that the quartiles allow.
        """
        slow, fast = self.speed("folder", access, cold), self.speed(kind, access, cold)
        return ratio(slow.timing, fast.timing)

    def cold_share(self) -> str:
        """Say whether the cold passes were cold."""
        kept = [each.kept for each in self.speeds if each.cold]
        if not kept:
            return "No cold pass was asked for."
        if None in kept:
            return "Cold: not verified, this system does not tell what is in its page cache."
        most = max(kept)
        if most > 0.01:
            worst = next(each for each in self.speeds if each.kept == most)
            return (
                f"NOT cold: {most:.0%} of the pages of {worst.kind} were still in memory. A file "
                "system in memory (tmpfs) cannot be cold; choose another `folder`."
            )
        return f"Cold: verified with mincore, at most {most:.1%} of the pages were in memory."

    def lines(self) -> list[tuple[str, ...]]:
        """Give the table: a row of texts for each format, access pattern and state."""
        rows = []
        for each in self.speeds:
            if each.checked or each.kind == PLAIN:
                raw = self.speed(each.kind, each.access, each.cold, False)
                low, high = each.samples / each.timing.high, each.samples / each.timing.low
                rows.append(
                    (
                        each.kind,
                        each.access,
                        "cold" if each.cold else "warm",
                        f"{each.samples_per_s:,.0f}",
                        f"{low:,.0f} to {high:,.0f}",
                        f"{each.bytes_per_s / 1e6:,.0f}" if each.checked else "",
                        f"{raw.bytes_per_s / 1e6:,.0f}",
                        f"{each.disk_nbytes:,}",
                        f"{each.opens:,}",
                    )
                )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record."""
        return asdict(self)

    def write(self, path: Path) -> None:
        """Write the record as JSON.

        Args:
            path: of the file.
        """
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")


COLUMNS = (
    *("format", "access", "cache", "samples/s", "quartiles", "MB/s checked", "MB/s raw"),
    *("bytes on disk", "opens"),
)
