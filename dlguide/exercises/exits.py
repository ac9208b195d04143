"""Doors through which an answer would leave with the whole notebook: closed while it is checked."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dlguide.exercises.frames import Stopped, learners, within

DEEPEST = 100_000  # recursions; below far more of them C code runs out of its own stack


@contextmanager
def closed() -> Iterator[None]:
    """Refuse what would end this process, as long as the context lasts.

    `os._exit`, `os.abort`, `os.exec...`, a signal to this process itself, IPython's `exit`, and a
    limit of recursions so high that the process would crash. Other processes go their own way: one
    that was forked may leave, and signals to other processes are sent. What C code does is not
    seen.

    Yields:
        None: while they are closed.

    Raises:
        Stopped: in the answer, where it takes one of them.
    """
    kept: list[tuple[Any, str, Any]] = []
    limit, thread = sys.getrecursionlimit(), threading.current_thread()

    def by_answer(frame: FrameType) -> bool:
        # another thread, such as one that watches over tests, must be able to end this process
        return threading.current_thread() is thread or bool(learners(within(frame, None)))

    def close(owner: Any, name: str, refused: Callable[..., bool]) -> None:
        real = getattr(owner, name)
        pid = os.getpid()

        @functools.wraps(real)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == pid and refused(*args) and by_answer(sys._getframe(1)):
                shown = ", ".join(repr(each) for each in args)
                called = getattr(owner, "__name__", "IPython")
                raise Stopped(f"called {called}.{name}({shown}), which would end the notebook")
            return real(*args, **kwargs)

        kept.append((owner, name, real))
        setattr(owner, name, guarded)

    try:
        for name in ("_exit", "abort", "execv", "execve"):  # the other execs end in these
            close(os, name, lambda *args: True)
        close(os, "kill", lambda pid, *args: pid in (0, -1, os.getpid(), os.getppid()))
        close(os, "killpg", lambda group, *args: group in (0, os.getpgrp()))
        close(signal, "raise_signal", lambda *args: True)
        close(sys, "setrecursionlimit", lambda depth, *args: depth > DEEPEST)
        shell = _shell()
        if shell is not None and hasattr(shell, "ask_exit"):
            close(shell, "ask_exit", lambda *args: True)
        yield
    finally:
        for owner, name, real in kept:
            setattr(owner, name, real)
        sys.setrecursionlimit(limit)


def _shell() -> Any:
    """Return IPython's shell, without loading IPython where it is not loaded."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
