"""What ranks print, shown with the rank before each line, and the progress of a training.

`RankOutput` shows the output of a call on a `Cluster`, which arrives with ipyparallel's messages.
`RankPipes` shows that of a script: every rank writes into two named pipes of the run's folder,
and one thread of the launcher reads them all, so lines of two ranks are never mixed. Incomplete
lines (a prompt, a progress bar) are shown after a moment.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dlguide.cluster.rank import log_path

PROGRESS_S = 0.5
LINE_S = 5.0  # in a file or a pipe, where no line can be overwritten
NAMES = {1: "stdout", 2: "stderr"}
PATIENCE_S = 0.2  # how long to wait for the rest of a line
LONG = 1 << 16  # bytes; longer lines are shown in pieces
# A lone carriage return overwrites what was printed: with the lines of several ranks that is
# unreadable, so it ends a line here. One at the very end may be the first half of "\r\n".
_END = re.compile(rb"(\r*\n|\r+(?!\Z|[\r\n]))")


class RankOutput:
    """The output of one call: whole lines after their rank, pictures, one line of progress."""

    def __init__(self, folder: Path, calls: Mapping[int, Any]) -> None:
        self.folder = folder
        self.calls = calls
        self.printed = dict.fromkeys(calls, 0)
        self.pictures = dict.fromkeys(calls, 0)
        self.started = time.time()
        self.progress_s = 0.0
        self.line_s = time.monotonic()
        self.width = 0
        self.text = ""

    def show(self) -> None:
        """Print what is new."""
        for rank, call in self.calls.items():
            self._lines(rank, call, final=False)
        if time.monotonic() - self.progress_s >= PROGRESS_S:
            self.progress_s = time.monotonic()
            self._progress()

    def close(self) -> None:
        """Print the rest, and end the line of progress."""
        for rank, call in self.calls.items():
            if call.ready():
                call.wait_for_output(1.0)  # the last output may still be on its way
            self._lines(rank, call, final=True)
        self._progress(final=True)
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

    def _progress(self, final: bool = False) -> None:
        """Overwrite the line of rank 0's progress; in a file print one every few seconds."""
        path = self.folder / "progress-rank0.json"
        try:
            if path.stat().st_mtime < self.started:
                return
            state = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return
        text = progress_text(state)
        if sys.stdout.isatty() or hasattr(sys.stdout, "topic"):  # a terminal or a notebook
            sys.stdout.write("\r" + text.ljust(self.width))
            sys.stdout.flush()
            self.width = len(text)
        elif text != self.text and (final or time.monotonic() - self.line_s >= LINE_S):
            self.line_s = time.monotonic()
            self.text = text
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


def _show_rich(output: Mapping[str, Any]) -> None:
    """Show a picture or a value that a function on a rank displayed."""
    data = output.get("data", {})
    shell = sys.modules.get("IPython")
    if shell is not None and shell.get_ipython() is not None and set(data) - {"text/plain"}:
        from IPython.display import publish_display_data

        publish_display_data(data, output.get("metadata", {}))
    elif "text/plain" in data:
        print(data["text/plain"])


class LineBuffer:
    """Assembles the pieces of one stream to whole lines."""

    def __init__(self, prefix: bytes = b"") -> None:
        self.prefix = prefix
        self.kept = b""
        self.since = 0.0

    def add(self, piece: bytes) -> bytes:
        """Add a piece and return the lines that it completes.

        >>> lines = LineBuffer(b"[1] ")
        >>> lines.add(b"epo"), lines.add(b"ch 1\\r\\nepoch")
        (b'', b'[1] epoch 1\\n')
        >>> lines.rest()
        b'[1] epoch\\n'
        """
        if not self.prefix:
            return piece
        self.since = time.monotonic()
        *pairs, self.kept = _END.split(self.kept + piece)
        shown = [
            self.prefix + line + b"\n"
            for line, end in zip(pairs[::2], pairs[1::2], strict=True)
            if line or end.endswith(b"\n")  # a bar often begins by going back
        ]
        if len(self.kept) > LONG:
            shown.append(self.rest())
        return b"".join(shown)

    def rest(self) -> bytes:
        """Return the incomplete line, ended, and clear it."""
        rest, self.kept = self.kept.rstrip(b"\r"), b""
        return self.prefix + rest + b"\n" if rest else b""


class RankPipes:
    """The pipes of a run's ranks and the thread that reads them."""

    def __init__(self, folder: Path, ranks: int, plain: Collection[tuple[int, int]] = ()) -> None:
        self.selector = selectors.DefaultSelector()
        self.open: dict[int, tuple[LineBuffer, int, BinaryIO | None]] = {}
        for rank in range(ranks):
            for number in NAMES:
                path = pipe_path(folder, rank, number)
                os.mkfifo(path, 0o600)
                # Opened for both directions, a pipe has no end while ranks come and go.
                pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
                prefix = b"" if (rank, number) in plain else f"[{rank}] ".encode()
                log = log_path(folder, rank).open("ab", buffering=0) if number == 2 else None
                self.open[pipe] = (LineBuffer(prefix), number, log)
                self.selector.register(pipe, selectors.EVENT_READ)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Show the rest of the output, and close the pipes."""
        self.ended.set()
        self.thread.join()
        for pipe in list(self.open):
            self._close(pipe)
        self.selector.close()

    def _close(self, pipe: int) -> None:
        """Close a pipe; a rank that writes into it gets BrokenPipeError."""
        self.selector.unregister(pipe)
        _, _, log = self.open.pop(pipe)
        os.close(pipe)
        if log is not None:
            log.close()

    def _run(self) -> None:
        """Copy until `close` is called, then what the pipes still hold."""
        while not self.ended.is_set():
            self._copy(PATIENCE_S / 2)
        deadline = time.monotonic() + 5.0  # a process that outlives its rank may go on writing
        while self._copy(0.0) and time.monotonic() < deadline:
            pass
        for lines, number, _ in list(self.open.values()):
            self._show(number, lines.rest())

    def _copy(self, wait_s: float) -> bool:
        """Copy what the pipes hold, and return whether there was anything."""
        ready = self.selector.select(wait_s)
        for key, _ in ready:
            if key.fd not in self.open:
                continue
            lines, number, log = self.open[key.fd]
            piece = os.read(key.fd, LONG)
            if log is not None:
                log.write(piece)
            self._show(number, lines.add(piece))
        now_s = time.monotonic()
        for lines, number, _ in list(self.open.values()):
            if lines.kept and now_s - lines.since > PATIENCE_S:
                self._show(number, lines.rest())
        return bool(ready)

    def _show(self, number: int, text: bytes) -> None:
        """Write to one of the launcher's streams; if its reader has gone, stop the ranks."""
        if not text:
            return
        stream = sys.stdout if number == 1 else sys.stderr
        try:
            stream.buffer.write(text)
            stream.flush()
        except BrokenPipeError:
            for pipe in [pipe for pipe, (_, each, _) in self.open.items() if each == number]:
                self._close(pipe)


def pipe_path(folder: Path, rank: int, number: int) -> Path:
    """Return the pipe of one stream of a rank."""
    return folder / f"{NAMES[number]}-rank{rank}"


def redirect(folder: Path, rank: int, silent: Collection[int] = ()) -> None:
    """Send this process's standard output and error into its pipes."""
    for number in NAMES:
        place = os.devnull if number in silent else pipe_path(folder, rank, number)
        pipe = os.open(place, os.O_WRONLY)
        os.dup2(pipe, number)
        os.close(pipe)
