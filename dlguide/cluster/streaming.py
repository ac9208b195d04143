"""What ranks print, shown at once with the rank in front of each line.

Every rank writes into two named pipes of the run's folder, one for each of its streams. One
thread of the launcher reads them all, so that lines of two ranks are never torn into each other.
What is no whole line yet (a prompt, a progress bar) is shown as it stands after a moment.
"""

from __future__ import annotations

import os
import re
import selectors
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from dlguide.cluster.rank import log_path

NAMES = {1: "stdout", 2: "stderr"}
PATIENCE_S = 0.2  # how long the rest of a line is waited for
LONG = 1 << 16  # bytes; what is longer is shown in pieces
# A lone carriage return goes back over what was printed: on the lines of several ranks a mess,
# so that it ends a line here. One at the very end may yet be the first half of "\r\n".
_END = re.compile(rb"(\r*\n|\r+(?!\Z|[\r\n]))")


class Lines:
    """Whole lines out of the pieces of one stream."""

    def __init__(self, prefix: bytes = b"") -> None:
        self.prefix = prefix
        self.kept = b""
        self.since = 0.0

    def add(self, piece: bytes) -> bytes:
        """Take in a piece and return the lines that are complete by it.

        >>> lines = Lines(b"[1] ")
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
        """Return what is no whole line, as a line, and forget it."""
        rest, self.kept = self.kept.rstrip(b"\r"), b""
        return self.prefix + rest + b"\n" if rest else b""


class Streams:
    """The pipes of a run's ranks and the thread that reads them."""

    def __init__(self, folder: Path, ranks: int, plain: Collection[tuple[int, int]] = ()) -> None:
        self.selector = selectors.DefaultSelector()
        self.open: dict[int, tuple[Lines, int, BinaryIO | None]] = {}
        for rank in range(ranks):
            for number in NAMES:
                path = pipe_path(folder, rank, number)
                os.mkfifo(path, 0o600)
                # Opened for both directions, a pipe has no end while ranks come and go.
                pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
                prefix = b"" if (rank, number) in plain else f"[{rank}] ".encode()
                log = log_path(folder, rank).open("ab", buffering=0) if number == 2 else None
                self.open[pipe] = (Lines(prefix), number, log)
                self.selector.register(pipe, selectors.EVENT_READ)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Show what the ranks have written last, and close the pipes."""
        self.ended.set()
        self.thread.join()
        self.selector.close()
        for pipe, (_, _, log) in self.open.items():
            os.close(pipe)
            if log is not None:
                log.close()

    def _run(self) -> None:
        """Copy until the end; then what is still in the pipes, and no longer than that."""
        while not self.ended.is_set():
            self._copy(PATIENCE_S / 2)
        deadline = time.monotonic() + 5.0  # a process that outlives its rank may write for ever
        while self._copy(0.0) and time.monotonic() < deadline:
            pass
        for lines, number, _ in list(self.open.values()):
            self._show(number, lines.rest())

    def _copy(self, wait_s: float) -> bool:
        """Copy what is there, and say whether there was anything."""
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
        """Write to one of the launcher's own streams; when nobody reads it, stop the ranks."""
        if not text:
            return
        stream = sys.stdout if number == 1 else sys.stderr
        try:
            stream.buffer.write(text)
            stream.flush()
        except BrokenPipeError:
            self._deaf(number)

    def _deaf(self, number: int) -> None:
        """Close pipes that lead nowhere, so that who writes into them is told so."""
        for pipe in [pipe for pipe, (_, each, _) in self.open.items() if each == number]:
            self.selector.unregister(pipe)
            _, _, log = self.open.pop(pipe)
            os.close(pipe)
            if log is not None:
                log.close()


def pipe_path(folder: Path, rank: int, number: int) -> Path:
    """Return the pipe that one stream of a rank goes through."""
    return folder / f"{NAMES[number]}-rank{rank}"


def redirect(folder: Path, rank: int, silent: Collection[int] = ()) -> None:
    """Send this process's standard output and error into its pipes."""
    for number in NAMES:
        place = os.devnull if number in silent else pipe_path(folder, rank, number)
        pipe = os.open(place, os.O_WRONLY)
        os.dup2(pipe, number)
        os.close(pipe)
