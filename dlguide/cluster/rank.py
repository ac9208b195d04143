"""What runs inside a rank: a monitor that writes down what the rank is doing, and the call itself.

The launcher must be able to tell a rank that computes from one that waits for ever. Only the
rank knows, and its main thread may be stuck in C code; so a thread beside it looks at the main
thread four times a second and writes what it sees into the cluster's folder.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dlguide.cluster import shared_memory, waiting

BEAT_S = 0.25
NEW_OBJECTS = 10_000  # between two looks for garbage; Python 3.11 by itself looks after 700
OWN_FOLDER = Path(__file__).parent
LAUNCHING = (str(OWN_FOLDER), "<frozen runpy>")
STALL_WARNING_S = 1  # Horovod's own inspector names missing ranks after one to two of these


class Monitor(threading.Thread):
    """Write this rank's state into `state-rank<rank>.json` of the cluster's folder.

    Whether the main thread moves is found with a pending call: Python runs it in the main thread
    as soon as that thread executes any Python, so one that has not run means a main thread that
    sits in C code. `since` is the last time it ran.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(name="dlguide-monitor", daemon=True)
        self.path = folder / f"state-rank{rank}.json"
        self.run_number = 0
        self.phase = "idle"
        self.since = time.monotonic()
        self.thread = threading.main_thread().ident
        self.spent_before_s = 0.0
        self.changed = threading.Event()
        self.pending = False
        self.folder, self.rank = folder, rank
        self.shared_noted = False
        self.probe = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.moved)

    def moved(self, _argument: Any) -> int:
        """Note that the main thread executes Python (called in the main thread)."""
        self.pending = False
        self.since, self.spent_before_s = time.monotonic(), time.thread_time()
        return 0

    def enter(self, phase: str, run_number: int) -> None:
        """Change the phase and write it down at once."""
        self.run_number, self.phase = run_number, phase
        self.since, self.spent_before_s = time.monotonic(), time.thread_time()
        self.write()

    def run(self) -> None:
        """Look at the main thread for ever."""
        while True:
            self.write()
            if not self.shared_noted and not {"mpi4py.MPI", "horovod"}.isdisjoint(sys.modules):
                self.note_shared_memory()
            time.sleep(BEAT_S if self.shared_noted else BEAT_S / 5)

    def note_shared_memory(self) -> None:
        """Write down which shared memory MPI has opened: a killed rank cannot remove it."""
        shared = sorted(str(each) for each in shared_memory.opened_by(os.getpid()))
        (self.folder / f"shared-memory-{self.rank}").write_text("\n".join(shared))
        self.shared_noted = bool(shared)

    def write(self) -> None:
        """Write the state in one piece: a reader sees the old one or the new one."""
        if not self.pending:
            self.pending = True
            ctypes.pythonapi.Py_AddPendingCall(self.probe, None)
        state = {
            "pid": os.getpid(),
            "run": self.run_number,
            "phase": self.phase,
            "beat": time.monotonic(),
            "since": self.since,
            "spent_s": self.spent_s(),
            **self.position(),
        }
        draft = self.path.with_name(f".{self.path.name}.{threading.get_ident()}")
        draft.write_text(json.dumps(state))
        draft.replace(self.path)

    def spent_s(self) -> float:
        """Return the processor time the main thread has used since it last moved (s).

        Infinite when it sleeps, and so waits for something: a thread that waits in MPI burns its
        core, one that has used nothing may just not have been given a core.
        """
        task = Path(f"/proc/self/task/{threading.main_thread().native_id}/stat")
        if task.read_text().rpartition(")")[2].split()[0] == "S":
            return float("inf")
        clock = time.pthread_getcpuclockid(threading.main_thread().ident)
        return time.clock_gettime(clock) - self.spent_before_s

    def position(self) -> dict[str, str]:
        """Return which MPI call the main thread is in, and where in the user's code."""
        if self.phase != "running" or time.monotonic() - self.since < BEAT_S:
            return {"call": "", "place": ""}
        frame = sys._current_frames().get(self.thread)
        call = waiting.blocking_call(frame) if frame else ""
        return {"call": call, "place": _place(frame)}


def _place(frame: FrameType | None) -> str:
    """Say where in the user's own code a thread is: the innermost frame that is in no library."""
    inside = (sys.base_prefix, str(OWN_FOLDER.parent), "<string>", "<frozen")
    while frame is not None:
        name = frame.f_code.co_filename
        if "site-packages" not in name and not name.startswith(inside):
            what = frame.f_code.co_name.replace("<module>", "the cell or script")
            return f"line {frame.f_lineno} of {what}"
        frame = frame.f_back
    return ""


def start_monitor(folder: str, rank: int) -> Monitor:
    """Start the monitor of this rank."""
    monitor = Monitor(Path(folder), rank)
    monitor.start()
    return monitor


def collect_rarely() -> None:
    """Let this process look for garbage less often than Python does by itself.

    Loading TensorFlow makes so many objects that Python 3.11 looks for garbage 900 times, although
    hardly any of them can go: that is half a second of a core. At its end Python looks several
    times more, which takes a second; it leaves frozen objects alone.
    """
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)


def log_path(folder: Path, rank: int) -> Path:
    """Return the file that takes what native libraries print in a rank."""
    return folder / f"native-rank{rank}.log"


def guarded(monitor: Monitor, run_number: int, call: Callable[[], Any]) -> dict[str, Any]:
    """Call a function so that whatever happens in it becomes a value that can be sent."""
    monitor.thread = threading.get_ident()
    monitor.enter("running", run_number)
    try:
        outcome = {"phase": "returned", "value": call()}
    except SystemExit as error:
        outcome = _failure("exited", f"sys.exit({'' if error.code is None else repr(error.code)})")
    except BaseException as error:
        outcome = _failure("raised", traceback.format_exception_only(error)[-1].strip())
    monitor.enter(outcome["phase"], run_number)
    return outcome


def _failure(phase: str, error: str) -> dict[str, Any]:
    """Describe the exception that is being handled, without this module's own frames."""
    kind, value, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(LAUNCHING):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(kind, value, trace))
    return {"phase": phase, "error": error, "traceback": text}
