"""Compare an answer with the model's, and say how they differ without giving the model's away."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

LONGEST = 100  # characters of one value in a hint


def same(came: Any, right: Any, relative: float) -> bool:
    """Whether two results are equal; numbers within `relative` of the largest element of an array.

    Elements of tuples, lists and dictionaries are compared one by one, each by its own size.
    """
    if isinstance(right, Exception) or isinstance(came, Exception):
        return type(came) is type(right)
    if right is None or isinstance(right, slice):
        return type(came) is type(right) and came == right
    if isinstance(right, str):
        return isinstance(came, str) and came.strip().casefold() == right.strip().casefold()
    if isinstance(right, set | frozenset):
        length = isinstance(came, set | frozenset | list | tuple) and len(came) == len(right)
        return length and all(any(same(one, other, relative) for one in came) for other in right)
    if isinstance(right, Mapping):
        keys = isinstance(came, Mapping) and set(came) == set(right)
        return keys and all(same(came[key], right[key], relative) for key in right)
    if isinstance(right, tuple | list):
        if isinstance(came, np.ndarray):
            came = list(came) if came.ndim else came
        length = isinstance(came, tuple | list) and len(came) == len(right)
        return length and all(map(same, came, right, [relative] * len(right)))
    numbers, wanted = _numbers(came), _numbers(right)
    if wanted is None:
        return type(came) is type(right) and bool(came == right)
    if numbers is None:
        return False
    if numbers.shape != wanted.shape:
        return False
    allowed = relative * (np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0) or 1.0)
    with np.errstate(invalid="ignore"):
        near = (np.abs(numbers - wanted) <= allowed) | (numbers == wanted)
    return bool(np.all(near | (np.isnan(numbers) & np.isnan(wanted))))


def _numbers(value: Any) -> np.ndarray | None:
    if value is None or isinstance(value, str | bytes | Mapping | set):
        return None
    try:
        array = np.asarray(value)
        kind = complex if array.dtype.kind == "c" else float
        return array.astype(kind)
    except Exception:  # a learner's object may raise anything when it is looked at
        return None


def problem(came: Any, right: Any) -> str:
    """What is wrong with a result's type, length or shape, or its values that are not finite."""
    if isinstance(came, Exception):
        return ""
    if isinstance(right, Mapping):
        if not isinstance(came, Mapping):
            return "Expected: a dictionary."
        return "" if set(came) == set(right) else f"Expected: the keys {sorted(map(str, right))}."
    if isinstance(right, tuple | list):
        if not (isinstance(came, tuple | list) or getattr(came, "ndim", 0)):
            return f"Expected: a list or tuple of {len(right)} values."
        if len(came) != len(right):
            return f"Expected: {len(right)} values, not {len(came)}."
        return next(
            (text for pair in zip(came, right, strict=True) if (text := problem(*pair))), ""
        )
    if isinstance(right, set | frozenset):
        if not isinstance(came, set | frozenset | tuple | list):
            return "Expected: a set or a list."
        return "" if len(came) == len(right) else f"Expected: {len(right)} different values."
    if isinstance(right, str):
        return "" if isinstance(came, str) else "Expected: a string."
    if right is None or isinstance(right, slice):
        return ""
    numbers, wanted = _numbers(came), _numbers(right)
    if wanted is None:
        return ""
    kind = "a number" if wanted.ndim == 0 else f"an array of shape {wanted.shape}"
    if numbers is None:
        return f"Expected: {kind}."
    if numbers.shape != wanted.shape:
        return f"Expected: {kind}, not one of shape {numbers.shape}."
    bad = int(np.sum(~np.isfinite(numbers)))
    if bad and np.isfinite(wanted).all():
        return f"{bad} of {numbers.size} values are NaN or infinite."
    return ""


def difference(came: Any, right: Any, relative: float) -> str:
    """How values differ from the model's, not by how much; empty where there is nothing to say."""
    if isinstance(came, Exception) or problem(came, right):
        return ""
    if isinstance(right, tuple | list):
        bad = [
            i for i, pair in enumerate(zip(came, right, strict=True)) if not same(*pair, relative)
        ]
        first = difference(came[bad[0]], right[bad[0]], relative) if bad else ""
        text = f"{len(bad)} of {len(right)} values differ, the first at index {bad[0]}."
        return f"{text} {first}".strip()
    if isinstance(right, Mapping):
        bad = [key for key in right if key in came and not same(came[key], right[key], relative)]
        return (
            f"{bad[0]!r} differs. {difference(came[bad[0]], right[bad[0]], relative)}"
            if bad
            else ""
        )
    numbers, wanted = _numbers(came), _numbers(right)
    if numbers is None or wanted is None:
        return ""
    if not (np.isfinite(numbers).all() and np.isfinite(wanted).all()):
        return ""
    if numbers.ndim == 0:
        return f"The value is too {'large' if numbers.real > wanted.real else 'small'}."
    off = np.abs(numbers - wanted) > relative * (np.abs(wanted).max(initial=0.0) or 1.0)
    text = f"{int(off.sum())} of {off.size} elements differ"
    nonzero = np.abs(wanted) > 0
    ratios = numbers[nonzero] / wanted[nonzero]
    if off.sum() > 1 and ratios.size > 1 and np.allclose(ratios, ratios[0], rtol=1e-6):
        return f"{text}, all by the same factor."
    if np.allclose(np.sort(numbers, None), np.sort(wanted, None), rtol=relative):
        return f"{text}: they are the right values in another order."
    return f"{text}, the first at index {tuple(map(int, np.argwhere(off)[0]))}."


def brief(value: Any) -> str:
    """Write a value in a few words; a large array by its shape."""
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"[:LONGEST]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"<array of shape {value.shape}>"
    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = 60
    try:
        text = shorten.repr(value.tolist() if isinstance(value, np.ndarray) else value)
    except Exception:  # a value that cannot show itself is named by its type
        return f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
