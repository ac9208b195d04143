"""Run a use case: check, train on the ranks, measure, write, compare."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from time import perf_counter
from types import NoneType
from typing import Any, NamedTuple

from dlcourse.usecases import plan as plans
from dlcourse.usecases import speedup as speedups
from dlcourse.usecases.report import Finding
from dlguide.cluster import Cluster
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require, require_known
from dlguide.files import require_writable

# The settings of the training in the folder.
RECORD = "settings.json"
# What `--plan` found, beside which a later run puts what it took.
PLAN = "plan.json"
# A training may continue for longer and on another device: its checkpoint judges that itself.
FREE = ("epochs", "device")
KINDS = {bool: "true or false", Real: "a number", str | Path: "text", NoneType: "null"}


def _kind(value: Any) -> str:
    known = (kind for types, kind in KINDS.items() if isinstance(value, types))
    return next(known, type(value).__name__)


class Option(NamedTuple):
    """A setting of a use case: its default, and the type of its values (several in a tuple)."""

    default: Any
    types: type | tuple[type, ...]

    @property
    def kinds(self) -> set[str]:
        """The kinds of its values in words; "null" if None is one of them."""
        types = self.types if isinstance(self.types, tuple) else (self.types,)
        return {_kind(each()) for each in types} | ({"null"} if self.default is None else set())


@dataclass(frozen=True, eq=False)
class Result:
    """The results of a use case: the ranks' outcomes, and what was measured, compared and written.

    `planned` says what the run took beside its plan; empty without a plan.
    """

    outcomes: list[Any]
    speedup: speedups.Speedup | None
    findings: tuple[Finding, ...]
    paths: tuple[Path, ...]
    planned: str


def assigned(words: Sequence[str], options: Mapping[str, Option] | None = None) -> dict[str, Any]:
    """Read settings such as "net=densenet121" or "batch_per_rank=16".

    >>> assigned(["net=vgg16", "batch_per_rank=16", "warm=true"])
    {'net': 'vgg16', 'batch_per_rank': 16, 'warm': True}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        require(bool(equals) and name.isidentifier(), "set", "be NAME=VALUE", word)
        require(name not in found, "set", "name each setting once", word)
        try:
            read = json.loads(value)
        except json.JSONDecodeError:
            read = value
        kinds = options[name].kinds if name in (options or {}) else set()
        text = kinds - {"null"} == {"text"} and read is not None
        found[name] = value if text else read
    return found


def check(
    case: Any, name: str, real: Path | None, own: Mapping[str, Any], speedup: bool,
    plan: bool = False,
) -> None:  # fmt: skip
    """Raise a ValueError for what cannot work, before ranks start.

    Args:
        case: the module of a use case.
        name: of the use case, for the messages.
        real: folder or file of the real data; None for the case's own.
        own: settings, by the names in the case's `OPTIONS`.
        speedup: whether the step is to be timed.
        plan: whether the run is to be planned.
    """
    known = case.OPTIONS
    for each, value in own.items():
        then = f"{name} has no such setting; it has: {', '.join(known) or 'none'}."
        if each in FREE:
            require(each in known, each, f"not be given for {name}", value, then)
        kinds = known[require_known(each, known, "set")].kinds
        require(_kind(value) in kinds, each, f"be {' or '.join(sorted(kinds))}", value)
    must = f"not be given for {name}"
    then = "It has no step that could be timed."
    require(not speedup or hasattr(case, "step"), "speedup", must, speedup, then)
    then = "It takes no longer than a plan would."
    require(not plan or hasattr(case, "rehearse"), "plan", must, plan, then)
    if real is not None:
        must = "be a file or folder that is there"
        require(real.exists(), "real", must, str(real), "Nothing was trained.")
    case.check(real=None if real is None else str(real), **own)


def require_settings(
    case: Any, output: Path, real: Path | None, seed: int, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings; raise if the folder holds a training with other ones."""
    defaults = {name: each.default for name, each in case.OPTIONS.items()}
    plain = {"real": _where(real), "seed": seed, **defaults, **own}
    settings, path = json.loads(json.dumps(plain, default=str)), Path(output) / RECORD
    if not (_begun(output) and path.is_file()):
        return settings
    before = json.loads(path.read_text(encoding="utf-8"))
    then = "Choose another output folder, or delete this one."
    for name in settings:
        same = name in FREE or settings[name] == before.get(name, settings[name])
        must = f"be {before.get(name)!r} as in the training that {output} holds"
        require(same, name, must, settings[name], then)
    return settings


def _begun(output: Path) -> bool:
    """Whether there is a checkpoint to resume from; a case may keep none."""
    folder = Path(output) / "checkpoint"
    return folder.is_dir() and any(folder.iterdir())


def _where(real: Path | None) -> str | None:
    return None if real is None else str(Path(real).absolute())


def run(
    case: Any,
    cluster: Cluster,
    output: Path,
    real: Path | None = None,
    seed: int = 0,
    own: Mapping[str, Any] | None = None,
    speedup: bool = False,
    begun_s: float | None = None,
) -> Result:
    """Train a use case on ranks, write the results, and compare them with the guide.

    Args:
        case: the module of a use case: `OPTIONS`, `check`, `train`, `write`, and optionally
            `findings`, `step`, `rehearse`.
        cluster: the ranks.
        output: folder for results; checkpoints go to its `checkpoint`, from which a second call
            resumes, and `RECORD` holds the settings.
        real: as in `check`.
        seed: of weights, order and synthetic data.
        own: as in `check`.
        speedup: whether to time the ranks' step against one process's, with its prediction.
        begun_s: `perf_counter` before the ranks were started, for a comparison with the plan.
    """
    output, own = Path(output), dict(own or {})
    require_writable(output, "output")
    settings, where = require_settings(case, output, real, seed, own), _where(real)
    resumed = _begun(output)
    if not resumed:
        _record(output / RECORD, settings)  # now, because the training may be interrupted
    checkpoint = str((output / "checkpoint").absolute())
    outcomes = cluster.run(case.train, real=where, seed=seed, checkpoint=checkpoint, **own)
    _record(output / RECORD, settings)
    paths = list(case.write(outcomes, output))
    planned, timed, findings = "", None, ()
    if begun_s is not None and not resumed:
        planned = _beside_plan(output, settings, perf_counter() - begun_s, cluster)
    if speedup:
        print("Timing one step: ranks, one process, and the parts of a prediction.", flush=True)
        timed = speedups.measure(timed_step(case, own, where, seed, cluster.ranks), cluster)
        paths.append(_record(output / "speedup.json", asdict(timed)))
    if hasattr(case, "findings"):
        findings = tuple(case.findings(outcomes, speedup=timed))
        paths.append(_record(output / "findings.json", [asdict(each) for each in findings]))
    return Result(outcomes, timed, findings, tuple(paths), planned)


def plan(
    case: Any, cluster: Cluster, output: Path, real: Path | None, seed: int,
    own: Mapping[str, Any], begun_s: float, watts: float | None = None,
) -> plans.Plan:  # fmt: skip
    """Measure what a run from its start would need, and write it to the output folder."""
    given = {"real": _where(real), "seed": seed, **own}
    found = plans.measure(case, cluster, output, given, begun_s, watts)
    settings = require_settings(case, output, real, seed, own)
    _record(output / PLAN, {"settings": settings, **found.as_dict()})
    return found


def _beside_plan(output: Path, settings: Any, took_s: float, cluster: Cluster) -> str:
    """What a run took, beside the plan of the same settings and ranks."""
    path = output / PLAN
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if before.get("settings") != settings or before["ranks"] != cluster.ranks:
        return ""
    low, high = map(plans.duration, before["interval"])
    return (
        f"Took {plans.duration(took_s)}, planned {plans.duration(before['seconds'])} "
        f"({low} to {high}); {plans.size(max(cluster.run(plans.peak_nbytes)))} per rank, planned "
        f"{plans.size(before['nbytes'])}."
    )


def timed_step(case: Any, own: Mapping[str, Any], real: str | None, seed: int, ranks: int) -> Any:
    """Return the case's step for `speedup.measure`, with the settings of its training.

    The step has one rank's share of a global batch, so it gets the number of ranks too.
    """
    known = inspect.signature(case.step).parameters
    every = any(one.kind is one.VAR_KEYWORD for one in known.values())
    given = {**own, "real": real, "seed": seed, "ranks": ranks}
    return case.step(
        **{name: value for name, value in given.items() if name in known or (every and name in own)}
    )


def _record(path: Path, plain: Any) -> Path:
    path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return path


@contextmanager
def shared_folder(
    checkpoint: str | os.PathLike | None, comm: Communicator, seen_by_all: bool = False
) -> Iterator[Path]:
    """Yield the folder of a training's checkpoints, or a temporary one of rank 0."""
    if checkpoint is not None:
        yield Path(checkpoint)
        return
    mine = ""
    with comm.agree_or_raise():
        if comm.rank == 0:
            mine = tempfile.mkdtemp(prefix="dlguide-usecase-")
    folder = comm.allgather(mine)[0]
    try:
        with comm.agree_or_raise():
            must = f"be a folder that all ranks see; rank {comm.rank} does not see {folder}"
            then = "Name one on a shared disk."
            seen = Path(folder).is_dir() or not seen_by_all
            require(seen, "checkpoint", must, checkpoint, then)
        yield Path(folder)
    finally:
        # ranks fail together, so none still reads
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
