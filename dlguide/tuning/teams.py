"""All ranks of a search: started side by side, at most as many as memory holds, ended together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import numpy as np
import psutil

from dlguide.cluster import processes
from dlguide.errors import require
from dlguide.machine import Machine
from dlguide.machine.threads import Candidate
from dlguide.tuning.team import Start, Surroundings, Team
from dlguide.tuning.work import Work

RANK_BYTES = 800_000_000  # a rank with TensorFlow and a small net; then what the largest one took
MEMORY_SHARE = 0.6
SAMPLES = 12_000
LOOK_S = 0.02
LONGEST_ADDRESS = 100  # the kernel's limit for a socket's name is 107


class Teams:
    """The teams of one search, each under the start its candidates need."""

    def __init__(self, machine: Machine, work: Work, candidates: Iterable[Candidate]) -> None:
        self.machine, self.work = machine, work
        self.candidates = {}
        for each in candidates:
            self.candidates.setdefault(Start.of(each), each)
        self.teams: dict[Start, Team] = {}
        self.rank_bytes = RANK_BYTES
        self.facts: dict[str, tuple] = {}

    def __enter__(self) -> Teams:
        self.name = uuid.uuid4().hex[:12]
        self.folder = Path(tempfile.mkdtemp(prefix=processes.PREFIX))
        address = str(self.folder / "tuner")
        self.around = Surroundings(self.name, self.folder, address, self.work)
        self.line = socket.socket(socket.AF_UNIX)
        try:
            short = len(os.fsencode(address)) <= LONGEST_ADDRESS
            then = "Set TMPDIR to a folder with a shorter path."
            require(short, "TMPDIR", "have a short path", str(self.folder.parent), then)
            self._watch()
            if self.work.data != "random":
                self._write_images()
            self.line.bind(address)
            self.line.listen(1024)
            self.line.setblocking(False)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.line.close()
        for team in self.teams.values():
            team.end()
        processes.end(self.name)
        processes.remove_folder(self.folder)

    def _watch(self) -> None:
        """Start the process that ends the ranks should this one be killed."""
        owner = processes.identity(os.getpid())
        env = {**os.environ, processes.MARK: self.name, processes.OWNER: owner}
        env[processes.FOLDER] = str(self.folder)
        command = [sys.executable, "-m", "dlguide.cluster.watchdog", str(os.getpid()), self.name]
        self.watchdog = subprocess.Popen(
            [*command, str(self.folder)], env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _write_images(self) -> None:
        """Write the first images to where all ranks can map them, in memory only once."""
        from dlguide.data import datasets

        data = datasets.load(self.work.data)
        count = min(len(data.train_labels), max(SAMPLES, self.work.batch))
        count -= count % self.work.batch
        most = len(data.train_labels)
        require(count > 0, "batch", f"be at most the {most} of {data.name}", self.work.batch)
        np.save(self.folder / "images.npy", data.train_images[:count])
        np.save(self.folder / "labels.npy", data.train_labels[:count])

    def start_all(self, limit_s: float, tell: Callable[[int, int], None]) -> None:
        """Start as many teams as memory holds, a few at a time, until all are ready."""
        deadline = time.monotonic() + limit_s
        waiting = list(self.candidates)
        while True:
            self._look()
            busy = [t for t in self.teams.values() if not t.ready and not t.failed]
            starting = sum(team.start.ranks for team in busy)
            tell(sum(team.ready for team in self.teams.values()), len(self.candidates))
            if time.monotonic() > deadline:
                waiting.clear()
            if waiting and (not busy or starting < 2 * self.machine.usable_cores):
                if self._room_for(waiting[0]):
                    self._start(waiting.pop(0))
                    continue
                waiting.pop(0)  # a smaller one may fit; this one is started when it is measured
            elif not busy and not waiting:
                return
            time.sleep(LOOK_S)

    def measure(self, candidate: Candidate, seconds: float) -> list[float]:
        """Train a candidate for some seconds; what `threads.tune` calls."""
        start = Start.of(candidate)
        if start not in self.teams:
            self._make_room(start)
            self._start(start)
        team = self.teams.pop(start)
        self.teams[start] = team  # the last one is the one used last
        while not team.ready and not team.failed:
            self._look()
            time.sleep(LOOK_S)
        if not team.failed:
            self._require_equal_work(team)
        plan = None if candidate.default else candidate.plan(self.machine)
        return team.measure(plan and plan.cpus, seconds)

    def _start(self, start: Start) -> None:
        plan = self.candidates[start].plan(self.machine)
        self.teams[start] = Team(start, plan, self.around)

    def _look(self) -> None:
        """Answer the ranks that call and see how far each start has come."""
        while True:
            try:
                line, _ = self.line.accept()
            except BlockingIOError:
                break
            line.setblocking(True)
            connection = Connection(line.detach())
            name, rank, pid = connection.recv()
            for team in self.teams.values():
                if team.name == name:
                    team.joined(rank, pid, connection)
        for team in self.teams.values():
            team.look()
            sizes = [facts["nbytes"] for facts in team.facts.values()]
            self.rank_bytes = max([self.rank_bytes, *sizes])

    def _room_for(self, start: Start) -> bool:
        """Tell whether memory holds the ranks of a start beside those there are."""
        living = sum(team.start.ranks for team in self.teams.values() if not team.failed)
        limit = min(psutil.virtual_memory().total, self.machine.memory_bytes or float("inf"))
        return not living or (living + start.ranks) * self.rank_bytes < MEMORY_SHARE * limit

    def _make_room(self, start: Start) -> None:
        while not self._room_for(start):
            longest_ago = next(iter(self.teams))
            self.teams.pop(longest_ago).end()

    def _require_equal_work(self, team: Team) -> None:
        """Hold a team to the first one's work: net, first weights, images in a step."""
        for rank, facts in team.facts.items():
            images = facts["images"] * facts["ranks"]
            done = (facts["parameters"], facts["weights_digest"], images, facts["ranks"])
            wanted = (*self.facts.setdefault("work", done)[:3], team.start.ranks)
            if done != wanted:
                raise RuntimeError(
                    f"rank {rank} does other work than the first candidate: parameters, digest of "
                    f"the first weights, global batch and ranks are {done} and not {wanted}"
                )
