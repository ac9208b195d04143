"""What a run of a use case will need, from a minute of its own work on the ranks that will do it.

A case that can be planned has `rehearse(work, real, seed, **own)`, called on all ranks with a
`Rehearsal`: it does a little of each part of `train`, by the same code, and says how often the run
does it. The predicted time is

    T = sum over parts of (once + count * mean of the measured times)

and its 95 % interval that of the means (blocks of consecutive times, Student's t).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from dlguide import models
from dlguide.cluster import Cluster
from dlguide.data.input_pipeline import FileSource, Pipeline
from dlguide.machine import describe

SECONDS = 40.0  # of steps, in all trainings of a case; building and tracing nets come on top
_TRACED = 3  # first steps of a training: tracing, connections, filled queues
_LEAST = 4  # steps that count, however long they take
_BLOCKS = 8  # of consecutive times, for the interval
_READ_S = 3.0
_POWER = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Part:
    """A part of a run: `count` times what was measured (s), and `once_s` on top of it."""

    name: str
    count: float
    seconds: tuple[float, ...]
    once_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """Of the measured times (s)."""
        return float(np.mean(self.seconds))

    @property
    def total_s(self) -> float:
        """In the whole run (s)."""
        return self.once_s + self.count * self.mean_s

    @property
    def half_s(self) -> float:
        """Half of the 95 % interval of `total_s`; 0 if it was measured once (s)."""
        from scipy.stats import t

        blocks = [np.mean(one) for one in np.array_split(self.seconds, _BLOCKS) if len(one)]
        if len(blocks) < 2:
            return 0.0
        error = np.std(blocks, ddof=1) / np.sqrt(len(blocks))
        return float(self.count * t.ppf(0.975, len(blocks) - 1) * error)


@dataclass(frozen=True)
class Plan:
    """What a run will need.

    Args:
        ranks: of the run.
        measured_s: how long measuring took (s).
        parts: of the run, by the slowest rank.
        nbytes: memory of the rank that needs most: its peak, and the caches that the run fills.
        gpu_nbytes: the same of its GPU; 0 without.
        net_nbytes: predicted for the largest step by `models.memory`; a lower bound.
        machine_nbytes: memory of this node.
        disk_nbytes: that the run writes.
        free_nbytes: of the output folder.
        needed_opens: files per second that the steps consume; 0 if they open none.
        given_opens: files per second that the folder gives to all ranks.
        watts: mean power of this node while it was measured, or as stated; None if unknown.
        assumed: whether `watts` was stated.
    """

    ranks: int
    measured_s: float
    parts: tuple[Part, ...]
    nbytes: int
    gpu_nbytes: int
    net_nbytes: int
    machine_nbytes: int
    disk_nbytes: int
    free_nbytes: int
    needed_opens: float
    given_opens: float
    watts: float | None
    assumed: bool

    @property
    def seconds(self) -> float:
        """From the start of the ranks to the results (s)."""
        return sum(part.total_s for part in self.parts)

    @property
    def interval(self) -> tuple[float, float]:
        """Of `seconds`, 95 % (s)."""
        half = float(np.hypot.reduce([part.half_s for part in self.parts]))
        return self.seconds - half, self.seconds + half

    @property
    def kwh(self) -> float | None:
        """Of this node (kWh); None if its power is unknown."""
        return None if self.watts is None else self.watts * self.seconds / 3.6e6

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found = {"seconds": self.seconds, "interval": self.interval, "kwh": self.kwh}
        return found | asdict(self)

    def __str__(self) -> str:
        low, high = map(duration, self.interval)
        every = self.ranks * self.nbytes
        net = f"; predicted for the net alone: at least {size(self.net_nbytes)}"
        lines = [f"Plan, from {self.measured_s:.0f} s on {self.ranks} rank{'s'[: self.ranks != 1]}"]
        for part in self.parts:
            once = f" + {duration(part.once_s)} once" if part.once_s > 0.05 * part.total_s else ""
            lines.append(f"  {part.name:28} {part.count:9,.5g} x {duration(part.mean_s):9}{once}")
        lines += [
            f"time    {duration(self.seconds)} (95 %: {low} to {high}; other work on the machine "
            "comes on top)",
            f"memory  {size(self.nbytes)} per rank, {size(every)} of this node's "
            f"{size(self.machine_nbytes)}{net if self.net_nbytes else ''}",
            f"disk    {size(self.disk_nbytes)}; {size(self.free_nbytes)} are free",
        ]
        if self.gpu_nbytes:
            lines.append(f"GPU     {size(self.gpu_nbytes)} per rank")
        if every > self.machine_nbytes:
            lines.append("        More than there is: use fewer ranks or a smaller batch.")
        if self.needed_opens:
            lines.append(
                f"reads   steps take {self.needed_opens:,.3g} files per second, the folder gives "
                f"{self.given_opens:,.3g}"
            )
            if self.given_opens < 1.5 * self.needed_opens:
                lines.append("        It is too slow: pack the files once into TFRecords.")
        if self.kwh is None:
            then = "State it: --watts-per-node."
            lines.append(f"energy  unknown: the power of this machine cannot be read. {then}")
        else:
            how = "assumed" if self.assumed else "measured"
            lines.append(f"energy  {self.kwh:.3g} kWh per node at {self.watts:.0f} W ({how})")
        return "\n".join(lines)


class Rehearsal:
    """What one rank measures; all ranks make the same calls.

    What the parts write goes to `folder`, which all ranks see; the steps of all trainings get
    `seconds`.
    """

    def __init__(self, comm: Any, folder: Path, seconds: float) -> None:
        self.comm, self.folder, self.seconds = comm, folder, seconds
        self.parts: list[Part] = []
        self.cache_nbytes = self.disk_nbytes = self.net_nbytes = 0
        self.opens = (0.0, 0.0)
        self.gpu_watts = 0.0

    @contextmanager
    def once(self, name: str, count: float = 1) -> Iterator[None]:
        """Time a block that the run does `count` times as much of."""
        begin = perf_counter()
        yield
        self.parts.append(Part(name, count, (perf_counter() - begin,)))

    def repeat(
        self, name: str, count: float, function: Callable[[], Any], share: float = 0.0
    ) -> None:
        """Time at least three calls, for a share of `seconds`, of which the run makes `count`.

        The first one does not count; all ranks call.
        """
        seconds, turns = [], 3
        while len(seconds) < turns:
            begin = perf_counter()
            function()
            seconds.append(perf_counter() - begin)
            if len(seconds) == 2:
                turns = max(3, 1 + self._agreed(share, seconds[-1]))
        first, *rest = seconds
        self.parts.append(Part(name, count, tuple(rest), max(0.0, first - float(np.mean(rest)))))

    def _agreed(self, share: float, each_s: float) -> int:
        """How many times fit into a share of `seconds`; as the slowest rank has it."""
        return int(share * self.seconds / max(map(float, self.comm.allgather(repr(each_s)))))

    def fit(
        self, name: str, share: float = 1.0, paid: float | None = None, starts: int = 1,
        **arguments: Any,
    ) -> None:  # fmt: skip
        """Do some steps of a `training.fit` with these arguments, evaluation and checkpoint.

        The run has `starts` such trainings, of `paid` epochs together (None: of `arguments`);
        their steps get a `share` of `seconds`.
        """
        from dlguide.training.config import TrainingJob
        from dlguide.training.trainer import Trainer

        for unused in ("comm", "on_result"):
            arguments.pop(unused, None)
        job = TrainingJob(**arguments)
        epochs = job.epochs if paid is None else paid
        job, tested = self._shortened(job, name)
        with closing(Trainer(job, lambda **_: None)) as trainer:
            trainer.prepare(self.comm)
            length = trainer.steps_per_epoch
            with trainer.device():
                seen = self._steps(trainer, 0, min(_TRACED, length))
                before = len(trainer.step_s)
                count = max(_LEAST, self._agreed(share, trainer.step_s[-1]))
                count = min(count, length * job.epochs)
                for epoch in range(max(1, count // length)):
                    seen |= self._steps(trainer, epoch + 1, min(count, length))
                self.gpu_watts = max(self.gpu_watts, _gpu_watts())
            part = trainer.step_s[before:]
            # a part of an epoch begins with a start of the pipeline and ends with a short batch
            steady = tuple(part[1:-1] if count < length and len(part) > 3 else part)
            self._note(trainer, name, epochs, starts, steady, tested)
        self._opens(job.data, trainer, before)
        if isinstance(job.data, Pipeline) and seen:
            self.cache_nbytes += round(job.data.cached_nbytes * (job.data.samples / len(seen) - 1))
        memory = models.memory(trainer.model, int(job.batch_per_rank), "momentum")
        self.net_nbytes = max(self.net_nbytes, memory.total)

    def _shortened(self, job: Any, name: str) -> tuple[Any, float]:
        """The training with its checkpoints in our folder and a short test; what share that is."""
        config, tested, saving = job.config, 1.0, job.checkpoint
        if isinstance(config.test, Pipeline) and config.evaluate:
            few = min(config.test.samples, 4 * self.comm.size * int(job.batch_per_rank))
            tested = few / config.test.samples
            config = replace(config, test=config.test.replace(samples=few))
        if saving is not None:
            saving = replace(saving, folder=self.folder / name.replace(" ", "-"))
        return replace(job, config=config, checkpoint=saving), tested

    def _steps(self, trainer: Any, epoch: int, count: int) -> set[int]:
        """Take the last steps of an epoch and end it; return the samples that were read."""
        length = trainer.steps_per_epoch
        trainer.start = replace(trainer.start, epoch=epoch, step=length - count)
        if count < length:
            trainer.workers.begin_epoch(trainer.job.config.seed, epoch * length)
        trainer.train_epoch(epoch)
        trainer.end_epoch(epoch)
        parts = trainer.feed.steps(epoch)[length - count :]
        return {sample for one in parts for sample in np.asarray(one.indices).tolist()}

    def _note(
        self, trainer: Any, name: str, epochs: float, starts: int, steady: tuple[float, ...],
        tested: float,
    ) -> None:  # fmt: skip
        """Make the parts of a training out of what its trainer measured."""
        phases: dict[str, list[float]] = {}
        for phase, begin, end in trainer.clock.phases:
            phases.setdefault(phase, []).append(end - begin)
        first, steps = trainer.step_s[:_TRACED], trainer.steps_per_epoch * epochs
        traced = sum(first) - len(first) * float(np.mean(steady))
        once = sum(phases["setup"]) + max(0.0, traced)
        self.parts.append(Part(f"{name}: step", steps, steady, starts * once))
        if "evaluate" in phases:
            traced, *rest = phases["evaluate"]
            once = max(0.0, traced - float(np.mean(rest)))
            part = Part(f"{name}: evaluation", epochs / tested, tuple(rest), starts * once)
            self.parts.append(part)
        if "checkpoint" in phases:
            saving = trainer.job.checkpoint
            count = steps / (saving.every_steps or trainer.steps_per_epoch)
            rest = phases["checkpoint"][1:]
            self.parts.append(Part(f"{name}: checkpoint", count, tuple(rest)))
            sizes = [one.stat().st_size for one in Path(saving.folder).glob("*.dlguide")]
            # one more than are kept while the next is written
            self.disk_nbytes += round(max(sizes, default=0) * min(starts * saving.keep + 1, count))

    def _opens(self, data: Any, trainer: Any, before: int) -> None:
        """Measure how many files per second the folder gives, if each sample is a file."""
        files = getattr(data, "source", None)
        while not isinstance(files, FileSource):
            if not hasattr(files, "source"):
                return
            files = files.source
        working = np.subtract(trainer.step_s[before:], trainer.wait_s[before:])
        needed = self.comm.size * trainer.job.batch_per_rank / float(np.mean(working))
        order = np.random.default_rng(self.comm.rank).permutation(files.count)
        self.comm.allgather("")  # all at once
        begin, done = perf_counter(), 0
        while done < len(order) and perf_counter() - begin < _READ_S:
            files.read(order[done : done + 1])
            done += 1
        rate = done / (perf_counter() - begin)
        self.opens = max(self.opens, (needed, float(sum(self.comm.allreduce_sum([rate])))))


def peak_nbytes() -> int:
    """The most memory that this process has had (bytes)."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def _gpu_peak_nbytes() -> int:
    import tensorflow as tf

    if not tf.config.get_visible_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def _on_rank(
    rehearse: Callable[..., None], folder: str, seconds: float, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Rehearse on this rank; return what was measured."""
    from dlguide.training import connect

    work = Rehearsal(connect(), Path(folder), seconds)
    work.comm.allgather("")  # what was loaded until now belongs to the start
    energy, begin = _joules(), perf_counter()
    rehearse(work, **given)
    spent, now = perf_counter() - begin, _joules()
    watts = None if energy is None or now is None else (now - energy) / spent + work.gpu_watts
    return {
        "parts": work.parts, "nbytes": peak_nbytes() + work.cache_nbytes, "opens": work.opens,
        "gpu": _gpu_peak_nbytes(), "net": work.net_nbytes, "disk": work.disk_nbytes,
        "watts": watts, "seconds": spent,
    }  # fmt: skip


def measure(
    case: Any, cluster: Cluster, output: Path, given: Mapping[str, Any], begun_s: float,
    watts: float | None = None, seconds: float = SECONDS,
) -> Plan:  # fmt: skip
    """Rehearse a case on the ranks of a cluster that has just been started.

    Args:
        case: a use case with `rehearse`.
        cluster: the ranks.
        output: folder of the run; checkpoints are tried in a folder inside it that is removed.
        given: real, seed and the case's own settings.
        begun_s: `perf_counter` before the ranks were started.
        watts: mean power of a node; None to measure it where that is possible.
        seconds: for the steps of all trainings (s).
    """
    folder = output.absolute() / "plan"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ranks = cluster.run(_on_rank, case.rehearse, str(folder), seconds, dict(given))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took = perf_counter() - begun_s
    most = {name: max(one[name] for one in ranks)
            for name in ("seconds", "nbytes", "gpu", "net", "disk")}  # fmt: skip
    parts = [max(same, key=lambda part: part.total_s)
             for same in zip(*(one["parts"] for one in ranks), strict=True)]  # fmt: skip
    return Plan(
        ranks=len(ranks),
        measured_s=took,
        parts=(Part("start of the ranks", 1, (took - most["seconds"],)), *parts),
        nbytes=most["nbytes"],
        gpu_nbytes=most["gpu"],
        net_nbytes=most["net"],
        machine_nbytes=describe().memory_bytes,
        disk_nbytes=most["disk"],
        free_nbytes=shutil.disk_usage(output).free,
        needed_opens=ranks[0]["opens"][0],
        given_opens=ranks[0]["opens"][1],
        watts=ranks[0]["watts"] if watts is None else watts,
        assumed=watts is not None,
    )


def _joules() -> float | None:
    """Energy that the sockets of this node have taken (J); None if it cannot be read."""
    total, found = 0, False
    for one in _POWER.glob("intel-rapl:[0-9]*"):
        if one.name.count(":") == 1:  # a socket, not a part of it
            with suppress(OSError, ValueError):
                total, found = total + int((one / "energy_uj").read_text()), True
    return 1e-6 * total if found else None


def _gpu_watts() -> float:
    """Power of this node's GPUs at this moment (W); 0 without."""
    ask = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=5).stdout
        return sum(float(line) for line in said.splitlines())
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0


def duration(seconds: float) -> str:
    """Write a time with two units at most.

    >>> [duration(one) for one in (0.0123, 4.56, 123, 98_765, 1e7)]
    ['12.3 ms', '4.56 s', '2 min 3 s', '27 h 26 min', '116 days']
    """
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 100 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:,.3g} days"


def size(nbytes: float) -> str:
    """Write a number of bytes.

    >>> size(1_234_000_000)
    '1.23 GB'
    """
    unit, factor = ("GB", 1e9) if nbytes >= 1e9 else ("MB", 1e6)
    return f"{nbytes / factor:.3g} {unit}"
