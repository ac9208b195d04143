"""How fast an input pipeline and a training step run together, from what each stage takes alone.

A pipeline is a line of stages, the training step the last of them. Some stages take turns on one
thread; a parallel map or a prefetch gives the stages before and after it threads of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlguide.errors import require, require_positive

TRAIN = "train"
_WAITING = 0.25  # a stage waits when its threads compute less than this share of its time
_CALLS_IN_FLIGHT = 8  # of a stage that waits: it needs no core meanwhile
_ONE_CALL = ("batch",)  # stages without a setting for calls at once
_WORTH = 1.05  # a remedy that brings less is not named


@dataclass(frozen=True)
class Stage:
    """One stage of the line, measured alone on ready inputs."""

    name: str
    wall_s: float
    cpu_s: float
    worker: int
    out_nbytes: float = 0.0
    calls: int = 1

    @property
    def samples_per_s(self) -> float:
        """How many samples this stage alone handles (1/s)."""
        return 1 / self.wall_s if self.wall_s > 0 else float("inf")

    @property
    def waits(self) -> bool:
        """Whether it mostly waits, for a disk or the network, and leaves the cores free."""
        return self.cpu_s < _WAITING * self.wall_s


@dataclass(frozen=True)
class Remedy:
    """A change of the pipeline and what it should bring."""

    what: str
    samples_per_s: float


def seconds_per_sample(stages: Sequence[Stage], cores: float) -> float:
    """Predict the time per sample of a line of stages that runs as a whole.

    Stages on one thread take turns, so their times add up. Threads run beside each other, so
    the slowest sets the pace, as the slowest machine of an assembly line does. And no more can
    be computed than the cores give:

        t = max(max over threads of the sum of wall_s, sum of cpu_s / cores)

    Leaves out that buffers between stages run empty when times vary, and that stages slow each
    other down in caches and memory.

    Source:
        The bound of asymptotic bottleneck analysis: Denning and Buzen, ACM Computing Surveys
        10 (1978), 225-261.

    >>> line = [Stage("read", 2e-3, 0.1e-3, 0), Stage("train", 3e-3, 3e-3, 0)]
    >>> seconds_per_sample(line, cores=1)
    0.005
    >>> seconds_per_sample([line[0], replace(line[1], worker=1)], cores=2)
    0.003
    """
    return max(_pace(stages, cores))


def limited_by_cores(stages: Sequence[Stage], cores: float) -> bool:
    """Say whether the cores together set the pace, and not one thread."""
    threads_s, cores_s = _pace(stages, cores)
    return cores_s > threads_s


def slowest(stages: Sequence[Stage], cores: float) -> Stage:
    """Find the stage that holds the others back.

    Where one thread sets the pace, it is the stage that takes most of that thread's time. Where
    the cores do, it is the one that takes most of their time.

    Args:
        stages: all that a sample passes through, in order.
        cores: cores that this process may use (count).

    Returns:
        Stage: one of them.
    """
    if limited_by_cores(stages, cores):
        return max(stages, key=lambda stage: stage.cpu_s)
    times = _times(stages)
    pace = max(times, key=times.__getitem__)
    return max((stage for stage in stages if stage.worker == pace), key=lambda one: one.wall_s)


def without(stages: Sequence[Stage], *names: str) -> tuple[Stage, ...]:
    """Give the same line with stages that take no time."""
    return tuple(
        replace(one, wall_s=0.0, cpu_s=0.0) if one.name in names else one for one in stages
    )


def remedies(
    stages: Sequence[Stage], cores: float, samples: int = 0, memory_nbytes: float = 0.0
) -> tuple[Remedy, ...]:
    """Work out what each usual change of an input pipeline would bring.

    Prefetch before the training step; several calls of one stage at once, where a pipeline has a
    setting for it; a cache after a stage, where the samples fit into half of the memory; more
    cores. Left out is what brings less than 5 %, and all that a change costs, such as the first
    epoch that fills the cache.
    """
    now_s = seconds_per_sample(stages, cores)
    changed: dict[str, tuple[Sequence[Stage], float]] = {}
    if any(one.worker == stages[-1].worker for one in stages[:-1]):
        beside = replace(stages[-1], worker=stages[-1].worker + 1)
        changed["prefetch before the training step"] = ((*stages[:-1], beside), cores)
    for place, one in enumerate(stages[:-1]):
        if one.name not in _ONE_CALL:
            line, calls = _in_parallel(stages, place, cores)
            changed[f"{calls} calls of {one.name} at once"] = (line, cores)
        done = [stage.name for stage in stages[: place + 1]]
        if 0 < samples * one.out_nbytes <= memory_nbytes / 2:
            changed[f"cache after {one.name}"] = (without(stages, *done), cores)
    if limited_by_cores(stages, cores):
        changed["twice as many cores"] = (stages, 2 * cores)
    found = [
        Remedy(what, 1 / after_s)
        for what, (line, count) in changed.items()
        if 0 < (after_s := seconds_per_sample(line, count)) * _WORTH < now_s
    ]
    return tuple(sorted(found, key=lambda remedy: -remedy.samples_per_s))


def _in_parallel(
    stages: Sequence[Stage], place: int, cores: float
) -> tuple[tuple[Stage, ...], int]:
    # a parallel map has threads of its own, and so have the stages before and after it
    one = stages[place]
    calls = _CALLS_IN_FLIGHT if one.waits else max(2, round(cores))
    faster = max(1.0, calls / one.calls)
    before = [replace(stage, worker=3 * stage.worker) for stage in stages[:place]]
    here = replace(one, wall_s=one.wall_s / faster, worker=3 * one.worker + 1)
    after = [
        replace(stage, worker=3 * stage.worker + 2 * (stage.worker == one.worker))
        for stage in stages[place + 1 :]
    ]
    return (*before, here, *after), calls


def _pace(stages: Sequence[Stage], cores: float) -> tuple[float, float]:
    require(len(stages) > 0, "stages", "hold at least one Stage", stages)
    require_positive(cores, "cores")
    return max(_times(stages).values()), sum(stage.cpu_s for stage in stages) / cores


def _times(stages: Sequence[Stage]) -> dict[int, float]:
    times: dict[int, float] = {}
    for stage in stages:
        times[stage.worker] = times.get(stage.worker, 0.0) + stage.wall_s
    return times
