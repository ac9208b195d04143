"""Show in the launcher what the ranks print, and how far a training has come."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRESS_S = 0.5
LINE_S = 5.0  # in a file or a pipe, where no line can be drawn over another


class Display:
    """The output of one run: whole lines behind their rank, pictures, one line of progress."""

    def __init__(self, folder: Path, calls: Mapping[int, Any]) -> None:
        self.folder = folder
        self.calls = calls
        self.printed = dict.fromkeys(calls, 0)
        self.pictures = dict.fromkeys(calls, 0)
        self.started = time.time()
        self.progress_s = 0.0
        self.line_s = time.monotonic()
        self.width = 0

    def show(self) -> None:
        """Print what is new."""
        for rank, call in self.calls.items():
            self._lines(rank, call, final=False)
        if time.monotonic() - self.progress_s >= PROGRESS_S:
            self.progress_s = time.monotonic()
            self._progress()

    def close(self) -> None:
        """Print what is left, and end the line of progress."""
        for rank, call in self.calls.items():
            if call.ready():
                call.wait_for_output(1.0)  # what a finished rank printed may still be on its way
            self._lines(rank, call, final=True)
        self._progress()
        if self.width:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _lines(self, rank: int, call: Any, final: bool) -> None:
        record = call.metadata if isinstance(call.metadata, Mapping) else call.metadata[0]
        text = record.get("stdout", "") + record.get("stderr", "")
        new = text[self.printed[rank] :]
        end = len(new) if final else new.rfind("\n") + 1
        self.printed[rank] += end
        for line in new[:end].splitlines():
            self._clear()
            print(f"[{rank}] {line}")
        outputs = record.get("outputs", [])
        for output in outputs[self.pictures[rank] :]:
            self._clear()
            _show_rich(output)
        self.pictures[rank] = len(outputs)
        if final and record.get("execute_result"):
            _show_rich(record["execute_result"], f"[{rank}] ")

    def _progress(self) -> None:
        """Draw rank 0's progress over the line before; in a file a line every few seconds."""
        path = self.folder / "progress-rank0.json"
        try:
            if path.stat().st_mtime < self.started:
                return
            numbers = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return
        text = progress_text(numbers)
        if sys.stdout.isatty() or hasattr(sys.stdout, "topic"):  # a terminal or a notebook
            sys.stdout.write("\r" + text.ljust(self.width))
            sys.stdout.flush()
            self.width = len(text)
        elif time.monotonic() - self.line_s >= LINE_S:
            self.line_s = time.monotonic()
            print(text, flush=True)

    def _clear(self) -> None:
        if self.width:
            sys.stdout.write("\r" + " " * self.width + "\r")
            self.width = 0


def progress_text(numbers: Mapping[str, Any]) -> str:
    """Write one line of progress.

    >>> progress_text({"epoch": 1, "epochs": 2, "step": 5, "steps": 10, "images_per_s": 1234.5})
    'epoch 1 of 2 [##########..........] step 5 of 10, 1234 images/s'
    """
    parts = []
    if "epoch" in numbers and "epochs" in numbers:
        parts.append(f"epoch {numbers['epoch']} of {numbers['epochs']}")
    if numbers.get("steps"):
        done = round(20 * numbers["step"] / numbers["steps"])
        parts.append(f"[{'#' * done}{'.' * (20 - done)}]")
        parts.append(f"step {numbers['step']} of {numbers['steps']},")
    if "images_per_s" in numbers:
        parts.append(f"{numbers['images_per_s']:.0f} images/s")
    if "loss" in numbers:
        parts.append(f"loss {numbers['loss']:.3f}")
    return " ".join(parts)


def _show_rich(output: Mapping[str, Any], before: str = "") -> None:
    """Show a picture or a value that a cell on a rank displayed."""
    data = output.get("data", {})
    shell = sys.modules.get("IPython")
    if shell is not None and shell.get_ipython() is not None and set(data) - {"text/plain"}:
        from IPython.display import publish_display_data

        publish_display_data(data, output.get("metadata", {}))
    elif "text/plain" in data:
        print(f"{before}{data['text/plain']}")
