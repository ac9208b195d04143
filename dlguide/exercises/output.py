"""What an answer prints: passed on, up to a length that a notebook can show."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 100_000
_OWN = str(Path(__file__).resolve().parents[1])


class Limited:
    """A text stream that passes on what is written, until it is too much.

    Args:
        stream: where to; what it has besides `write` is reached through this object.
        most: how much is passed on (characters).
        excess: called with each further text, which is dropped; not when `dlguide` wrote it.
    """

    def __init__(self, stream: Any, most: int, excess: Callable[[], None]) -> None:
        self.stream, self.left, self.excess = stream, most, excess

    def write(self, text: str) -> int:
        """Pass a text on, or its beginning.

        Args:
            text: what to write.

        Returns:
            int: its length.
        """
        if self.left > 0:
            self.stream.write(text[: self.left])
        self.left -= len(text)
        # a cluster that shows what its ranks say must be able to go on to its end
        if self.left < 0 and not sys._getframe(1).f_code.co_filename.startswith(_OWN):
            self.excess()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Pass several texts on.

        Args:
            lines: what to write.
        """
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Pump(threading.Thread):
    """A thread that copies from a pipe to where a file descriptor led, up to a limit."""

    def __init__(self, number: int, most: int, excess: Callable[[], None]) -> None:
        super().__init__(name="dlguide-exercise-output", daemon=True)
        self.number, self.left, self.excess = number, most, excess
        self.real = os.dup(number)
        self.source, sink = os.pipe()
        self.waked, self.wake = os.pipe()
        os.dup2(sink, number)
        os.close(sink)
        self.start()

    def run(self) -> None:
        """Copy until the end is told, then what is still in the pipe and no longer than that."""
        told, after = False, 1 << 20  # a process left behind may write for ever
        while not told or after > 0:
            ready, _, _ = select.select([self.source, self.waked], [], [], 0 if told else None)
            if self.source in ready and (piece := os.read(self.source, 1 << 16)):
                if self.left > 0:
                    os.write(self.real, piece[: self.left])
                self.left -= len(piece)
                after -= len(piece) if told else 0
                if self.left < 0:
                    self.excess()
            elif told:
                break
            told = told or self.waked in ready

    def close(self) -> None:
        """Lead the descriptor to its old place again, and end when all before is copied."""
        os.dup2(self.real, self.number)
        os.close(self.wake)
        self.join()
        for each in (self.source, self.waked, self.real):
            os.close(each)


@contextmanager
def limited(excess: Callable[[], None], most: int = MOST_CHARACTERS) -> Iterator[Any]:
    """Limit what is written to the standard output and error of this process.

    Both the streams of Python and the descriptors 1 and 2, which C code and started processes use.

    Args:
        excess: called with each text over the limit, in the thread that writes it; for a
            descriptor in a thread of its own.
        most: how much is passed on of each (characters).

    Yields:
        stream: the real standard output.
    """
    out, err = sys.stdout, sys.stderr
    for stream in (out, err):
        stream.flush()
    # 2 and 1 carry what the streams pass on as well, where these are not a notebook's
    pumps = [_Pump(number, 2 * most, excess) for number in (1, 2)]
    try:
        sys.stdout, sys.stderr = (Limited(stream, most, excess) for stream in (out, err))
        yield out
    finally:
        sys.stdout, sys.stderr = out, err
        for stream in (out, err):
            stream.flush()
        for pump in pumps:
            pump.close()
