"""`dlguide doctor`: what works on this machine, and with --workshop every lesson's first minute."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from dlguide.checks import require
from dlguide.cli.app import app


@app.command()
def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(help="With --workshop: numbers or files; all.")
    ] = None,
    workshop: Annotated[
        bool, typer.Option("--workshop", help="Run every lesson's first minute, too.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="With --workshop: of each lesson.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all that the course needs on this machine; each fault with the command to mend it."""
    if workshop:
        _workshop(names or [], seconds, as_json)
        return
    require(not names, "names", "come with --workshop", names)
    from dlguide import doctor

    findings = doctor.examine()
    print(doctor.report(findings, as_json=as_json))
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _workshop(names: list[str], limit_s: float, as_json: bool) -> None:
    from dlguide import machine
    from dlguide.doctor import workshop, workshop_report

    # A batch system or a closed terminal ends us as Ctrl-C does: with all that was started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    paths = workshop.lessons(names)
    here = machine.describe()
    room = here.memory_bytes, here.usable_cores
    if as_json:
        seen = workshop.begin_all(paths, limit_s)
        print(workshop_report.as_json(seen, *room))
    else:
        least = len(paths) * limit_s / 60
        print(f"{len(paths)} lessons, {limit_s:g} s of each: {least:.0f} min at most.", flush=True)
        print(workshop_report.heading(), flush=True)
        seen = workshop.begin_all(paths, limit_s, _tell)
        print(workshop_report.totals(seen, *room))
    if not all(lesson.ok for lesson in seen):
        raise typer.Exit(1)


def _tell(lesson: object, seen: list) -> None:
    from dlguide.doctor import workshop_report

    print(workshop_report.line(lesson, seen), flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
