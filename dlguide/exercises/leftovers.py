"""Threads and processes that an answer has started and left behind: found and ended."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from typing import Any

from dlguide.exercises.frames import learners, within

WAIT_S = 1.0  # for them to end


class Before:
    """What ran before the answer, and so is none of its own."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.processes = {child.pid for child in _children()}

    def end(self) -> str:
        """End the threads and processes that have come since and are the learner's.

        Returns:
            str: a sentence on what would not end; empty when nothing is left.
        """
        self.end_processes()
        deadline = time.monotonic() + WAIT_S
        # They are out of the answer before they are gone. `is_alive` says too early that they are,
        # of a thread whose `join` was interrupted.
        ending: set[threading.Thread] = set()
        while time.monotonic() < deadline:
            running = self.new_threads()
            for thread in running:
                raise_in(thread, SystemExit)  # which ends a thread without a word
            ending.update(running)
            if not ending & set(threading.enumerate()):
                return ""
            time.sleep(0.05)
        left = ending & set(threading.enumerate())
        return "A thread that your answer started is still running." if left else ""

    def new_threads(self) -> list[threading.Thread]:
        """List the threads that have come since and run code of the learner.

        Returns:
            list: of those that are still alive.
        """
        frames = sys._current_frames()
        return [
            thread
            for thread in set(threading.enumerate()) - self.threads
            if learners(within(frames.get(thread.ident), None))
        ]

    def end_processes(self) -> None:
        """End the processes that have come since, and theirs; not those of a cluster."""
        import psutil

        new = [
            child
            for child in _children()
            if child.pid not in self.processes and _session(child.pid) == os.getsid(0)
        ]
        for child in [more for one in new for more in (*_children(one), one)]:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue  # it has ended by itself
        psutil.wait_procs(new, timeout=WAIT_S)


def raise_in(thread: threading.Thread, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread, between two of its own steps.

    Args:
        thread: any that runs Python.
        kind: of the exception, which carries no text; None takes back what has not come yet.
    """
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), raised)


def _children(process: Any = None) -> list[Any]:
    """List the processes below one, or those that this one has started."""
    import psutil

    try:
        return psutil.Process().children() if process is None else process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _session(pid: int) -> int:
    """Return a process's session; 0 when it has gone. A cluster has a session of its own."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
