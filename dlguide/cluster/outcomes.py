"""How a task on a rank has ended, and its way through a file, where a bad value harms no other."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How one task ended.

    Args:
        number: which task (index into the items).
        rank: the rank that did it.
        start_s: when it began (s, on the monotonic clock, which all ranks of a machine share).
        end_s: when it ended (s, on that clock).
        value: what the function returned; None when it failed.
        error: the exception in one line; "" when it returned.
        traceback: where it was raised; "" when it returned.
    """

    number: int
    rank: int
    start_s: float
    end_s: float
    value: Any = None
    error: str = ""
    traceback: str = ""

    @property
    def seconds(self) -> float:
        """How long the task took (s)."""
        return self.end_s - self.start_s


def in_one_line(error: BaseException) -> str:
    """Give type and message of an exception, without the notes that were added to it.

    >>> in_one_line(ValueError("first\\nsecond"))
    'ValueError: first second'
    """
    told = traceback.TracebackException.from_exception(error)
    told.__notes__ = None
    return " ".join(list(told.format_exception_only())[-1].split())


def packed(outcome: Outcome) -> bytes:
    """Pickle an outcome, or one that says that its value cannot be sent."""
    import cloudpickle

    try:
        value = cloudpickle.dumps(outcome.value)
    except Exception as error:
        value, outcome = cloudpickle.dumps(None), _unsent(outcome, error)
    # the value apart: where it cannot be read, the rest can
    return cloudpickle.dumps((replace(outcome, value=None), value))


def unpacked(data: bytes) -> Outcome:
    """Read what `packed` has made, or an outcome that says that its value cannot be read."""
    import cloudpickle

    outcome, value = cloudpickle.loads(data)
    try:
        return replace(outcome, value=cloudpickle.loads(value))
    except Exception as error:
        return _unsent(outcome, error)


def _unsent(outcome: Outcome, error: Exception) -> Outcome:
    """Make an outcome whose value cannot travel one that has failed; call while handling it."""
    line = f"what the task returned cannot be sent: {in_one_line(error)}"
    return replace(outcome, value=None, error=line, traceback=traceback.format_exc())
