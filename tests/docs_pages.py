"""Pages under docs/ as tests read them: files, commands, and what the commands print.

A page's example stands in fenced blocks, executed in their order in one empty folder:

- with a name behind the language (`python train.py`, `toml site.toml`) the block is that file,
- `sh` is commands, one a line,
- `text` is what the commands before it have printed: `...` in a line stands for anything in it,
  a line of `...` alone for any lines.

A Python block without a name is a piece of somebody's program: it is compiled, and what it
imports from `dlguide` must exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LIMIT_S = float(os.environ.get("DLGUIDE_TEST_LIMIT_S", 240))
_BLOCK = re.compile(r"^```(\w+)(?: +(\S+))?\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is (or ""), its text and its line in the page."""

    language: str
    file: str
    text: str
    line: int


def pages() -> list[Path]:
    """All pages for researchers."""
    return sorted((DOCS / "research").glob("*.md"))


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(found[1], found[2] or "", found[3], text[: found.start()].count("\n") + 1)
        for found in _BLOCK.finditer(text)
    ]


def run(page: Path, folder: Path) -> Iterator[tuple[Block, str, str]]:
    """Write and run a page's blocks; give each `text` block with what was printed before it."""
    printed, errors = "", ""
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "sh":
            printed, errors = _execute(block, folder)
        elif block.language == "text":
            yield block, printed, errors


def _execute(block: Block, folder: Path) -> tuple[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    scripts = sysconfig.get_path("scripts")
    env |= {"PATH": f"{scripts}{os.pathsep}{env['PATH']}", "COLUMNS": "100"}
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"
    done = subprocess.run(
        ["bash", "-e", "-c", block.text],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    message = f"line {block.line}, status {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, message
    return done.stdout, done.stderr


def differs(promised: str, printed: str) -> str:
    """Return "" when a page's output fits, otherwise the first promised line that is missing."""
    wanted = [line.rstrip() for line in promised.strip("\n").split("\n")]
    came = [line.rstrip() for line in printed.strip("\n").split("\n")]
    return _compare(wanted, came)


def _compare(wanted: list[str], came: list[str]) -> str:
    for index, line in enumerate(wanted):
        if line.strip() == "...":
            rest = wanted[index + 1 :]
            if not rest:
                return ""
            starts = range(index, len(came))
            worst = [_compare(rest, came[start:]) for start in starts]
            return "" if "" in worst else f"{rest[0]!r} is nowhere behind `...`"
        if index >= len(came) or not _fits(line, came[index]):
            return f"{line!r}, but {came[index] if index < len(came) else 'nothing'!r} came"
    return f"nothing more, but {came[len(wanted)]!r} came" if len(came) > len(wanted) else ""


def _fits(wanted: str, came: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, came) is not None
