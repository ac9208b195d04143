"""Every lesson's first minute: what will work on this machine, and how long each will take."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dlguide import commands, notebooks
from dlguide.checks import require, require_positive
from dlguide.cluster import processes, shared_memory
from dlguide.doctor.family import Watch
from dlguide.notebooks.executing import CUT, STRICT

MINUTE_S = 60.0
SETTLE_S = 10.0  # a cluster's watchdog ends ranks whose kernel was killed within this time
STATES = ("whole", "minute", "fail", "skip")
_STATED = re.compile(r"[Rr]un time\*{0,2}\s+(?:is\s+)?(?:about\s+)?(\d+)\s*s\b")
# What an error asks for; the first that fits is told.
MENDS = (
    (r"No module named '(tensorflow|keras|horovod|mpi4py|ipyparallel|dlguide)", "make setup"),
    (r"ModuleNotFoundError", "make setup"),
    (r"kernel died|MemoryError|Cannot allocate|ResourceExhausted", "dlguide doctor  # memory"),
    (r"No space left|Disk quota", "dlguide doctor  # disk, shared memory"),
    (r"must be at most the .* cores?", "give each learner at least 2 cores"),
    (r"DataError|data folder|checksum", "git checkout -- data"),
)
OTHERWISE = "dlguide doctor"


@dataclass(frozen=True)
class Lesson:
    """How a lesson began here.

    Args:
        name: the notebook's, without its ending.
        state: "whole" when all of it ran, "minute" when it was well until it was stopped,
            "fail" or "skip".
        done: cells with code that ended (count).
        cells: cells with code that it has (count).
        seconds: from the start of its process to the end (s).
        stated_s: what its first cell says for two cores (s); None when it says nothing.
        memory_bytes: the most that its processes kept together (bytes).
        network_cut: whether it ran without any network but loopback.
        error: the last line of what failed, or why it was skipped.
        mend: the command for that.
    """

    name: str
    state: str
    done: int = 0
    cells: int = 0
    seconds: float = 0.0
    stated_s: float | None = None
    memory_bytes: int = 0
    network_cut: bool = False
    error: str = ""
    mend: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.state != "fail"


def stated_s(path: str | os.PathLike[str]) -> float | None:
    """Read the run time on two cores that a lesson's first cell states.

    Args:
        path: the notebook.

    Returns:
        float: seconds; None when it states none.
    """
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    found = _STATED.search("".join(cells[0]["source"])) if cells else None
    return float(found[1]) if found else None


def lessons(names: Iterable[str] = (), folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Find the lessons that are meant; answers are none.

    Args:
        names: numbers, names or paths; empty for all.
        folder: where the notebooks lie; None takes those of the repository.

    Returns:
        list[Path]: in the order of their numbers.

    Raises:
        ValueError: when a name means no notebook.
    """
    chosen = notebooks.choose(names, folder)
    return [path for path in chosen if not notebooks.is_answers(path)]


def begin(
    path: str | os.PathLike[str], limit_s: float = MINUTE_S, cutter: Iterable[str] | None = None
) -> Lesson:
    """Run the first minute of a lesson, or all of it, and leave nothing behind.

    It runs in processes of its own, with folders of its own for what is temporary and cached;
    at the limit all of them are killed.

    Args:
        path: the notebook.
        limit_s: when to stop it (s).
        cutter: the words before a command that take its network away; None finds them.

    Returns:
        Lesson: how it went.

    Raises:
        ValueError: when there is no such notebook or the limit is no time.
    """
    path = Path(path).resolve()
    require(path.is_file(), "path", "be a notebook", str(path))
    limit_s = require_positive(limit_s, "limit_s")
    lack = notebooks.missing(path)
    stated = stated_s(path)
    if lack:
        why, _, command = lack.partition(": ")
        return Lesson(path.stem, "skip", stated_s=stated, error=why, mend=command.strip("`"))
    words = tuple(notebooks.network_cutter() if cutter is None else cutter)
    before = {each.pid for each in processes.leftovers()}
    scratch = Path(tempfile.mkdtemp(prefix="dlguide-"))
    journal = scratch / "journal"
    command = [*words, sys.executable, "-m", "dlguide.doctor.journal", path, journal]
    try:
        with Watch() as watch:
            ended = commands.run(command, limit_s, _environment(scratch, words), path.parent)
        done, cells, error = _read(journal)
    finally:
        _tidy(before)
        shutil.rmtree(scratch, ignore_errors=True)
    lesson = Lesson(
        path.stem, "whole", done, cells, ended.seconds, stated, watch.worst_bytes, bool(words)
    )
    if ended.ok:
        return lesson
    if ended.status is None and not error and done:
        return replace(lesson, state="minute")
    if ended.status is None and not error:
        error = f"no cell ended within {limit_s:g} s"
    error = (error or ended.tail(1) or "it ended without a word").strip()
    return replace(lesson, state="fail", error=_last_line(error), mend=mend(error))


def _environment(scratch: Path, cutter: tuple[str, ...]) -> dict[str, str]:
    """What a lesson would keep goes into the scratch folder: a learner begins without it, too."""
    folders = {
        "TMPDIR": scratch / "tmp",
        "DLGUIDE_CACHE": scratch / "cache",
        "IPYTHONDIR": scratch / "ipython",
        "JUPYTER_RUNTIME_DIR": scratch / "runtime",
    }
    for folder in folders.values():
        folder.mkdir()
    settings = {CUT: "1" if cutter else "0", STRICT: "0"}
    texts = {name: str(folder) for name, folder in folders.items()}
    return notebooks.QUIET | commands.without_mpi() | settings | texts


def _read(journal: Path) -> tuple[int, int, str]:
    """Cells that ended, cells there are, and the error, from what the process wrote down."""
    done, cells, error = 0, 0, ""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # it was killed while it wrote this
            continue
        done, cells = entry.get("done", done), entry.get("cells", cells)
        error = entry.get("error", error)
    return done, cells, error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    told = [line for line in lines if line] or [text]
    return told[0] if len(told) == 1 else f"{told[0]} ... {told[-1]}"


def mend(error: str) -> str:
    """Find the command that an error asks for.

    Args:
        error: its text.

    Returns:
        str: a command; where nothing better is known, the doctor's own.
    """
    return next((command for sign, command in MENDS if re.search(sign, error)), OTHERWISE)


def _tidy(before: set[int]) -> None:
    """Wait until the ranks of a kernel that was killed are gone, and end those that are not."""
    deadline = time.monotonic() + SETTLE_S
    while {each.pid for each in processes.leftovers()} - before and time.monotonic() < deadline:
        time.sleep(0.2)
    if {each.pid for each in processes.leftovers()} - before:
        processes.cleanup()
    shared_memory.remove_orphans()


def pace(seen: Iterable[Lesson]) -> float | None:
    """Compute how many times the stated run time this machine needs.

    The median, over lessons that ran to their end, of seconds measured over seconds stated.

    Args:
        seen: lessons that were begun.

    Returns:
        float: the ratio; None while no lesson has come to its end.
    """
    pairs = [(each.seconds, each.stated_s) for each in seen if each.state == "whole"]
    ratios = [seconds / stated for seconds, stated in pairs if stated]
    return statistics.median(ratios) if ratios else None


def estimate_s(lesson: Lesson, ratio: float | None) -> float | None:
    """Estimate how long the whole lesson takes on this machine.

    What was measured, when it came to its end; else the stated run time times the pace, and no
    less than it has taken already.

    Args:
        lesson: as it was begun.
        ratio: what `pace` found.

    Returns:
        float: seconds; None where nothing can be said.
    """
    if lesson.state == "whole":
        return lesson.seconds
    if lesson.stated_s is None or ratio is None:
        return None
    return max(lesson.stated_s * ratio, lesson.seconds)


def begin_all(
    paths: Iterable[Path],
    limit_s: float = MINUTE_S,
    tell: Callable[[Lesson, list[Lesson]], None] = lambda lesson, seen: None,
) -> list[Lesson]:
    """Run the first minute of lessons, one after the other.

    Args:
        paths: the notebooks.
        limit_s: when to stop one (s).
        tell: called after each with it and with all so far.

    Returns:
        list[Lesson]: one for each notebook.
    """
    cutter = notebooks.network_cutter()
    seen: list[Lesson] = []
    for path in paths:
        seen.append(begin(path, limit_s, cutter))
        tell(seen[-1], seen)
    return seen
