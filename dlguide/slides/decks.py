"""One deck for each part of the course, from the last run of its notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dlguide import notebooks
from dlguide.checks import require, require_known
from dlguide.folders import require_writable
from dlguide.slides import lesson, page, runs

# The name of a part: its title, and the first digits of its notebooks' numbers.
PARTS = {
    "algorithms": ("Algorithms", "1"),
    "parallelism": ("Parallelism", "2"),
    "hardware": ("Hardware", "3"),
    "io": ("Input and output", "4"),
    "frameworks": ("Frameworks", "56"),
    "scaling": ("Scaling", "7"),
    "usecases": ("Use cases", "8"),
}
ROOM = 50_000_000  # bytes that a deck and its PDF may need


@dataclass(frozen=True)
class Deck:
    """A deck that was written.

    Args:
        part: its name.
        path: the HTML file.
        slides: its pages (count).
        lessons: the notebooks in it, by name.
        left_out: notebooks that cannot run here, each with the reason.
    """

    part: str
    path: Path
    slides: int
    lessons: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        without = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"{self.path}: {self.slides} slides of {len(self.lessons)} notebooks{without}"


def lessons(part: str, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """List the notebooks of a part.

    Args:
        part: one of PARTS.
        folder: where the notebooks lie; None takes those of the repository.

    Returns:
        list[Path]: in the order of their numbers; the answers are not among them.

    Raises:
        ValueError: when there is no such part.
    """
    digits = PARTS[require_known(part, PARTS, "part")][1]
    all_of_them = notebooks.find(folder)
    return [p for p in all_of_them if p.parent.name != "answers" and p.name[0] in digits]


def stale(
    parts: Iterable[str],
    folder: str | os.PathLike[str] | None = None,
    ran: str | os.PathLike[str] | None = None,
) -> dict[Path, str]:
    """Find the notebooks that must be executed before decks can be made of them.

    Args:
        parts: names of PARTS.
        folder: where the notebooks lie; None takes those of the repository.
        ran: where their runs lie; None takes the repository's `build/notebooks`.

    Returns:
        dict: the notebook and why it must; those that lack a package which is not installed are
        left out, since executing them would do nothing.
    """
    found = {
        path: runs.lack(path, ran)
        for part in parts
        for path in lessons(part, folder)
        if not notebooks.missing(path)
    }
    return {path: why for path, why in found.items() if why}


def write(
    part: str,
    output: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    ran: str | os.PathLike[str] | None = None,
) -> Deck:
    """Write the deck of a part as one HTML file.

    Args:
        part: one of PARTS.
        output: the folder for it, made when it is missing.
        folder: where the notebooks lie; None takes those of the repository.
        ran: where their runs lie; None takes the repository's `build/notebooks`.

    Returns:
        Deck: what was written.

    Raises:
        ValueError: when a notebook has no run that could be shown, or the folder cannot be
            written to.
    """
    paths = lessons(part, folder)
    require(bool(paths), "part", "be one whose notebooks are there", part)
    require_writable(output, "output", ROOM)
    made, left_out = [], []
    for path in paths:
        why = notebooks.missing(path)
        if why:
            left_out.append(f"{path.stem} ({why})")
            continue
        run = runs.read(path, ran)
        slides = lesson.slides(run.notebook, str(run))
        made.append((lesson.heading(run.notebook), slides))
    told = [f"Left out: {each}" for each in left_out]
    target = Path(output) / f"{part}.html"
    unfinished = target.with_suffix(".html.part")
    unfinished.write_text(page.deck(PARTS[part][0], made, told), encoding="utf-8")
    unfinished.replace(target)
    count = 1 + sum(len(slides) for _, slides in made)
    there = tuple(path.stem for path in paths if not notebooks.missing(path))
    return Deck(part, target, count, there, tuple(left_out))
