"""The process that loads TensorFlow once and forks a new process for every trial of a strategy.

A strategy must be made before TensorFlow has started, so every trial needs a process of its own;
importing TensorFlow takes seconds. Here it is imported, but not started: devices, thread pools and
gRPC servers come into being in the fork. `python -m ...` reads orders from its standard input, one
JSON text a line, and ends with all its forks when that closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import select
import signal
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h: the signal that a process gets when its parent ends


def read_orders() -> None:
    """Fork for every order until standard input closes; say on standard output who ended how.

    An order has a key, a folder (for the payload and the answer) and the environment of the fork.
    What is said is a list of key, pid and exit status; at the fork's start the status is null.
    """
    import keras  # noqa: F401  loaded for the forks
    import tensorflow as tf  # noqa: F401

    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing wakes `select`
    running: dict[int, str] = {}
    pending = b""
    _say("ready", 0, None)
    while True:
        readable, _, _ = select.select([0, wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            _reap(running)
        if 0 in readable:
            came = os.read(0, 1 << 16)
            if not came:
                break
            *lines, pending = (pending + came).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = _fork(order)
                running[pid] = order["key"]
                _say(order["key"], pid, None)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _say(key: str, pid: int, status: int | None) -> None:
    os.write(1, f"{json.dumps([key, pid, status])}\n".encode())


def _reap(running: dict[int, str]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _say(running.pop(pid), pid, os.waitstatus_to_exitcode(status))


def _fork(order: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)
        said = os.open(f"{order['folder']}/said", os.O_WRONLY | os.O_CREAT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(old, new)
        os.environ.update(order["environment"])
        answer(order["folder"])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # TensorFlow's own threads would wait for peers that have ended


def answer(folder: str) -> None:
    """Call the function in the folder's payload and leave what it returns, or its error."""
    import cloudpickle

    function, arguments = cloudpickle.loads(Path(folder, "payload").read_bytes())
    try:
        found = (True, function(*arguments))
    except Exception as error:
        traceback.print_exc()
        found = (False, type(error).__name__, str(error))
    part = Path(folder, "answer.part")
    part.write_bytes(pickle.dumps(found))
    part.rename(Path(folder, "answer"))  # whole or not there


if __name__ == "__main__":
    read_orders()
    os._exit(0)  # at once: TensorFlow's own way out takes seconds
