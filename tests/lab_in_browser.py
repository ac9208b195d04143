"""JupyterLab as `dlguide lab` starts it, and a headless Chromium that a test drives.

Everything that the lab starts inherits a mark in its environment, by which a test finds what is
left of it, among all other processes of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "DLGUIDE_TEST_OF_THE_LAB"
STARTED_S = 90
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
RUNNING = f"{PANEL} .jp-InputPrompt"
# JupyterLab shows a traceback as it shows warnings, but for its colours.
RED = f'{PANEL} [data-mime-type="application/vnd.jupyter.stderr"]:has(.ansi-red-fg)'
SHOTS = Path(__file__).resolve().parents[1] / "build" / "browser"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""


@dataclass(frozen=True)
class Lab:
    """A running lab: its address, its token, the mark of its processes."""

    address: str
    token: str
    mark: str

    def page_of(self, name: str) -> str:
        """The address of a notebook, in a workspace of its own."""
        return f"{self.address}/lab/workspaces/{uuid.uuid4().hex}/tree/{name}?token={self.token}"

    def processes(self) -> list[psutil.Process]:
        """What was started for the lab and is still alive, the lab's own command left out."""
        return marked(self.mark)


def marked(mark: str) -> list[psutil.Process]:
    """Find the living processes with a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def words(processes: list[psutil.Process]) -> list[str]:
    """The command of each, for a message."""
    said = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            said.append(" ".join(process.cmdline())[:150])
    return said


@contextlib.contextmanager
def lab(notebooks: Path, home: Path) -> Iterator[Lab]:
    """Start `dlguide lab` on a folder of notebooks; afterwards nothing of it is left."""
    mark = uuid.uuid4().hex
    settings = home / "settings" / "@jupyterlab" / "docmanager-extension"
    settings.mkdir(parents=True)
    # A notebook shall be saved when the test says so, not two minutes after it was opened.
    (settings / "plugin.jupyterlab-settings").write_text(json.dumps({"autosave": False}))
    env = os.environ | {
        MARK: mark,
        "HOME": str(home),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
    }
    command = [sys.executable, "-m", "dlguide", "lab", "--no-browser", "--folder", notebooks]
    log = home / "lab.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(word) for word in command],
            env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        address, token = _address(log, server)
        yield Lab(address, token, mark)
    finally:
        for process in marked(mark):
            with contextlib.suppress(psutil.Error):
                if "jupyterlab" in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        for process in marked(mark):
            with contextlib.suppress(psutil.Error):
                process.kill()
        server.wait(10)


def _address(log: Path, server: subprocess.Popen) -> tuple[str, str]:
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline and server.poll() is None:
        match = re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", log.read_text())
        if match:
            return match[1], match[2]
        time.sleep(0.2)
    raise AssertionError(f"the lab did not start:\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def chromium(program: str) -> Iterator:
    """Start the browser; it may ask this machine only, and whatever else it wants is an error."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def open_notebook(page, lab: Lab, name: str, cells: int) -> None:
    """Open a notebook and wait until all its cells and its kernel are there."""
    page.goto(lab.page_of(name))
    page.wait_for_selector(f"{PANEL} .jp-Cell", timeout=90_000)
    page.wait_for_function(
        f"""() => document.querySelectorAll({f"{PANEL} .jp-Cell"!r}).length === {cells}
            && !document.querySelector({f"{PANEL} .jp-Spinner"!r})""",
        timeout=90_000,
    )
    idle(page)


def idle(page, timeout_s: float = 90) -> None:
    """Wait until the status bar says that the kernel has nothing to do."""
    status = page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle$"))
    status.first.wait_for(timeout=1000 * timeout_s)


def menu(page, *entries: str) -> None:
    """Choose an entry of the menu bar."""
    page.locator(f'.lm-MenuBar-itemLabel:text-is("{entries[0]}")').click()
    for entry in entries[1:]:
        item = page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{re.escape(entry)}$"))
        item.first.click()


def prompts(page) -> list[str]:
    """What stands beside each code cell: `[3]:`, `[*]:` or `[ ]:`."""
    return page.locator(RUNNING).all_text_contents()  # those out of sight too


def wait_until_run(page, timeout_s: float) -> None:
    """Wait until every code cell has run, or one has failed."""
    ran = f"""() => {{
        const said = [...document.querySelectorAll({RUNNING!r})].map(each => each.textContent);
        const code = said.filter(text => text.trim());
        return document.querySelector(`{RED}`) || code.every(text => /\\[\\d+\\]/.test(text));
    }}"""
    page.wait_for_function(ran, timeout=1000 * timeout_s, polling=500)
