"""Whether the main thread makes steps of Python's own, or stands in one call of C code."""

from __future__ import annotations

import ctypes
import time


class Pulse:
    """The main thread's answers to a thread that asks whether it goes on.

    Between two of its steps Python runs what `Py_AddPendingCall` was given. No signal is sent, so
    no call of C code is disturbed; and what is run is C code as well, so an exception that comes
    at this moment is not lost in it.
    """

    def __init__(self) -> None:
        self.question: set[int] = set()  # the main thread empties it

    def felt(self) -> bool:
        """Tell whether the main thread has made a step since this was last asked, and ask anew.

        Returns:
            bool: True the first time.
        """
        if self.question:
            return False
        self.question.add(1)
        clear = ctypes.cast(ctypes.pythonapi.PySet_Clear, ctypes.c_void_p)
        if ctypes.pythonapi.Py_AddPendingCall(clear, ctypes.py_object(self.question)):
            self.question.clear()  # too many others wait to be run
        return True

    def end(self) -> None:
        """Wait in the main thread until nothing is asked: Python still points to the question."""
        while self.question:
            time.sleep(0)
