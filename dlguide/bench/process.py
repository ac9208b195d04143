"""A process that computes on request, seen from the one that asks."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from time import monotonic
from typing import Any


class Process:
    """One `bench.work` process: ask it, wait for its answer, end it.

    Several can be asked before the first answer is taken: then they compute at the same time.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Start the process; TensorFlow starts in it with the first request."""
        self._said = tempfile.TemporaryFile("w+b")  # noqa: SIM115  closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dlguide.bench.work"],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._read = b""

    def ask(self, do: str, **arguments: Any) -> None:
        """Send a request and go on."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(self._ended()) from error

    def answer(self, timeout_s: float) -> Any:
        """Wait for the answer to the oldest request."""
        limit = monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, limit - monotonic())):
                    raise RuntimeError(f"A benchmark's process did not answer in {timeout_s:g} s.")
                came = os.read(self._process.stdout.fileno(), 65536)
                if not came:
                    raise RuntimeError(self._ended())
                self._read += came
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"A benchmark's process failed: {answer['error']}")
        return answer["answer"]

    def close(self) -> None:
        """End the process, whatever it does."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ended(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        return "\n".join([f"A benchmark's process ended with {status}.", *lines[-10:]])
