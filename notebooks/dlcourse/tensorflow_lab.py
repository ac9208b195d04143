"""Try a strategy of TensorFlow in new processes, with a time limit, and say how it ended.

    lab = tensorflow_lab.Lab()
    outcome = lab.try_out(function, workers=2, limit_s=20)
    print(outcome.verdict, outcome.words)

`tf.distribute` finds its peers by the variable TF_CONFIG; the lab sets it, on ports of loopback.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlcourse.tensorflow_servers import free_ports
from dlguide.errors import require, require_count, require_positive

START_S = 120.0  # to import TensorFlow on a busy machine
VERDICTS = ("answered", "refused", "died", "hung")


@dataclass(frozen=True)
class Ending:
    """How one worker's process ended.

    Args:
        worker: which one (index).
        verdict: "answered" (its function returned), "refused" (it raised), "died" (the process
            ended without either), or "hung" (still running at the limit, and ended by the lab).
        answer: what its function returned; None otherwise.
        words: kind and text of the error, or the last lines that the process printed.
        seconds: from the start of all workers to the end of this one (s).
    """

    worker: int
    verdict: str
    answer: Any
    words: str
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How all workers of one trial ended, in the order of their index.

    Args:
        endings: one of each worker.
    """

    endings: tuple[Ending, ...]

    @property
    def verdict(self) -> str:
        """The worst of the endings: answered, hung, refused, died, in this order."""
        order = ("answered", "hung", "refused", "died")
        return max((each.verdict for each in self.endings), key=order.index)

    @property
    def answers(self) -> tuple[Any, ...]:
        """What each worker's function returned."""
        return tuple(each.answer for each in self.endings)

    @property
    def words(self) -> str:
        """The first line of what the first worker said that did not answer; empty if all did."""
        said = [each.words for each in self.endings if each.verdict == self.verdict]
        lines = said[0].strip().splitlines() if self.verdict != "answered" else []
        return lines[0] if lines else ""

    @property
    def seconds(self) -> float:
        """Time until the last worker had ended (s)."""
        return max(each.seconds for each in self.endings)

    def results(self) -> tuple[Any, ...]:
        """Return the answers, or say why there are none.

        Returns:
            tuple: one answer of each worker.

        Raises:
            RuntimeError: when a worker did not answer; the text ends with its words.
        """
        for each in self.endings:
            if each.verdict != "answered":
                raise RuntimeError(f"Worker {each.worker} {each.verdict}.\n{each.words}")
        return self.answers


class Lab:
    """Starts new processes in which TensorFlow is loaded, but has not started.

    One process imports TensorFlow, once, in some seconds; each worker is a fork of it. Nothing
    outlives the lab or the process that made it, not even after a SIGKILL. While workers of a
    trial run, TensorFlow's servers answer on all network interfaces, without encryption.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="dlguide-lab-")
        self._ends: dict[str, queue.Queue] = {"": queue.Queue()}  # of each trial, by its folder
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        with open(f"{self._folder}/said", "wb") as said:
            self._loader = subprocess.Popen(
                [sys.executable, "-P", "-m", "dlcourse.tensorflow_lab"],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
        self._close = weakref.finalize(self, _end, self._loader, self._folder)
        threading.Thread(target=_listen, args=(self._loader, self._ends), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            if self._ends[""].get(timeout=START_S)[0] == "ready":
                return
        text = Path(self._folder, "said").read_text(errors="replace")
        self.close()
        raise RuntimeError(f"TensorFlow could not be loaded.\n{_tail(text)}")

    def close(self) -> None:
        """End the process that loads TensorFlow, and all workers that still run."""
        self._close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def try_out(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        workers: int = 1,
        threads: int = 1,
        limit_s: float = 30.0,
        grace_s: float = 3.0,
        environment: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Call a function in new processes and say how each of them ended."""
        import cloudpickle

        require_count(workers, "workers")
        require_count(threads, "threads")
        limit_s, grace_s = (
            require_positive(limit_s, "limit_s"),
            require_positive(grace_s, "grace_s"),
        )
        require(self._close.alive, "lab", "be open", "a closed one", "Make another: `Lab()`.")
        base = Path(tempfile.mkdtemp(dir=self._folder))
        self._ends[str(base)] = queue.Queue()
        addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
        payload = cloudpickle.dumps((function, arguments))
        folders = [base / str(worker) for worker in range(workers)]
        for worker, folder in enumerate(folders):
            task = {"type": "worker", "index": worker}
            config = {"cluster": {"worker": addresses}, "task": task}
            variables = {
                "TF_NUM_INTRAOP_THREADS": str(threads),
                "TF_NUM_INTEROP_THREADS": str(threads),
                "TF_CONFIG": json.dumps(config) if workers > 1 else "{}",
                **(environment or {}),
            }
            folder.mkdir()
            (folder / "payload").write_bytes(payload)
            self._order({"key": str(folder), "folder": str(folder), "environment": variables})
        try:
            ended = self._wait(str(base), [str(each) for each in folders], limit_s, grace_s)
            rows = zip(folders, ended, strict=True)
            return Outcome(tuple(_ending(at, row[0], *row[1]) for at, row in enumerate(rows)))
        finally:
            del self._ends[str(base)]
            shutil.rmtree(base)

    def _order(self, order: dict[str, Any]) -> None:
        self._loader.stdin.write(f"{json.dumps(order)}\n".encode())
        self._loader.stdin.flush()

    def _wait(
        self, trial: str, keys: list[str], limit_s: float, grace_s: float
    ) -> list[tuple[bool, float]]:
        """Wait for the workers; for each whether the lab had to end it, and when it ended."""
        start = time.monotonic()
        limit = start + limit_s
        pids: dict[str, int] = {}
        ended: dict[str, float] = {}
        killed: set[str] = set()
        while len(ended) < len(keys):
            try:
                wait_s = max(0.0, limit - time.monotonic())
                key, pid, status = self._ends[trial].get(timeout=wait_s)
            except queue.Empty:
                for key in set(pids) - set(ended) - killed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pids[key], signal.SIGKILL)
                    killed.add(key)
                limit = time.monotonic() + 1.0  # for those whose start is not yet told
                continue
            if key == "gone":
                raise RuntimeError("The process that loads TensorFlow has ended.")
            if status is None:
                pids[key] = pid
                continue
            ended[key] = time.monotonic() - start
            if not _answered(key):
                limit = min(limit, time.monotonic() + grace_s)
        return [(key in killed, ended[key]) for key in keys]


def _answered(folder: str) -> bool:
    answer = Path(folder, "answer")
    return answer.exists() and pickle.loads(answer.read_bytes())[0]


def _ending(worker: int, folder: Path, killed: bool, seconds: float) -> Ending:
    answer, said = folder / "answer", folder / "said"
    if killed or not answer.exists():
        text = _tail(said.read_text(errors="replace")) if said.exists() else ""
        verdict = "hung" if killed else "died"
        return Ending(worker, verdict, None, text or "It said nothing.", seconds)
    good, *found = pickle.loads(answer.read_bytes())
    if good:
        return Ending(worker, "answered", found[0], "", seconds)
    return Ending(worker, "refused", None, f"{found[0]}: {found[1]}", seconds)


def _listen(loader: subprocess.Popen, ends: dict[str, queue.Queue]) -> None:
    for line in loader.stdout:
        key, pid, status = json.loads(line)
        trial = os.path.dirname(key)
        if trial in ends:
            ends[trial].put((key, pid, status))
    for each in list(ends.values()):
        each.put(("gone", 0, None))


def _end(loader: subprocess.Popen, folder: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        loader.stdin.close()
    try:
        loader.wait(5)
    except subprocess.TimeoutExpired:
        loader.kill()
        loader.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _tail(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-10:])


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
