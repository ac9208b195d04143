"""The last run of each notebook on this machine, from which slides take figures and numbers.

`dlguide notebooks` keeps what it executed under `build/notebooks`. A run counts as long as the
notebook still has the cells that ran; one with an error is never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dlguide import notebooks
from dlguide.checks import require
from dlguide.slides import outputs

STAMP = re.compile(r"\bmachine\.describe\(")


@dataclass(frozen=True)
class Run:
    """An executed notebook.

    Args:
        notebook: its cells with their outputs, as nbformat reads them.
        when: day and hour of its last cell, in this machine's time zone.
        machine: what its stamp says of the machine.
    """

    notebook: Mapping[str, Any]
    when: str
    machine: str

    def __str__(self) -> str:
        return f"Figures and numbers: the run of {self.when} on {self.machine}"


def kept(path: Path, folder: str | os.PathLike[str] | None = None) -> Path:
    """Say where a notebook's last run lies.

    Args:
        path: the notebook.
        folder: of the runs; None takes the repository's `build/notebooks`.

    Returns:
        Path: the executed notebook, whether it is there or not.
    """
    return Path(folder or notebooks.KEPT) / path.name


def lack(path: Path, folder: str | os.PathLike[str] | None = None) -> str:
    """Say why a notebook has no run that could be shown.

    Args:
        path: the notebook.
        folder: of the runs; None takes the repository's `build/notebooks`.

    Returns:
        str: the reason, the rest of a sentence that begins with its name; empty when it has one.
    """
    executed = kept(path, folder)
    if not executed.is_file():
        return "has not been executed on this machine"
    ran = _read(executed)
    if _sources(ran) != _sources(_read(path)):
        return "has changed since it was executed"
    cells = [cell for cell in ran["cells"] if cell["cell_type"] == "code"]
    errors = [outputs.of(cell).error for cell in cells]
    first = next((error for error in errors if error), "")
    if first:
        return f"failed when it was executed ({first.splitlines()[0]})"
    if not all(_time(cell) for cell in cells if "".join(cell["source"]).strip()):
        return "was not executed to its end"
    return ""


def read(path: Path, folder: str | os.PathLike[str] | None = None) -> Run:
    """Read the last run of a notebook.

    Args:
        path: the notebook.
        folder: of the runs; None takes the repository's `build/notebooks`.

    Returns:
        Run: its cells, and where and when they ran.

    Raises:
        ValueError: when there is no run that could be shown.
    """
    why = lack(path, folder)
    told = f"{path.stem}, which {why}"
    then = "Run `dlguide slides --execute`, or `dlguide notebooks` with its number."
    require(not why, "path", "be a notebook with a run that can be shown", told, then)
    ran = _read(kept(path, folder))
    cells = [cell for cell in ran["cells"] if cell["cell_type"] == "code"]
    times = [_time(cell) for cell in cells]
    last = max((time for time in times if time), default="")
    when = f"{datetime.fromisoformat(last).astimezone():%d %B %Y, %H:%M}" if last else "no day"
    stamps = [outputs.of(cell).text for cell in cells if STAMP.search("".join(cell["source"]))]
    lines = [line.strip() for line in stamps[0].splitlines()[:2]] if stamps else []
    return Run(ran, when, "; ".join(lines) or "this machine")


def execute(path: Path, folder: str | os.PathLike[str] | None = None) -> notebooks.Execution:
    """Execute a notebook and keep the run.

    Args:
        path: the notebook.
        folder: of the runs; None takes the repository's `build/notebooks`.

    Returns:
        Execution: how it went.
    """
    place = kept(path, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    return notebooks.execute(path, output=place)


def _read(path: Path) -> Mapping[str, Any]:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, KeyError, AttributeError, nbformat.ValidationError):
        require(False, "path", "be a notebook", str(path), "Delete it and execute it again.")
        raise


def _sources(notebook: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def _time(cell: Mapping[str, Any]) -> str:
    """When a cell began, as nbclient writes it down; "" for one that did not run."""
    ran = cell.get("metadata", {}).get("execution", {})
    return str(ran.get("iopub.execute_input", "")).replace("Z", "+00:00")
