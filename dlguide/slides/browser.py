"""The browser that prints a deck: Chromium or one of its family, as the system has it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dlguide import commands
from dlguide.checks import MissingComponentError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "`sudo apt-get install chromium`, or print the page to a file in any browser"


def find() -> str:
    """Look for the browser.

    Returns:
        str: the path of its program: the environment variable DLGUIDE_BROWSER, or the first of
        Chromium and Chrome on the PATH; "" where there is none.
    """
    named = os.environ.get("DLGUIDE_BROWSER", "")
    return named or next((path for name in NAMES if (path := shutil.which(name))), "")


def print_pdf(
    page: str | os.PathLike[str], pdf: str | os.PathLike[str], limit_s: float = 180.0
) -> None:
    """Print an HTML file, each page of it on one page of the PDF.

    Args:
        page: the HTML file.
        pdf: the file to write; one that is there is replaced when the new one is whole.
        limit_s: when to give up (s).

    Raises:
        MissingComponentError: when no browser is found.
        RuntimeError: when the browser ends without a PDF; its last words are told.
    """
    program = find()
    if not program:
        raise MissingComponentError(f"No Chromium was found to print {Path(page).name}: {HOW}.")
    target = Path(pdf).resolve()
    with tempfile.TemporaryDirectory(prefix="dlguide-print-", dir=target.parent) as folder:
        printed = Path(folder) / "printed.pdf"
        command = [
            *(program, "--headless=new", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={folder}/profile", "--no-pdf-header-footer"),
            *("--disable-background-networking", "--virtual-time-budget=10000"),
            *(f"--print-to-pdf={printed}", Path(page).resolve().as_uri()),
        ]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium's sandbox refuses to work for root
        done = commands.run(command, limit_s)
        if not printed.is_file():
            end = "was stopped" if done.status is None else f"ended with status {done.status}"
            raise RuntimeError(f"{program} {end} and wrote no PDF:\n{done.tail(5)}")
        printed.replace(target)
