"""The commands that the course adds to `dlguide`: lab, notebooks, progress."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dlcourse import NOTEBOOKS
from dlguide.errors import require

HIDDEN = ["__pycache__", "*.pyc", "*.pyo", ".DS_Store", "*~"]
HIDDEN += ["dlcourse", "*.egg-info", "pyproject.toml"]


def lab(
    port: Annotated[int | None, typer.Option(help="Port; default: the first free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    folder: Annotated[Path | None, typer.Option(help="A copy of the notebooks.")] = None,
) -> None:
    """Open JupyterLab on the notebooks, on this machine only, with a token."""
    from dlcourse.execution import QUIET

    place = (folder or NOTEBOOKS).resolve()
    require(place.is_dir(), "folder", "be a folder with notebooks", str(place))
    command = [sys.executable, "-m", "jupyterlab", str(place), "--ServerApp.ip=127.0.0.1"]
    command.append(f"--ContentsManager.hide_globs={HIDDEN}")
    if port is not None:
        _require_free(port)
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        command.append("--allow-root")
    with tempfile.TemporaryDirectory(prefix="dlguide-lab-") as config:
        # without the internet there are no news and no updates to ask for
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        settings = Path(config) / "labconfig" / "default_setting_overrides.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": quiet}))
        paths = [config, os.environ.get("JUPYTER_CONFIG_PATH", "")]
        path = {"JUPYTER_CONFIG_PATH": os.pathsep.join(paths).rstrip(os.pathsep)}
        raise typer.Exit(subprocess.run(command, env=QUIET | os.environ | path).returncode)


def _require_free(port: int) -> None:
    """Report a port that is taken before anything starts."""
    require(0 < port < 65536, "port", "be a number from 1 to 65535", port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            text = f"be free to listen on ({error.strerror})"
            require(False, "port", text, port, "Choose another, or leave --port out.")


def notebooks(
    names: Annotated[list[str] | None, typer.Argument(help="Numbers or files; all.")] = None,
    fast: Annotated[bool, typer.Option(help="Every lesson with less work, three at once.")] = False,
) -> None:
    """Execute notebooks from top to bottom, report how long each took, keep them for the slides."""
    from dlcourse import execution

    begun_s = time.monotonic()
    how = {"fast": True, "at_once": 3} if fast else {"output": execution.KEPT}
    well = execution.execute_all(names or [], **how)
    minutes, seconds = divmod(round(time.monotonic() - begun_s), 60)
    print(f"{minutes} min {seconds} s in all{' (--fast: less work)' if fast else ''}")
    if not well:
        raise typer.Exit(1)


def progress(
    folder: Annotated[
        Path | None, typer.Argument(help="Files of several learners, for the instructor.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write your own into a file for the instructor.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="With --export or --report: your name in the table.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML page; with a folder, one per learner.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what you have passed and guessed, by lesson; with a folder, each learner of a course."""
    from dlcourse.exercises import progress, record
    from dlguide.files import require_writable

    both = folder is not None and export is not None
    require(not both, "export", "be without a folder", str(export), "Give one of the two.")
    alone = name is None or export is not None or (report is not None and folder is None)
    require(alone, "name", "come with --export or --report", name)
    if folder is not None:
        course = progress.course(folder)
        if report is not None:
            require_writable(report, "report")
            print(f"Written: {len(progress.write_pages(report, course.records))} pages in {report}")
        _course(course, as_json)
        return
    learner = name or getpass.getuser()
    for file, option, example in ((report, "report", "ada.html"), (export, "export", "ada.json")):
        if file is not None:
            require(not file.is_dir(), option, "be a file", str(file), f"Such as {example}.")
            require_writable(file.resolve().parent, option)
    if report is not None:
        progress.write_page(report, learner, record.load())
        print(f"Written: {report}")
    if export is not None:
        record.export(export, learner)
        print(f"Written as {learner}: {export}")
    if report or export:
        return
    rows = progress.by_lesson(record.load().exercises)
    if as_json:
        print(json.dumps([vars(row) for row in rows], indent=1))
        return
    body = []
    for row in rows:
        passed = " ".join(f"{one}*" if one in row.shown else one for one in row.passed)
        body.append([row.lesson, passed, " ".join(row.tried), " ".join(row.open)])
    print(_table(["lesson", "passed", "tried, not passed", "open"], body))
    done = sum(len(row.passed) for row in rows)
    there = done + sum(len(row.tried) + len(row.open) for row in rows)
    print(f"{done} of {there} exercises passed. Kept in {record.path()}")
    if any(row.shown for row in rows):
        print("* after its solution was shown")
    if text := progress.calibration(record.load().guesses):
        print(text)


def _course(course: Any, as_json: bool) -> None:
    if as_json:
        held = {name: each for name, each in vars(course).items() if name != "records"}
        print(json.dumps(held, indent=1))
    else:
        learners = sorted(course.passed.items())
        begun = [one for one in course.exercises if any(passed[one] for _, passed in learners)]
        body = []
        for who, passed in learners:
            counts = [f"{passed[one]}/{course.exercises[one]}" for one in begun]
            body.append([who, *counts, str(sum(passed.values()))])
        print(_table(["learner", *begun, "all"], body))
        print(f"{len(body)} learners; lessons in which no exercise has been passed are left out.")
        for text in course.damaged:
            print(f"left out: {text}")
    if course.damaged:
        raise typer.Exit(1)


def _table(headings: list[str], body: list[list[str]]) -> str:
    """Texts in columns, two spaces apart."""
    rows = [headings, *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
