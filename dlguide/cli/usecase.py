"""`dlguide usecase NAME`: a worked case from beginning to end, on MPI ranks of this machine."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from dlguide.checks import require, require_count, require_known
from dlguide.cli.app import OversubscribeOption, RanksOption, app

CASES = {
    "video": "a GAN predicts the next frames of a traffic camera",
    "imagenet": "a residual net goes ResNet-50's road: warmup, decay, collapsed decay",
    "chest_xray": "14 findings in chest X-rays by transfer learning",
    "kmeans": "a photograph with few colours; --real is a picture",
}


def find(name: str) -> Any:
    """Load a use case.

    Args:
        name: one of `CASES`.

    Returns:
        module: with `train`, `write` and what else it has.

    Raises:
        ValueError: when there is no such case; the nearest name is offered.
    """
    from importlib import import_module

    name = name.replace("-", "_")
    return import_module(f"dlguide.usecases.{require_known(name, CASES, 'name')}")


@app.command("usecase")
def usecase_command(
    name: Annotated[str, typer.Argument(help="; ".join(f"{n}: {t}" for n, t in CASES.items()))],
    ranks: RanksOption = 2,
    real: Annotated[
        Path | None, typer.Option(help="The real data; else the small one that comes with it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for results; else build/usecases/NAME.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and synthetic data.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training samples.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, gpu, or auto: gpu if any.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the case's own, repeated.")
    ] = None,
    speedup: Annotated[
        bool, typer.Option("--speedup", help="Time the step against one process; predict it.")
    ] = False,
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Run a worked case of the guide on MPI ranks: train or go on, write results, compare."""
    from dlguide.cluster import Cluster
    from dlguide.folders import require_writable
    from dlguide.machine import describe, threads
    from dlguide.usecases import running

    case = find(name)
    require_count(ranks, "ranks")
    require_count(seed, "seed", least=0)
    must, then = "not be given for 1 rank, which has nothing to compare", "Use `--ranks 2`."
    require(not (speedup and ranks == 1), "speedup", must, speedup, then)
    own = running.assigned(settings or [], case)
    for option, value in (("epochs", epochs), ("device", device)):
        if value is not None:
            twice = f"be given once, by --{option} or by --set"
            require(option not in own, option, twice, [own.get(option), value])
            own[option] = value
    running.check(case, name, real, own, speedup)
    output = output or Path("build") / "usecases" / name.replace("-", "_")
    require_writable(output, "output")
    running.require_asked(case, output, real, seed, own)
    machine = describe()
    plan = threads.plan(machine, ranks, oversubscribe=oversubscribe)
    print(machine.summary())
    print(f"\n{name}, {plan.ranks} rank{'s'[: plan.ranks != 1]}"
          f" x {plan.threads} thread{'s'[: plan.threads != 1]}", flush=True)  # fmt: skip
    with Cluster(plan) as cluster:
        result = running.run(case, cluster, output, real, seed, own, speedup, print)
    _print(result)


def _print(result: Any) -> None:
    """Print what came out: in short, speed-up, findings, files."""
    from dlguide.usecases.case import table

    summary = getattr(result.outcomes[0], "summary", None)
    if summary is not None:
        print(f"\n{summary()}")
    if result.speedup is not None:
        print(f"\n{result.speedup}")
    if result.findings:
        columns = get_terminal_size((200, 24)).columns  # a file has room
        print(f"\n{table(result.findings).fitting(columns)}")
    print("\nWritten:")
    for path in result.paths:
        print(f"  {path}")
