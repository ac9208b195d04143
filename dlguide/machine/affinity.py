"""On which logical CPUs the threads of this process may run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def affinity() -> dict[int, tuple[int, ...]]:
    """Give the logical CPUs of every thread of this process.

    Returns:
        dict: ascending logical CPUs by thread id.
    """
    found = {}
    for thread in _threads():
        with suppress(ProcessLookupError):  # a thread may end at any moment
            found[thread] = tuple(sorted(os.sched_getaffinity(thread)))
    return found


def bind(known: Mapping[int, Sequence[int]], others: Sequence[int]) -> None:
    """Set the affinity of every thread of this process.

    Goes on until no thread has been started meanwhile: a new one inherits its parent's.
    """
    done: set[int] = set()
    while left := set(_threads()) - done:
        for thread in left:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, known.get(thread, others))
        done |= left


def spans(cpus: Iterable[int]) -> str:
    """Write logical CPUs as the kernel does.

    >>> spans([8, 0, 1, 2, 3])
    '0-3,8'
    """
    found: list[list[int]] = []
    for cpu in sorted(cpus):
        if found and cpu == found[-1][1] + 1:
            found[-1][1] = cpu
        else:
            found.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in found)
