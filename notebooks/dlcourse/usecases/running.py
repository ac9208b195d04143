"""One road for every use case: check, train on the ranks, measure, write, compare."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from dlcourse.usecases import speedup as speedups
from dlcourse.usecases.case import Finding
from dlguide.cluster import Cluster
from dlguide.errors import require, require_known
from dlguide.files import require_writable

# What the road itself hands to `train`; the rest of its arguments are the user's.
TAKEN = ("real", "seed", "checkpoint", "report", "parallel")
# What was asked for when the training in the folder began.
RECORD = "asked.json"
# A training may go on for longer and on another device: its checkpoint judges that itself.
FREE = ("epochs", "device")
# The kinds of value that are told apart, by their names in annotations.
KINDS = {"int": "a number", "float": "a number", "bool": "true or false", "str": "text",
         "PathLike": "text"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of a use case.

    Args:
        outcomes: what `train` returned, one for each rank.
        speedup: of the ranks over one process; None when not measured.
        findings: beside the guide's; empty where the guide has nothing to compare.
        paths: the files that were written.
    """

    outcomes: list[Any]
    speedup: speedups.Speedup | None
    findings: tuple[Finding, ...]
    paths: tuple[Path, ...]


def options(case: Any) -> dict[str, Any]:
    """List what a use case can be told beside data, seed and checkpoint, and its defaults."""
    own = {
        name: one.default
        for name, one in inspect.signature(case.train).parameters.items()
        if name not in TAKEN and one.kind is not one.VAR_KEYWORD
    }
    return own | dict(getattr(case, "OPTIONS", {}))


def kinds(case: Any) -> dict[str, set[str]]:
    """List what kind of value each setting takes, by annotation or else by default."""
    arguments = inspect.signature(case.train).parameters
    found = {}
    for name, default in options(case).items():
        said = arguments[name].annotation if name in arguments else inspect.Parameter.empty
        if said is inspect.Parameter.empty:
            said = Any if default is None else type(default)
        said = said.__name__ if isinstance(said, type) else str(said)
        names = set(re.findall(r"\w+", said)) - {"os"}
        told = names <= {*KINDS, "None"}
        found[name] = {KINDS.get(each, "null") for each in names} if told else set()
    return found


def assigned(words: Sequence[str], case: Any = None) -> dict[str, Any]:
    """Read settings such as "net=densenet121" or "batch=16".

    >>> assigned(["net=vgg16", "batch=16", "warm=true"])
    {'net': 'vgg16', 'batch': 16, 'warm': True}
    """
    found: dict[str, Any] = {}
    known = {} if case is None else kinds(case)
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        require(bool(equals) and name.isidentifier(), "set", "be NAME=VALUE", word)
        require(name not in found, "set", "name each setting once", word)
        try:
            read = json.loads(value)
        except json.JSONDecodeError:
            read = value
        text = known.get(name, set()) - {"null"} == {"text"} and read is not None
        found[name] = value if text else read
    return found


def check(case: Any, name: str, real: Path | None, own: Mapping[str, Any], speedup: bool) -> None:
    """Refuse what cannot work, before ranks start.

    Args:
        case: the module of a use case.
        name: of the use case, for the words.
        real: folder or file of the real data; None for what comes with the case.
        own: further arguments of `train`.
        speedup: whether the step is going to be timed.

    Raises:
        ValueError: when the case does not know a setting or it is of another kind, the case has
            no step to be timed, or the data is not there or not what it must be.
    """
    known, kind = options(case), kinds(case)
    for each in own:
        then = f"{name} has no such setting; it has: {', '.join(known) or 'none'}."
        if each in ("epochs", "device"):
            require(each in known, each, f"not be given for {name}", own[each], then)
        require_known(each, known, "set")
        fits = not kind[each] or _kind(own[each]) in kind[each]
        require(fits, each, f"be {' or '.join(sorted(kind[each]))}", own[each])
    must, then = f"not be given for {name}", "It has no step that could be timed."
    require(not speedup or hasattr(case, "step"), "speedup", must, speedup, then)
    if real is not None:
        must = "be a file or folder that is there"
        require(real.exists(), "real", must, str(real), "Nothing was trained.")
    if hasattr(case, "check"):
        case.check(real=None if real is None else str(real), **own)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Real):
        return "a number"
    return "text" if isinstance(value, str | Path) else type(value).__name__


def require_asked(
    case: Any, output: Path, real: Path | None, seed: int, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Refuse to go on from a training that was asked for otherwise.

    Its numbers would be taken for those of the new settings.
    """
    plain = {"real": _where(real), "seed": seed, **options(case), **own}
    asked = json.loads(json.dumps(plain, default=str))
    path = Path(output) / RECORD
    if not (_begun(output) and path.is_file()):
        return asked
    before = json.loads(path.read_text(encoding="utf-8"))
    then = "Choose another output folder, or delete this one."
    for name in asked:
        same = name in FREE or asked[name] == before.get(name, asked[name])
        must = f"be {before.get(name)!r} as in the training that {output} holds"
        require(same, name, must, asked[name], then)
    return asked


def _begun(output: Path) -> bool:
    """Tell whether there is something to go on from; a case may keep nothing."""
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
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Train a use case on ranks, write what came out, and compare it with the guide.

    Args:
        case: the module of a use case: `train`, `write`, and where it has them `findings`, `step`.
        cluster: the ranks.
        output: folder for results; checkpoints go to its `checkpoint`, from where a second call
            goes on, and `RECORD` says what was asked for.
        real: as in `check`.
        seed: of weights, order and synthetic data.
        own: further arguments of `train`.
        speedup: whether to time the ranks' step against one process's, with its prediction.
        tell: called with a line before each part that takes its time; None for silence.

    Returns:
        Result: outcomes, speed-up, findings and files.

    Raises:
        ValueError: when the folder cannot be written to, or holds a training that was asked for
            otherwise.
        RankError: when a rank fails.
    """
    output, own = Path(output), dict(own or {})
    require_writable(output, "output")
    asked, where = require_asked(case, output, real, seed, own), _where(real)
    if not _begun(output):
        _record(output / RECORD, asked)  # now, for the training may be interrupted
    checkpoint = str((output / "checkpoint").absolute())
    outcomes = cluster.run(case.train, real=where, seed=seed, checkpoint=checkpoint, **own)
    _record(output / RECORD, asked)
    paths = [Path(each) for each in case.write(outcomes, output)]
    timed = None
    if speedup:
        if tell is not None:
            tell("Timing one step: ranks, one process, and the parts of a prediction.")
        timed = speedups.measure(
            case.step(**_fitting(case.step, own, where, seed)), cluster=cluster
        )
        paths.append(_record(output / "speedup.json", timed.as_dict()))
    findings = ()
    if hasattr(case, "findings"):
        findings = tuple(case.findings(outcomes, speedup=timed))
        paths.append(_record(output / "findings.json", [each.as_dict() for each in findings]))
    return Result(outcomes, timed, findings, tuple(paths))


def _fitting(
    function: Callable[..., Any], own: Mapping[str, Any], real: str | None, seed: int
) -> dict[str, Any]:
    """Choose of all settings those that the timed step knows too."""
    known = inspect.signature(function).parameters
    every = any(one.kind is one.VAR_KEYWORD for one in known.values())
    given = {**own, "real": real, "seed": seed}
    return {name: value for name, value in given.items() if every or name in known}


def _record(path: Path, plain: Any) -> Path:
    path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return path
