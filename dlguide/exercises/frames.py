"""Which frames of a running check are the learner's own code, and where in it one stands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType

# What is in one of these places is a library, not the answer.
_LIBRARIES = (sys.base_prefix, str(Path(__file__).resolve().parents[1]), "<frozen", "<string>")


class Stopped(KeyboardInterrupt):
    """An answer was stopped in the middle; the text says why.

    As a kind of Ctrl-C it is not caught by an `except Exception` of the answer, and a cluster
    passes it on to its ranks.
    """


def within(frame: FrameType | None, entrance: CodeType | None) -> list[FrameType]:
    """List the frames that were entered through a function, that function's own one excluded.

    Args:
        frame: the innermost frame of a thread.
        entrance: the code of that function; None for all frames.

    Returns:
        list: from the innermost one outwards; empty outside of the function.
    """
    found = []
    while frame is not None:
        if frame.f_code is entrance:
            return found
        found.append(frame)
        frame = frame.f_back
    return found if entrance is None else []


def learners(frames: Iterable[FrameType]) -> list[FrameType]:
    """Keep the frames that are in no library.

    Args:
        frames: of a thread.

    Returns:
        list: those of the learner's files and cells, in the same order.
    """
    return [frame for frame in frames if is_learners(frame.f_code)]


def is_learners(code: CodeType) -> bool:
    """Tell whether code stands in a file or cell of the learner.

    Args:
        code: of a function.

    Returns:
        bool: False for what is in a library.
    """
    name = code.co_filename
    return "site-packages" not in name and not name.startswith(_LIBRARIES)


def place(frames: Sequence[FrameType]) -> str:
    """Say where the learner's code stands.

    Args:
        frames: of a thread, the innermost first.

    Returns:
        str: such as "line 3 of `mean`"; empty when none of them is the learner's.
    """
    own = learners(frames)
    if not own:
        return ""
    code = own[0].f_code
    name = "a lambda" if code.co_name == "<lambda>" else f"`{code.co_name}`"
    return f"line {own[0].f_lineno - code.co_firstlineno + 1} of {name}"


def importing(frames: Iterable[FrameType]) -> bool:
    """Tell whether a module is being imported.

    Args:
        frames: of a thread.

    Returns:
        bool: such a moment is a bad one to stop: half a module would stay loaded.
    """
    return any(frame.f_code.co_filename.startswith("<frozen importlib") for frame in frames)
