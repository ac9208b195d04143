"""The ranks of one start: launched once, stopped while those of others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from dlguide.cluster import processes
from dlguide.cluster.environment import find_mpiexec, rank_environment
from dlguide.machine.threads import Candidate, ThreadPlan
from dlguide.tuning.work import Work

START_S = 180.0
BLOCK_S = 0.2  # a sample is as long as that, so that it holds a process's usual waits
ANSWER_S = 60.0  # more than the seconds asked for: then a rank hangs
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Start:
    """What can be set only once in a process; candidates that agree in it share their ranks."""

    ranks: int
    threads: int
    inter_op: int
    default: bool

    @classmethod
    def of(cls, candidate: Candidate) -> Start:
        """Give the start that a candidate needs."""
        return cls(candidate.ranks, candidate.threads, candidate.inter_op, candidate.default)


@dataclass(frozen=True)
class Surroundings:
    """What all teams of one search have in common."""

    name: str
    folder: Path
    address: str
    work: Work


class Team:
    """The ranks of one start."""

    def __init__(self, start: Start, plan: ThreadPlan, around: Surroundings) -> None:
        self.start, self.around = start, around
        self.name = f"{start.ranks}-{start.threads}-{start.inter_op}-{start.default:d}"
        env = rank_environment(plan, around.name, around.folder)
        if start.default:
            env = {name: value for name, value in env.items() if name not in THREADS}
        # a rank that is stopped while others are measured must not be taken for stalled
        env |= {"HOROVOD_STALL_CHECK_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
        given = None if start.default else asdict(plan)
        self.log = around.folder / f"team-{self.name}.log"
        command = [
            str(find_mpiexec()), "-n", str(start.ranks), sys.executable, "-m",
            "dlguide.tuning.worker", str(around.folder), around.address, self.name,
            json.dumps(around.work.as_dict()), json.dumps(given),
        ]  # fmt: skip
        processes.remove_orphaned_shared_memory()
        with self.log.open("ab") as log:
            self.launcher = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.connections: dict[int, Connection] = {}
        self.pids: dict[int, int] = {}
        self.facts: dict[int, dict[str, Any]] = {}
        self.deadline = time.monotonic() + START_S
        self.failed = ""
        self.step_s = 0.0

    @property
    def ready(self) -> bool:
        """Whether all ranks have taken their first steps."""
        return len(self.facts) == self.start.ranks and not self.failed

    def joined(self, rank: int, pid: int, connection: Connection) -> None:
        """Take in a rank that has called."""
        self.connections[rank], self.pids[rank] = connection, pid

    def look(self) -> None:
        """See how far the start has come; a team that is ready is stopped until it is needed."""
        if self.ready or self.failed:
            return
        try:
            for rank, connection in self.connections.items():
                if rank not in self.facts and connection.poll():
                    self.facts[rank] = self._received(rank)
            if self.launcher.poll() is not None:
                raise RuntimeError(f"the ranks ended while they started{self._last_words()}")
            if time.monotonic() > self.deadline:
                raise RuntimeError(f"the ranks did not start within {START_S:.0f} s")
        except RuntimeError as error:
            self.failed = str(error)
            self.end()
        if self.ready:
            self.signal(signal.SIGSTOP)

    def measure(self, cpus: tuple[tuple[int, ...], ...] | None, seconds: float) -> list[float]:
        """Train for some seconds."""
        if self.failed:
            raise RuntimeError(self.failed)
        begin = time.monotonic()
        try:
            self.signal(signal.SIGCONT)
            # the first steps fill caches again and tell how many make a block
            first = 3 if self.step_s < BLOCK_S else 1
            self.step_s = max(self._blocks(cpus, first, 1, seconds)) / first
            steps = max(1, round(BLOCK_S / self.step_s))
            left_s = seconds - (time.monotonic() - begin)
            blocks = max(1, round(left_s / (steps * self.step_s)))
            slowest = self._blocks(None, steps, blocks, seconds)
            self.signal(signal.SIGSTOP)
        except RuntimeError as error:
            self.failed = str(error)
            self.end()
            raise
        return [steps * self.around.work.batch / block_s for block_s in slowest]

    def _blocks(
        self, cpus: tuple[tuple[int, ...], ...] | None, steps: int, blocks: int, seconds: float
    ) -> list[float]:
        """Let all ranks take their steps; return each block's time on its slowest rank."""
        for rank, connection in self.connections.items():
            try:
                connection.send((None if cpus is None else cpus[rank], steps, blocks))
            except OSError as error:
                raise RuntimeError(f"rank {rank} has ended{self._last_words()}") from error
        deadline = time.monotonic() + seconds + ANSWER_S
        answers: dict[int, list[float]] = {}
        ranks = {connection: rank for rank, connection in self.connections.items()}
        while len(answers) < len(ranks):
            waited = [each for each, rank in ranks.items() if rank not in answers]
            for connection in wait(waited, max(deadline - time.monotonic(), 0.0)):
                answers[ranks[connection]] = self._received(ranks[connection])
            if time.monotonic() > deadline:
                silent = sorted(set(ranks.values()) - set(answers))
                raise RuntimeError(f"rank {silent[0]} did not answer for {ANSWER_S:.0f} s")
        return [max(each) for each in zip(*answers.values(), strict=True)]

    def _received(self, rank: int) -> Any:
        try:
            answer = self.connections[rank].recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"rank {rank} has ended{self._last_words()}") from error
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""

    def signal(self, number: int) -> None:
        """Send a signal to all ranks."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """End the ranks, their launcher, and the shared memory that killed ranks leave."""
        shared = {path for pid in self.pids.values() for path in processes.shared_memory_of(pid)}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()
        self.pids.clear()
        self.launcher.wait()
        for path in shared:
            path.unlink(missing_ok=True)
