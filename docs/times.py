"""Keep the tables of docs/instructor.md: minutes of each lesson, timetables with the clock.

    python docs/times.py            writes the tables anew from docs/run_times.csv
    python docs/times.py --take     first takes run times from the last runs, build/notebooks

`dlguide notebooks` leaves those runs; on a quiet machine, for they are measurements. A lesson
that has no run of its present text keeps none: its row says so.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from dlguide import notebooks
from dlguide.doctor import timetables, workshop
from dlguide.slides import decks, runs

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "instructor.md"
TIMES = FOLDER / "run_times.csv"
COLUMNS = ("notebook", "seconds", "when", "machine")
BEGINS = {"half a day": "09:00", "one day": "09:00", "two days": "09:00"}
_BLOCK = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.S)


class Time(NamedTuple):
    """A measured run: seconds, the day, the machine."""

    seconds: float
    when: str
    machine: str


def lessons() -> list[Path]:
    """List the lessons; answers are none."""
    return [path for path in notebooks.find() if not notebooks.is_answers(path)]


def take(folder: Path | None = None) -> dict[str, Time]:
    """Read run times from the notebooks' last runs: from the first cell's begin to the last's end.

    Args:
        folder: of the runs; None takes build/notebooks.

    Returns:
        dict: by the name of the notebook; those without a run of their present text are left out.
    """
    found = {}
    for path in lessons():
        if runs.lack(path, folder):
            continue
        run = runs.read(path, folder)
        stamps = [
            datetime.fromisoformat(text.replace("Z", "+00:00"))
            for cell in run.notebook["cells"]
            for text in cell["metadata"].get("execution", {}).values()
        ]
        seconds = (max(stamps) - min(stamps)).total_seconds()
        found[path.stem] = Time(round(seconds, 1), run.when.split(",")[0], run.machine)
    return found


def load(file: Path = TIMES) -> dict[str, Time]:
    """Read the run times that were taken.

    Args:
        file: the table.

    Returns:
        dict: by the name of the notebook; rows without a time are left out.
    """
    with file.open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    return {
        row["notebook"]: Time(float(row["seconds"]), row["when"], row["machine"])
        for row in rows
        if row["seconds"]
    }


def save(times: dict[str, Time], file: Path = TIMES) -> None:
    """Write a row for every lesson, an empty one where there is no run.

    Args:
        times: by the name of the notebook.
        file: the table.
    """
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for path in lessons():
            writer.writerow([path.stem, *times.get(path.stem, ("", "", ""))])


def run_s(path: Path, times: dict[str, Time]) -> float:
    """Return the measured run time, or the stated one where there is none (s)."""
    taken = times.get(path.stem)
    return taken.seconds if taken else workshop.stated_s(path) or 0.0


def lessons_table(times: dict[str, Time]) -> str:
    """Write the table of all lessons.

    Args:
        times: by the name of the notebook.

    Returns:
        str: Markdown.
    """
    lines = [
        "| | notebook | stated, s | measured, s | in class, min | slides |",
        "|---|---|---:|---:|---:|---|",
    ]
    for path in lessons():
        title = _title(path)
        taken = times.get(path.stem)
        measured = f"{taken.seconds:.0f}" if taken else "not yet"
        part = next((name for name in decks.PARTS if path in decks.lessons(name)), "")
        minutes = timetables.minutes(path, run_s(path, times))
        stated = f"{workshop.stated_s(path):.0f}"
        link = f"[{title}](../notebooks/{path.name})"
        row = (path.stem[:2], link, stated, measured, str(minutes), part)
        lines.append(f"| {' | '.join(row)} |")
    where = sorted({f"{time.machine}, {time.when}" for time in times.values()})
    if where:
        lines += ["", f"Measured on {'; '.join(where)}, one notebook at a time."]
    return "\n".join(lines)


def _title(path: Path) -> str:
    cell = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    return "".join(cell["source"]).splitlines()[0].removeprefix("# ")[3:]


def plan_table(plan: str, times: dict[str, Time]) -> str:
    """Write a timetable with the clock.

    Args:
        plan: one of the timetables' names.
        times: by the name of the notebook.

    Returns:
        str: Markdown.
    """
    lines = ["| from | to | | notebooks | slides | planned for |", "|---|---|---|---|---|---|"]
    day_begins = timetables.DAY_BEGINS.get(plan, (0,))
    clock = datetime.strptime(BEGINS[plan], "%H:%M")
    for number, session in enumerate(timetables.PLANS[plan]):
        if number in day_begins:
            clock = datetime.strptime(BEGINS[plan], "%H:%M")
            if len(day_begins) > 1:
                lines.append(f"| | | **day {day_begins.index(number) + 1}** | | | |")
        end = clock + timedelta(minutes=session.minutes)
        paths = [timetables.lesson(each) for each in session.lessons]
        needed = timetables.needed(session, {path.stem[:2]: run_s(path, times) for path in paths})
        names = ", ".join(f"{path.stem[:2]} {_title(path)}" for path in paths)
        spare = f"{needed} min and {session.minutes - needed} spare"
        cells = (f"{clock:%H:%M}", f"{end:%H:%M}", session.title, names, session.deck, spare)
        lines.append(f"| {' | '.join(cells)} |")
        clock = end + timedelta(minutes=session.then)
        if session.then:
            what = "lunch" if session.then >= 45 else "break"
            lines.append(f"| {end:%H:%M} | {clock:%H:%M} | *{what}* | | | |")
    return "\n".join(lines)


def render(text: str, times: dict[str, Time]) -> str:
    """Put the tables into the page.

    Args:
        text: of the page.
        times: by the name of the notebook.

    Returns:
        str: the page with its tables written anew.
    """

    def table(found: re.Match) -> str:
        name = found[2]
        if name == "rule":
            body = f"*In class*: {timetables.RULE}."
        else:
            body = lessons_table(times) if name == "lessons" else plan_table(name, times)
        return f"{found[1]}{body}\n{found[3]}"

    return _BLOCK.sub(table, text)


def main(arguments: list[str]) -> int:
    """Write the tables anew.

    Args:
        arguments: `--take` reads the last runs first.

    Returns:
        int: the exit status.
    """
    if arguments == ["--take"]:
        save(take())
    elif arguments:
        print(__doc__, file=sys.stderr)
        return 2
    times = load()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), times), encoding="utf-8")
    lack = [path.stem for path in lessons() if path.stem not in times]
    print(f"{len(times)} measured; not yet: {', '.join(lack) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
