"""One road for every use case: check, train on the ranks, measure, write, compare."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlguide.checks import require, require_known
from dlguide.cluster import Cluster
from dlguide.folders import require_writable
from dlguide.usecases import speedup as speedups
from dlguide.usecases.case import Finding

# What the road itself hands to `train`; the rest of its arguments are the user's.
TAKEN = ("real", "seed", "checkpoint", "report", "parallel")


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
    """List what a use case can be told beside data, seed and checkpoint, and its defaults.

    Args:
        case: the module of a use case, with `train`; where that takes its settings by any name,
            `OPTIONS` has the names and defaults.

    Returns:
        dict: default of each argument of `train`.
    """
    own = {
        name: one.default
        for name, one in inspect.signature(case.train).parameters.items()
        if name not in TAKEN and one.kind is not one.VAR_KEYWORD
    }
    return own | dict(getattr(case, "OPTIONS", {}))


def assigned(words: Sequence[str]) -> dict[str, Any]:
    """Read settings such as "net=densenet121" or "batch=16".

    Args:
        words: of the form NAME=VALUE; the value is taken as JSON where it is JSON (a number,
            true, null, a list), and as text otherwise.

    Returns:
        dict: value of each name.

    Raises:
        ValueError: when a word has another form, or a name comes twice.

    >>> assigned(["net=vgg16", "batch=16", "warm=true"])
    {'net': 'vgg16', 'batch': 16, 'warm': True}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        require(bool(equals) and name.isidentifier(), "set", "be NAME=VALUE", word)
        require(name not in found, "set", "name each setting once", word)
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
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
        ValueError: when the case does not know a setting, has no step to be timed, or the data
            is not there or not what it must be.
    """
    known = options(case)
    for each in own:
        then = f"{name} has no such setting; it has: {', '.join(known) or 'none'}."
        if each in ("epochs", "device"):
            require(each in known, each, f"not be given for {name}", own[each], then)
        require_known(each, known, "set")
    must, then = f"not be given for {name}", "It has no step that could be timed."
    require(not speedup or hasattr(case, "step"), "speedup", must, speedup, then)
    if real is not None:
        must = "be a file or folder that is there"
        require(real.exists(), "real", must, str(real), "Nothing was trained.")
    if hasattr(case, "check"):
        case.check(real=None if real is None else str(real), **own)


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
            goes on.
        real: as in `check`.
        seed: of weights, order and synthetic data.
        own: further arguments of `train`.
        speedup: whether to time the ranks' step against one process's, with its prediction.
        tell: called with a line before each part that takes its time; None for silence.

    Returns:
        Result: outcomes, speed-up, findings and files.

    Raises:
        ValueError: when the folder cannot be written to.
        RankError: when a rank fails.
    """
    output, own = Path(output), dict(own or {})
    require_writable(output, "output")
    where = None if real is None else str(Path(real).absolute())
    checkpoint = str((output / "checkpoint").absolute())
    outcomes = cluster.run(case.train, real=where, seed=seed, checkpoint=checkpoint, **own)
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
