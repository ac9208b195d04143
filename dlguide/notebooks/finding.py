"""Which notebooks there are, and what they need that may not be installed."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path

from dlguide.checks import require

HOW_TO_GET = {"torch": "make pytorch"}  # what a notebook may need that `make setup` leaves out
ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "notebooks"  # the last run of each, from which slides take their figures


def find(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """List the notebooks, the lessons first, then the answers.

    Args:
        folder: where they lie; None takes `notebooks` of the repository.

    Returns:
        list[Path]: the files, in the order of their numbers.
    """
    place = Path(folder or ROOT / "notebooks")
    return [*sorted(place.glob("*.ipynb")), *sorted(place.glob("answers/*.ipynb"))]


def choose(names: Iterable[str] = (), folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Find the notebooks that are meant.

    Args:
        names: numbers, names or paths, such as "20", "20_data_parallelism", "my.ipynb"; empty
            for all.
        folder: where the course's notebooks lie; None takes those of the repository.

    Returns:
        list[Path]: lessons before answers, each once.

    Raises:
        ValueError: when a name means no notebook; the message lists those there are.
    """
    known = find(folder)
    wanted = [str(name) for name in names]
    chosen = [] if wanted else known
    for name in wanted:
        meant = [path for path in known if name in (path.stem, path.name, path.stem[:2])]
        if not meant and Path(name).is_file():
            meant = [Path(name)]
        there = ", ".join(sorted({path.stem for path in known})) or "none"
        require(bool(meant), "names", f"be notebooks: {there}", name)
        chosen += [path for path in meant if path not in chosen]
    return chosen


def is_answers(path: Path) -> bool:
    """Tell whether a notebook holds answers: those lie in a folder of that name.

    Args:
        path: of the notebook.

    Returns:
        bool: False for a lesson.
    """
    return path.parent.name == "answers"


def missing(path: str | os.PathLike[str]) -> str:
    """Say which optional packages a notebook needs that are not installed.

    A notebook names them in its metadata: `{"dlguide": {"needs": ["torch"]}}`.

    Args:
        path: the notebook.

    Returns:
        str: the packages and the command that installs them; empty when nothing is missing.

    Raises:
        ValueError: when the file is no notebook, or `needs` is no list of names.
    """
    try:
        contents = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        contents = None
    then = "It holds no JSON object."
    require(isinstance(contents, dict), "path", "be a notebook", str(path), then)
    needed = contents.get("metadata", {}).get("dlguide", {}).get("needs", [])
    names = isinstance(needed, list) and all(isinstance(name, str) and name for name in needed)
    require(names, "needs", "be a list of packages in the notebook's metadata", needed)
    lack = [name for name in needed if not _installed(name)]
    return "; ".join(
        f"{name} is not installed: `{HOW_TO_GET.get(name, f'pip install {name}')}`" for name in lack
    )


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what comes before its last dot is not there either
        return False
