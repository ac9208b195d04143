"""The table of a workshop's lessons on this machine: line by line as it goes, then the totals."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from dlguide.doctor import timetables
from dlguide.doctor.workshop import Lesson, estimate_s, pace

# Python, Jupyter and the browser's own tab of a learner between two runs, not in the table.
COLUMNS = f"{'notebook':<28} {'what works':<30} {'measured':>9} {'whole':>8} {'memory':>8}"


def heading() -> str:
    """Return the table's first line."""
    return COLUMNS


def line(lesson: Lesson, seen: Iterable[Lesson]) -> str:
    """Write what is known of a lesson as one line, and a second one for what failed.

    Args:
        lesson: as it was begun.
        seen: all that were begun so far, from which the pace of this machine comes.

    Returns:
        str: name, what works, seconds measured, seconds of the whole lesson, memory.
    """
    name = f"{lesson.name:<28}"
    if lesson.state == "skip":
        return f"{name} skipped: {lesson.error}\n{'':28} mend: {lesson.mend}"
    words = f"{_words(lesson):<30}"
    whole = estimate_s(lesson, pace(seen))
    about = "" if lesson.state == "whole" else "~"
    told = "?" if whole is None else f"{about}{whole:.0f} s"
    memory = f"{lesson.memory_bytes / 1e9:.1f} GB"
    row = f"{name} {words} {lesson.seconds:7.0f} s {told:>8} {memory:>8}"
    if lesson.state == "fail":
        row += f"\n{'':28} {lesson.error}\n{'':28} mend: {lesson.mend}"
    return row


def _words(lesson: Lesson) -> str:
    if lesson.state == "whole":
        return "ok    to its end"
    if lesson.state == "minute":
        return f"ok    so far: cell {lesson.done} of {lesson.cells}"
    at = min(lesson.done + 1, lesson.cells) if lesson.cells else 0
    return f"FAIL  in cell {at} of {lesson.cells}"


def learners(seen: Iterable[Lesson], memory_bytes: int, cores: int) -> tuple[int, int, int]:
    """Count the learners that a node like this one carries at once.

    Args:
        seen: lessons that were begun.
        memory_bytes: memory of the node (bytes).
        cores: cores that may be used (count).

    Returns:
        tuple: by memory, if all run the largest lesson at once; by cores, two for each; and the
        memory of one (bytes).
    """
    worst = max((each.memory_bytes for each in seen), default=0)
    by_memory = memory_bytes // worst if worst else 0
    return by_memory, cores // 2, worst


def totals(seen: list[Lesson], memory_bytes: int, cores: int) -> str:
    """Write what follows from the table: how many work, the pace, learners, timetables.

    Args:
        seen: lessons that were begun.
        memory_bytes: memory of the node (bytes).
        cores: cores that may be used (count).

    Returns:
        str: some lines.
    """
    failed = [each for each in seen if each.state == "fail"]
    skipped = [each for each in seen if each.state == "skip"]
    good = len(seen) - len(failed) - len(skipped)
    lines = [f"{good} of {len(seen)} lessons work, {len(failed)} fail, {len(skipped)} skipped."]
    ratio = pace(seen)
    if ratio is not None:
        lines.append(
            f"This machine takes {ratio:.2f} times the run time that lessons state for 2 cores"
            " (median of those that came to their end); ~ is the stated time times that."
        )
    if any(not each.network_cut for each in seen if each.state != "skip"):
        lines.append("The network could not be cut here: that nothing needs it was not shown.")
    by_memory, by_cores, worst = learners(seen, memory_bytes, cores)
    if worst:
        lines.append(
            f"A learner's processes kept up to {worst / 1e9:.1f} GB and use 2 cores: a node like"
            f" this ({cores} cores, {memory_bytes / 1e9:.0f} GB) carries {by_cores} by its cores,"
            f" {by_memory} by its memory."
        )
    return "\n".join([*lines, *_plans(seen)])


def _plans(seen: list[Lesson]) -> list[str]:
    verdicts = plans(seen)
    return [
        f"{name}: {verdict}" + (f" ({'; '.join(why)})" if why else "")
        for name, (verdict, why) in verdicts.items()
    ]


def plans(seen: list[Lesson]) -> dict[str, tuple[str, list[str]]]:
    """Hold the timetables against what was seen.

    Args:
        seen: lessons that were begun.

    Returns:
        dict: for each timetable "fits", "does not fit" or "unknown", and the reasons.
    """
    ratio = pace(seen)
    run_s: dict[str, float | None] = {}
    for each in seen:
        known = estimate_s(each, ratio) if each.state in ("whole", "minute") else None
        if known is not None or each.state != "minute":
            run_s[each.name[:2]] = known
    return {name: timetables.fit(name, run_s) for name in timetables.PLANS}


def as_json(seen: list[Lesson], memory_bytes: int, cores: int) -> str:
    """Write all of it as JSON.

    Args:
        seen: lessons that were begun.
        memory_bytes: memory of the node (bytes).
        cores: cores that may be used (count).

    Returns:
        str: an object with `lessons`, `pace`, `learners` and `timetables`.
    """
    ratio = pace(seen)
    by_memory, by_cores, worst = learners(seen, memory_bytes, cores)
    contents = {
        "lessons": [asdict(each) | {"estimate_s": estimate_s(each, ratio)} for each in seen],
        "pace": ratio,
        "learners": {"by_memory": by_memory, "by_cores": by_cores, "memory_bytes": worst},
        "timetables": {
            name: {"verdict": verdict, "why": why} for name, (verdict, why) in plans(seen).items()
        },
    }
    return json.dumps(contents, indent=1)
