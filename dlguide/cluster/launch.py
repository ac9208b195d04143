"""One line that starts MPI ranks, runs functions on them, and leaves nothing behind."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from dlguide.cluster import allocation, processes, shared_memory
from dlguide.cluster.environment import checked_environment, rank_environment
from dlguide.cluster.errors import LAUNCHER_LOG
from dlguide.cluster.planned import planned
from dlguide.cluster.run import FunctionRun
from dlguide.cluster.tasks import Outcome, TaskRun, checked_ranks, payload
from dlguide.machine import threads

START_S = 60.0
CONNECTION = "security/ipcontroller-dlguide-client.json"


class Cluster:
    """MPI ranks on this machine, or on a batch job's, ready to run functions and cells.

    The ranks are ipyparallel engines under one `mpiexec`, with the cores shared among them by a
    thread plan. On one machine they listen on loopback only; all messages are encrypted. Nothing
    outlives this object or the process that made it, not even after a SIGKILL, nor do the ranks'
    temporary files.

    Args:
        plan: a thread plan, or None to plan `ranks` on this machine.
        ranks: number of ranks when no plan is given (count); None for 2, or with tuned=True for
            as many as were fastest.
        oversubscribe: allow more ranks than cores.
        magics: in a notebook, let `%%px` run cells on these ranks.
        tuned: whether to use what `dlguide tune` has found here: None where it has measured that
            number of ranks, False never, True always, for ranks=None also their number.
        environment: variables of the ranks beside this process's own, such as
            {"HOROVOD_FUSION_THRESHOLD": "0"}, not those of the thread plan; they win over defaults.
        inside: "slurm" for all nodes of the Slurm job that this runs in; `plan` is one node's.

    Raises:
        ValueError: when there are more ranks than cores and `oversubscribe` is False, when
            tuned=True and nothing was found for this machine, or when `environment` is not
            what it must be, or `inside` outside a Slurm job.
        MissingComponentError: when there is no mpiexec.
        RuntimeError: when the ranks do not start; the text ends with their log.
    """

    # A notebook's cell that is run again makes a new cluster before the old one is let go.
    started: ClassVar[weakref.WeakSet[Cluster]] = weakref.WeakSet()

    def __init__(
        self,
        plan: threads.ThreadPlan | None = None,
        *,
        ranks: int | None = None,
        oversubscribe: bool = False,
        magics: bool = True,
        tuned: bool | None = None,
        environment: Mapping[str, str] | None = None,
        inside: str | None = None,
    ) -> None:
        self.engines: list[dict[str, Any]] = []
        self.client: Any = None
        self.folder: Path | None = None
        self.tuned = ""
        self.allocation = allocation.find(inside)
        if plan is None:
            ranks = self.allocation.ranks_per_node(ranks)
            plan, self.tuned = planned(ranks, oversubscribe, tuned)
        self.plan = plan
        self.environment = checked_environment(environment, plan)
        self.run_number = 0
        self.children: list[subprocess.Popen] = []
        if in_notebook() and magics:
            for earlier in list(self.started):
                earlier.stop()
        self.start()
        if magics and in_notebook():
            from dlguide.cluster.magics import register

            register(weakref.ref(self))

    @property
    def ranks(self) -> int:
        """Number of ranks (count)."""
        return self.plan.ranks * self.allocation.nodes

    def start(self) -> None:
        """Start controller, ranks and watchdog, and wait until every rank answers."""
        self.name = uuid.uuid4().hex[:12]
        self.folder = Path(tempfile.mkdtemp(prefix=processes.PREFIX, dir=self.allocation.parent))
        try:
            self._start(self.allocation.launcher(self.plan.ranks))
        except BaseException:
            self.stop()
            raise
        self.started.add(self)
        atexit.register(self.stop)

    def _start(self, launcher: list[str]) -> None:
        module = [sys.executable, "-P", "-m"]  # no module of the working directory comes first
        env = rank_environment(self.plan, self.name, self.folder, self.environment)
        env = self.allocation.environment(env) | {"IPYTHONDIR": str(self.folder)}
        env["IPP_ENABLE_CURVE"] = "1"
        where = [f"--profile-dir={self.folder}", "--cluster-id=dlguide"]
        owner = [str(os.getpid()), self.name, str(self.folder)]
        self._spawn([*module, "dlguide.cluster.watchdog", *owner], env)
        # By default a rank counts as present only after a second heartbeat, 3 s apart.
        beats = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]
        listening = self.allocation.listening()
        self._spawn([*module, "ipyparallel.controller", *where, *listening, *beats], env)
        self._wait_for(lambda: _complete(self.folder / CONNECTION), "the controller")
        shared_memory.remove_orphans()
        engine = [*module, "ipyparallel.engine", "--mpi", *where]
        self._spawn([*launcher, "-n", str(self.ranks), *engine], env)

        import ipyparallel

        self.client = ipyparallel.Client(str(self.folder / CONNECTION), timeout=START_S)
        self._wait_for(lambda: len(self.client.ids) == self.ranks, f"{self.ranks} ranks")
        from dlguide.cluster import engine as engine_side

        # ipyparallel puts the working directory first; behind all others it shadows no module.
        last = "import sys; sys.path[:] = [*filter(None, sys.path), '']"
        self.client[:].execute(last, silent=True, block=False)
        facts = (str(self.folder), asdict(self.plan), sys.path)
        made = self.client[:].apply_async(engine_side.prepare, *facts)
        self._wait_for(made.ready, f"{self.ranks} ranks")
        told = [{**each, "id": i} for each, i in zip(made.get(), self.client.ids, strict=True)]
        self.engines = sorted(told, key=lambda each: each["rank"])

    def _spawn(self, command: Sequence[str], env: dict[str, str]) -> None:
        with (self.folder / LAUNCHER_LOG).open("ab") as log:
            child = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.children.append(child)

    def _wait_for(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            ended = [child for child in self.children if child.poll() is not None]
            if ended or time.monotonic() > deadline:
                log = (self.folder / LAUNCHER_LOG).read_text(errors="replace").splitlines()
                why = "ended" if ended else f"did not answer within {START_S:.0f} s"
                raise RuntimeError(f"Cluster: {what} {why}.\n" + "\n".join(log[-15:]))
            time.sleep(0.02)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every rank and return what each of them returns.

        What the ranks print appears here, each line behind its rank; so does the progress of a
        training. When a rank fails in whatever way, all are stopped and the next call starts
        them again; variables in the ranks are lost then.

        Args:
            function: a function that can be pickled, also one of the notebook.
            args: its positional arguments, the same on all ranks.
            kwargs: its keyword arguments, the same on all ranks.

        Returns:
            list: one result per rank, in rank order.

        Raises:
            RankError: when a rank raised, left, died, stands still or waits for ever.
            KeyboardInterrupt: when the kernel was interrupted; the ranks are stopped.
        """
        return self.run_on(range(self.ranks), function, *args, **kwargs)

    def run_on(
        self, ranks: Sequence[int], function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a function on some of the ranks, as `run` does on all of them.

        Args:
            ranks: the ranks that take part (indices), each once.
            function: a function that can be pickled.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Returns:
            list: one result per rank that took part.

        Raises:
            RankError: as in `run`.
            ValueError: when there is no rank, one twice, or one that does not exist.
        """
        with self._ready(FunctionRun, ranks) as run:
            return run.results(function, args, kwargs)

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        ranks: Sequence[int] | None = None,
        tell: Callable[[Outcome], None] | None = None,
        beforehand: bool = False,
    ) -> list[Outcome]:
        """Call a function once for each item, alone on the first rank that is free, without MPI.

        Args:
            function: a function of one item that can be pickled.
            items: what it is called with.
            ranks: the ranks that share the tasks (indices); None for all.
            tell: called here with each outcome as soon as it is there.
            beforehand: deal the items out in equal blocks instead, at once.

        Returns:
            list: a `tasks.Outcome` for each item: what it returned or raised, rank and times.

        Raises:
            ValueError: when the function cannot be sent or there is no such rank.
            RankError: when a rank died; its `outcomes` are of the tasks that had ended.
        """
        packed = payload(function, items)
        with self._ready(TaskRun, ranks) as run:
            return run.share(packed, len(items), tell, beforehand)

    @contextmanager
    def _ready(self, kind: type, ranks: Sequence[int] | None) -> Iterator[Any]:
        ranks = checked_ranks(ranks, self.ranks)
        if self.client is None or not allocation.alive(self.engines):
            self.restart()
        self.run_number += 1
        run = kind(self.client, self.engines, self.folder, ranks, self.run_number)
        try:
            yield run
        finally:
            if not run.clean:
                self.stop()

    def restart(self) -> None:
        """Stop the ranks, whatever they are doing, and start them again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End all processes of this cluster; `run` starts them again when needed."""
        if self.folder is None:
            return
        if self.client is not None:
            self.client.close(linger=0)
            self.client = None
        processes.end(self.name)
        for child in self.children:
            child.wait()
        self.children.clear()
        self.engines = []
        processes.remove_folder(self.folder)
        self.folder = None
        self.started.discard(self)
        atexit.unregister(self.stop)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        if not self.engines:
            return f"Cluster of {self.ranks} ranks, stopped (run() starts them again)"
        how = f"{self.allocation}{f', threads {self.tuned}' if self.tuned else ''}"
        lines = [f"Cluster of {self.ranks} rank{'s'[: self.ranks != 1]}{how}"]
        lines.append(" rank      pid  threads  logical CPUs")
        lines += [
            f"{each['rank']:5}  {each['pid']:7}  {each['threads']:7}  "
            + ", ".join(str(cpu) for cpu in each["cpus"])
            for each in self.engines
        ]
        return "\n".join(lines)


def _complete(connection: Path) -> bool:
    """Tell whether the controller has written its connection file to the end."""
    try:
        return bool(json.loads(connection.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return False


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    shell = shell.get_ipython() if shell else None
    return shell is not None and hasattr(shell, "kernel")
