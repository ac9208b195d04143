"""`Cluster`: starts MPI ranks, runs functions on them, and leaves nothing behind."""

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

from dlguide.cluster import processes
from dlguide.cluster import rank as rank_side
from dlguide.cluster.environment import checked_environment, find_allocation, rank_environment
from dlguide.cluster.errors import LAUNCHER_LOG
from dlguide.cluster.supervision import RemoteCall
from dlguide.cluster.tasks import TaskPool, TaskResult, checked_ranks, payload
from dlguide.errors import require, require_count
from dlguide.machine import describe, threads, tuned_plans

START_S = 60.0
CONNECTION = "security/ipcontroller-dlguide-client.json"


class Cluster:
    """MPI ranks on this machine, or on the nodes of a Slurm job, that run functions and cells.

    The ranks are ipyparallel engines under one `mpiexec`; a thread plan divides the cores among
    them. On one machine they listen on loopback only; all messages are encrypted. No process and
    no temporary file of the ranks outlives this object or the process that made it, even after a
    SIGKILL. In a notebook a new cluster with magics stops the earlier ones and says so.

    Args:
        plan: a thread plan, or None to plan `ranks` on this machine.
        ranks: number of ranks if no plan is given; None for 2, or with tuned=True for as many as
            were fastest.
        oversubscribe: allow more ranks than cores.
        magics: in a notebook, let `%%px` run cells on these ranks.
        tuned: whether to use the plan that `dlguide tune` has found here: None if it has measured
            this number of ranks, False never, True always, with ranks=None also their number.
        environment: variables of the ranks in addition to this process's, such as
            {"HOROVOD_FUSION_THRESHOLD": "0"}; they override defaults, not the thread plan.
        inside: "slurm" for all nodes of the surrounding Slurm job; `plan` is that of one node.

    Raises:
        ValueError: if there are more ranks than cores and `oversubscribe` is False, if tuned=True
            and nothing was measured on this machine, or if `environment` or `inside` is invalid.
        MissingComponentError: if there is no mpiexec.
        RuntimeError: if the ranks do not start; the text ends with their log.
    """

    # A notebook's cell that is run again makes a new cluster before the old one is released.
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
        self.allocation = find_allocation(inside)
        if plan is None:
            ranks = self.allocation.ranks_per_node(ranks)
            plan, self.tuned = default_plan(ranks, oversubscribe, tuned)
        self.plan = plan
        self.environment = checked_environment(environment, plan)
        self.run_number = 0
        self.last_call: RemoteCall | None = None
        self.children: list[subprocess.Popen] = []
        if in_notebook() and magics:
            for earlier in list(self.started):
                print(f"The earlier cluster of {earlier.ranks} ranks was stopped.")
                earlier.stop()
        self.start()
        if magics and in_notebook():
            from dlguide.cluster.magics import register

            register(weakref.ref(self))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
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
        module = [sys.executable, "-P", "-m"]  # the working directory shadows no module
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
        processes.remove_orphaned_shared_memory()
        engine = [*module, "ipyparallel.engine", "--mpi", *where]
        self._spawn([*launcher, "-n", str(self.ranks), *engine], env)

        import ipyparallel

        self.client = ipyparallel.Client(str(self.folder / CONNECTION), timeout=START_S)
        self._wait_for(lambda: len(self.client.ids) == self.ranks, f"{self.ranks} ranks")
        # ipyparallel puts the working directory first; behind all others it shadows no module.
        last = "import sys; sys.path[:] = [*filter(None, sys.path), '']"
        self.client[:].execute(last, silent=True, block=False)
        facts = (str(self.folder), asdict(self.plan), sys.path)
        made = self.client[:].apply_async(rank_side.prepare, *facts)
        self._wait_for(made.ready, f"{self.ranks} ranks")
        engines = [{**each, "id": i} for each, i in zip(made.get(), self.client.ids, strict=True)]
        self.engines = sorted(engines, key=lambda each: each["rank"])

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
        """Call a function with the same arguments on every rank.

        The output of the ranks appears here, each line after its rank, and the progress of a
        training. If a rank fails, all are stopped and the next call starts them again; their
        variables are lost then.

        Args:
            function: a function that can be pickled, also one of a notebook's cell.

        Returns:
            list: one result per rank, in rank order.

        Raises:
            RankError: if a rank raises, exits, dies, is frozen or can never continue.
            KeyboardInterrupt: if the kernel was interrupted; the ranks are stopped.
        """
        return self.run_on(range(self.ranks), function, *args, **kwargs)

    def run_on(
        self, ranks: Sequence[int], function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a function on some of the ranks, as `run` does on all of them.

        Args:
            ranks: the ranks that take part (indices), each once.
            function: a function that can be pickled.

        Returns:
            list: one result for each of `ranks`.

        Raises:
            RankError: as in `run`.
            ValueError: if `ranks` is empty, or has an index twice or one that does not exist.
        """
        with self._ready(ranks) as call:
            return call.results(function, args, kwargs)

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        ranks: Sequence[int] | None = None,
        on_result: Callable[[TaskResult], None] | None = None,
        static: bool = False,
    ) -> list[TaskResult]:
        """Call a function once for each item, on the first free rank and without MPI.

        Args:
            function: a function of one item that can be pickled.
            items: its arguments.
            ranks: the ranks that share the tasks (indices); None for all.
            on_result: called in this process with each result as soon as it arrives.
            static: divide the items into equal blocks beforehand (static scheduling).

        Returns:
            list: a `TaskResult` for each item: its value or error, its rank and times.

        Raises:
            ValueError: if the function cannot be sent or there is no such rank.
            RankError: if a rank died; its `results` are those of the finished tasks.
        """
        packed = payload(function, items)
        with self._ready(ranks) as call:
            return TaskPool(call, on_result).run(packed, len(items), static)

    @contextmanager
    def _ready(self, ranks: Sequence[int] | None) -> Iterator[RemoteCall]:
        ranks = checked_ranks(ranks, self.ranks)
        if self.client is None or not processes.alive(self.engines):
            self.restart()
        self.run_number += 1
        call = RemoteCall(self.client, self.engines, self.folder, ranks, self.run_number)
        self.last_call = call
        try:
            yield call
        finally:
            if not call.clean:
                self.stop()

    def restart(self) -> None:
        """Stop the ranks at once and start them again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End all processes of this cluster; the next call starts them again."""
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


def default_plan(
    ranks: int | None = None, oversubscribe: bool = False, tuned: bool | None = None
) -> tuple[threads.ThreadPlan, str]:
    """Return the thread plan for this machine, and where it comes from if it was measured."""
    require(tuned in (True, False, None), "tuned", "be True, False or None", tuned)
    machine = describe()
    if ranks is not None or not tuned:
        ranks = require_count(2 if ranks is None else ranks, "ranks")
        # refuses too many ranks, whatever was measured
        plain = threads.plan(machine, ranks=ranks, oversubscribe=oversubscribe)
    found = None if tuned is False else tuned_plans.load(machine)
    best = found and found.best(machine, ranks, oversubscribe)
    if best:
        return best.plan(machine), str(found)
    whose = "this machine" if ranks is None else f"{ranks} ranks of this machine"
    then = "Run `dlguide tune` first."
    require(
        not tuned, "tuned", f"be False or None where nothing was measured for {whose}", tuned, then
    )
    return plain, ""


def _complete(connection: Path) -> bool:
    """Return whether the controller has written its whole connection file."""
    try:
        return bool(json.loads(connection.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return False


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    shell = shell.get_ipython() if shell else None
    return shell is not None and hasattr(shell, "kernel")
