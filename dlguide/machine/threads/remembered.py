"""What was found to be best on a machine, kept from one day to the next in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlguide.files import cache_folder
from dlguide.machine.describe import Machine, describe
from dlguide.machine.threads.candidates import Candidate
from dlguide.machine.threads.tuning import TuneResult

FORMAT = 1


@dataclass(frozen=True)
class Remembered:
    """The candidates of one search that worked, the best first."""

    net: str
    batch: int
    unix_s: float
    candidates: tuple[Candidate, ...]
    images_per_s: tuple[float, ...]

    def best(
        self, machine: Machine | None = None, ranks: int | None = None, oversubscribe: bool = False
    ) -> Candidate | None:
        """Give the best candidate."""
        for each in self.candidates:
            crowded = each.ranks > 1 and each.plan(machine).oversubscribed
            if ranks in (None, each.ranks) and (oversubscribe or not crowded):
                return each
        return None

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.unix_s))
        return f"as tuned on {when} for {self.net} with batches of {self.batch}"


def facts(machine: Machine) -> dict[str, Any]:
    """Give what a search's outcome depends on, and a host's name or a day's load does not
    change.
    """
    names = ("processor", "sockets", "numa_nodes", "physical_cores", "logical_cores", "quota_cores")
    return {name: getattr(machine, name) for name in names}


def folder_of(machine: Machine) -> Path:
    """Give the folder of the records of machines like this one."""
    text = json.dumps(facts(machine), sort_keys=True)
    return cache_folder() / "threads" / hashlib.sha256(text.encode()).hexdigest()[:16]


def remember(
    result: TuneResult,
    net: str,
    batch: int,
    machine: Machine | None = None,
    unix_s: float | None = None,
) -> Path:
    """Keep the outcome of a search; an earlier one of the same net and batch is replaced.

    Written to a temporary file, flushed, and renamed: a reader sees the old one or the new one.
    """
    machine = describe() if machine is None else machine
    rows = [row for row in result.rows if not row.error]
    record = {
        "format": FORMAT,
        "machine": facts(machine),
        "net": net,
        "batch": batch,
        "unix_s": time.time() if unix_s is None else unix_s,
        "candidates": [asdict(row.candidate) for row in rows],
        "images_per_s": [row.median for row in rows],
    }
    folder = folder_of(machine)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{net}-batch{batch}.json"
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".", suffix=".draft")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path


def recall(
    machine: Machine | None = None, net: str | None = None, batch: int | None = None
) -> Remembered | None:
    """Bring back the newest outcome of a search on machines like this one.

    A damaged file is reported as a warning and left out.
    """
    machine = describe() if machine is None else machine
    found = []
    for path in sorted(folder_of(machine).glob("*.json")):
        try:
            found.append(_read(path, machine))
        except (OSError, ValueError, TypeError, KeyError) as error:
            warnings.warn(
                f"{path} is damaged and is not used ({type(error).__name__}: {error}). "
                "`dlguide tune` writes it anew.",
                RuntimeWarning,
                stacklevel=2,
            )
    fits = [each for each in found if net in (None, each.net) and batch in (None, each.batch)]
    return max(fits, key=lambda each: each.unix_s, default=None)


def _read(path: Path, machine: Machine) -> Remembered:
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["format"] != FORMAT or record["machine"] != facts(machine):
        raise ValueError("it is of another machine or of another version of dlguide")
    found = Remembered(
        str(record["net"]),
        int(record["batch"]),
        float(record["unix_s"]),
        tuple(Candidate(**each) for each in record["candidates"]),
        tuple(float(each) for each in record["images_per_s"]),
    )
    if not found.candidates or len(found.candidates) != len(found.images_per_s):
        raise ValueError("it has no candidates, or not one speed for each")
    for each in found.candidates:
        each.plan(machine)  # its numbers must make sense here
    return found
