"""daal4py, loaded when it is there, with the threads that a call may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from dlguide.errors import MissingComponentError, require, require_count

LARGEST = 1e150  # its square leaves room for the sum over all points of any machine


def load() -> ModuleType:
    """Import daal4py.

    It counts the CPUs it may use once, when it is loaded: bind a process before.

    Returns:
        ModuleType: daal4py.

    Raises:
        MissingComponentError: when it is not there; says how to get it.
    """
    try:
        import daal4py
    except ImportError as error:
        raise MissingComponentError(
            f"daal4py cannot be loaded ({error}). It comes with scikit-learn-intelex, for x86_64 "
            "only: run `pip install scikit-learn-intelex` on such a machine."
        ) from error
    return daal4py


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Let daal4py compute with a number of threads inside a `with` block.

    Args:
        count: number of threads (count); None leaves the setting as it is.

    Yields:
        int: the threads that daal4py is set to.

    Raises:
        ValueError: when it is no whole number of at least 1.
    """
    daal4py = load()
    before = daal4py.num_threads()
    if count is not None:
        daal4py.daalinit(require_count(count, "threads"))
    try:
        yield daal4py.num_threads()
    finally:
        daal4py.daalinit(before)


def numbers(values: Any, name: str) -> np.ndarray:
    """Return a table of finite numbers as daal4py takes it: float64, row after row."""
    try:
        table = np.ascontiguousarray(values, np.float64)
        shape = np.shape(values)
    except (TypeError, ValueError):
        table, shape = np.zeros(0), type(values).__name__
    require(len(table.shape) == 2 and table.ndim == len(shape), name, "be rows of numbers", shape)
    require(table.shape[1] > 0, name, "have at least one column", table.shape)
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        then = "Drop such rows or fill them: one NaN would spread to every centre."
        require(False, name, "be finite numbers", f"{table[row].tolist()} in row {row}", then)
    size = max(table.max(initial=0.0), -table.min(initial=0.0))
    must = f"be numbers from {-LARGEST:g} to {LARGEST:g}, whose squares can be added up"
    require(size <= LARGEST, name, must, f"one of size {size:g}", "Take a larger unit.")
    return table
