"""Small files of the kernel, read without a complaint when they are not there."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> str:
    """Read a file, without the white space around.

    Args:
        path: the file.

    Returns:
        str: its text; empty when it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def integer(path: Path) -> int | None:
    """Read a file that holds one whole number."""
    text = read(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def cpu_list(text: str) -> list[int]:
    """Read a list of logical CPUs as the kernel writes it.

    >>> cpu_list("0-3,8")
    [0, 1, 2, 3, 8]
    """
    spans = [part.partition("-") for part in text.split(",") if part]
    return [cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)]
