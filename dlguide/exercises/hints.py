"""Stronger hints: how an answer differs from the right one, without giving that one away."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Sequence
from types import FunctionType
from typing import Any

LONGEST = 100  # characters of one value in a hint


class Calls:
    """The last call that a check made of a learner's function."""

    def __init__(self) -> None:
        self.last = ""

    def watched(self, answer: Any) -> Any:
        """Wrap a function so that its last call is kept; anything else is given back as it is.

        Args:
            answer: the learner's.

        Returns:
            Any: a function that does the same, or the answer.
        """
        if type(answer) is not FunctionType:
            return answer

        @functools.wraps(answer)
        def watched(*args: Any, **kwargs: Any) -> Any:
            call = _call(answer.__name__, args, kwargs)
            self.last = f"{call} did not return."
            came = answer(*args, **kwargs)
            self.last = f"{call} gave {brief(came)}."
            return came

        return watched


def brief(value: Any) -> str:
    """Write a value in a few words: a large array by its shape.

    Args:
        value: anything.

    Returns:
        str: at most about LONGEST characters.
    """
    import numpy as np

    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, np.ndarray) and value.size > 6:
        return f"<array of shape {value.shape}>"
    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = 60
    try:
        text = shorten.repr(value.tolist() if isinstance(value, np.ndarray) else value)
    except Exception:  # what cannot show itself is named by its kind
        return f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _call(name: str, args: tuple, kwargs: dict[str, Any]) -> str:
    """Write a call in a few words."""
    words = [brief(each) for each in args]
    words += [f"{name}={brief(each)}" for name, each in kwargs.items()]
    return f"{'your function' if name == '<lambda>' else name}({', '.join(words)})"


# A function that TensorFlow traces is translated with all that it calls, but for what bears this.
brief.autograph_info__ = _call.autograph_info__ = {}


def difference(came: Any, right: Any, relative: float) -> str:
    """Say how numbers differ from the right ones, not by how much.

    Args:
        came: an array of floats.
        right: one of the same shape.
        relative: the distance that is allowed, relative to the largest right value.

    Returns:
        str: a sentence.
    """
    import numpy as np

    if not np.all(np.isfinite(came)):
        return f"{int(np.sum(~np.isfinite(came)))} of your numbers are not finite."
    allowed = relative * (np.abs(right).max(initial=0.0) or 1.0)
    off = np.abs(came - right) > allowed
    if not off.any():
        return ""  # the right one is infinite, or not far
    if came.ndim == 0:
        return f"Yours is too {'large' if came > right else 'small'}{_times(came, right)}."
    first = tuple(int(each) for each in np.argwhere(off)[0])
    where = first[0] if len(first) == 1 else first
    size = "large" if came[first] > right[first] else "small"
    text = (
        f"{int(off.sum())} of {off.size} numbers differ; the first at index {where} is too {size}"
    )
    nonzero = np.abs(right) > allowed
    ratios = came[nonzero] / right[nonzero]
    if off.sum() > 1 and ratios.size > 1 and np.allclose(ratios, ratios[0], rtol=1e-6):
        return f"{text}. All are off by the same factor."
    if came.size > 1 and np.allclose(np.sort(came, None), np.sort(right, None), atol=allowed):
        return f"{text}. They are the right numbers in another order."
    return f"{text}."


def _times(came: Any, right: Any) -> str:
    """Say roughly how far apart two numbers are."""
    low, high = sorted(abs(float(each)) for each in (came, right))
    if came * right <= 0:
        return "" if came * right == 0 else ", and of the other sign"
    ratio = high / low
    words = ((1.1, "by less than 10 %"), (2.5, "by less than 2.5 times"), (20, "by a few times"))
    return ", " + next((text for most, text in words if ratio < most), "by orders of magnitude")


def letters(came: Sequence[Any], right: Sequence[Any]) -> str:
    """Count how much of an assignment is right.

    Args:
        came: what was assigned, in some order.
        right: what is right, in the same order.

    Returns:
        str: a sentence.
    """
    good = sum(one == other for one, other in zip(came, right, strict=True))
    return f"{good} of {len(right)} are right."


def closer(call: str, said: str, count: int, number: str) -> str:
    """Put the stronger hint of a wrong answer together.

    Args:
        call: the last call of the learner's function; empty when there was none.
        said: what the check found besides.
        count: how often the exercise was answered wrongly by now (count).
        number: of the exercise.

    Returns:
        str: lines to print below the verdict; empty at the first wrong answer.
    """
    if count < 2:
        return ""
    found = " ".join(each for each in (call, said) if each)
    lines = [f"  A closer look: {found}"] if found else []
    lines.append(f'  Try on, or see an answer: dlguide.exercises.solution("{number}")')
    return "\n".join(lines)
