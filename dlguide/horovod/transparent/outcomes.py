"""What became of a thing that rank 0 alone does: its result or its error, for all ranks."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from pathlib import Path
from typing import Any

LOOK_S = 0.005


class Outcome:
    """How a call has ended.

    Args:
        result: what it returned.
        error: what it raised; None when it returned.
    """

    def __init__(self, result: Any = None, error: Exception | None = None) -> None:
        self.result, self.error = result, error

    def give(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class Outcomes:
    """The outcomes of rank 0, kept as files in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counted = itertools.count()

    def count(self) -> int:
        """Return how often this was called before, for names that all ranks make alike."""
        return next(self._counted)

    def tell(self, key: str, outcome: Outcome) -> None:
        """Write down an outcome; rank 0 calls this."""
        error = outcome.error
        if error is not None and not _travels(error):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        result = outcome.result if _travels(outcome.result) else None
        draft = self.folder / f".outcome-{key}"
        draft.write_bytes(pickle.dumps((result, error)))
        os.rename(draft, self._path(key))

    def find(self, key: str, patience_s: float = 0.0) -> Outcome | None:
        """Return an outcome that rank 0 has told."""
        path, deadline = self._path(key), time.monotonic() + patience_s
        while not path.exists():
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK_S)
        return Outcome(*pickle.loads(path.read_bytes()))

    def _path(self, key: str) -> Path:
        return self.folder / f"outcome-{key}"


def _travels(value: Any) -> bool:
    """Say whether a value can be sent to another process and is the same there."""
    try:
        again = pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return type(again) is type(value) and str(again) == str(value)
