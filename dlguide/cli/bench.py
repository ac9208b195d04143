"""`dlguide bench`: benchmarks with equal work on both sides."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlguide.cli.app import (
    OutputOption,
    OversubscribeOption,
    RanksOption,
    app,
    print_table,
)
from dlguide.collectives import LIBRARY
from dlguide.errors import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlguide.bench.allreduce import AllreduceComparison, AllreducePoint
    from dlguide.measure.limits import Bound, Limits

bench = typer.Typer(help="Benchmarks: equal work first, then median and spread.")
app.add_typer(bench, name="bench", no_args_is_help=True)


def draw(picture: Any, path: Path) -> None:
    """Save the plot beside the numbers, and name both."""
    picture.savefig(f"{path}.png")
    print(f"Numbers and plot: {path}.json, {path}.png")


@bench.command("limits")
def limits_command(
    again: Annotated[bool, typer.Option(help="Measure again what is stored.")] = False,
) -> None:
    """What this machine allows: memory, cache line, processes, page cache, multiply-adds."""
    print(stored_limits(again))


def stored_limits(again: bool = False) -> Limits:
    """Return the stored limits of this machine; measure them if there are none."""
    from dlguide.machine import describe, threads
    from dlguide.measure import limits

    found = None if again else limits.load()
    if found is None:
        print("Measuring the limits of this machine, about half a minute; they are stored.")
        machine = describe()
        plan = threads.plan(machine, machine.usable_cores, bound=True)
        found = limits.measure([cpus[0] for cpus in plan.cpus])
    return found


@bench.command("allreduce")
def allreduce_command(
    ranks: RanksOption = 2,
    sizes: Annotated[str, typer.Option(help="Bytes, as 8,1024,4M; default 8 to 64M.")] = "",
    repeats: Annotated[int, typer.Option(help="Samples of each.")] = 7,
    horovod: Annotated[
        bool | None, typer.Option(help="Measure Horovod's too; default: where it is installed.")
    ] = None,
    mpi: Annotated[
        str, typer.Option(help="The libraries of several MPIs in turns: mpich,openmpi,intel.")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Of --mpi: turns, each on new ranks.")] = 5,
    keep: Annotated[
        bool, typer.Option(help="Let collectives.allreduce choose by what was measured.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Of one start of the ranks (s).")] = 300.0,
    output: OutputOption = Path("build"),
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Compare allreduces from 8 bytes to 64 MiB, and keep which one is fastest where."""
    from dlguide import plots, published
    from dlguide.bench import allreduce as comparison
    from dlguide.cluster.mpi import find_mpi
    from dlguide.collectives import autotune
    from dlguide.files import require_writable

    require_writable(output, "output")
    asked = [_bytes(word) for word in sizes.split(",")] if sizes else list(comparison.SIZES)
    mpis = [word.strip() for word in mpi.split(",")] if mpi else []
    for each in mpis:
        find_mpi(each)
    stored = stored_limits()
    if mpis:
        found = comparison.mpis(mpis, ranks, asked, repeats, rounds, oversubscribe, timeout)
        bounds = _print_allreduce(found, stored.with_memory_now([ranks * n for n in asked]))
        (output / "allreduce-mpis.json").write_text(json.dumps(dataclasses.asdict(found)))
        draw(plots.allreduce_shares(found.points, bounds), output / "allreduce-mpis")
        return
    if horovod is None:
        horovod = find_spec("horovod") is not None
    found = comparison.allreduce(
        *(ranks, asked),
        repeats=repeats,
        horovod=horovod,
        oversubscribe=oversubscribe,
        timeout_s=timeout,
    )
    _print_allreduce(found, stored.with_memory_now([ranks * nbytes for nbytes in asked]))
    table = published.load("allreduce_hoti17")
    print(
        f"Grey in the plot: {table[0]['gpus']} GPUs in 2017 (Panda et al., Hot Interconnects 25); "
        "which library's column the text kept is not certain, most probably MVAPICH2-GDR's."
    )
    (output / "allreduce.json").write_text(json.dumps(dataclasses.asdict(found)))
    others = [(row["bytes"], row["us"] / 1e6) for row in table if row["bytes"] <= max(asked)]
    draw(plots.allreduce(found.seconds(), ranks, others), output / "allreduce")
    if keep:
        path = autotune.save_table(found.table())
        print(f"collectives.allreduce on {ranks} ranks chooses by {path}")


def _bytes(word: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (word[:-1], word[-1]) if word[-1:].upper() in units else (word, "")
    text = "be numbers of bytes such as 8,1024,4M"
    require(number.strip().isdigit(), "sizes", text, word)
    return int(number) * units.get(unit.upper(), 1)


def _print_allreduce(found: AllreduceComparison, limits: Limits) -> dict[int, Bound]:
    """Print times, speeds and bytes, a row for each size; return the limits by size."""
    from dlguide.measure import Timing

    names = list(dict.fromkeys(point.name for point in found.points))
    bounds = {p.nbytes: limits.allreduce(p.nbytes, found.ranks) for p in found.points}
    cells: dict[str, Callable[[AllreducePoint], str]] = {
        "Microseconds": _microseconds if found.rounds > 1 else _median,
        "Share of the limit": lambda point: bounds[point.nbytes].cell(Timing(point.seconds)),
        "Bus bandwidth, GB/s": lambda point: f"{point.bus_bytes_per_s(found.ranks) / 1e9:.2f}",
        "Bytes that a rank sends": lambda point: "" if point.sent is None else f"{point.sent:,}",
    }
    print(f"{found.ranks} ranks, {found.library}")
    for title, cell in cells.items():
        texts = {(point.nbytes, point.name): cell(point) for point in found.points}
        shown = [name for name in names if any(texts[n, name] for n in bounds)]
        rows = [(f"{n:,}", *(texts[n, name] for name in shown)) for n in sorted(bounds)]
        if shown:
            columns = ["bytes", *(name.replace("_", " ") for name in shown)]
            wide = 28 if found.rounds > 1 else 14
            print_table(title, columns, rows, width=22 + wide * len(shown))
    for nbytes, bound in bounds.items():
        if bound.seconds is not None:
            print(f"Limit of {nbytes:,} bytes: {1e6 * bound.seconds:,.2f} us, {bound.why}.")
    if LIBRARY in names:
        steps = ", ".join(f"from {start:,} bytes {name}" for start, name in found.table().steps)
        print(f"Fastest: {steps}.")
    for nbytes in bounds if found.rounds > 1 else ():
        times = found.seconds()[nbytes]
        best = min(times, key=times.__getitem__)
        ratios = [f"{name} / {best} {found.ratio(name, best, nbytes)}" for name in names]
        others = ", ".join(each for name, each in zip(names, ratios, strict=True) if name != best)
        print(f"{nbytes:,} bytes: {others or best}")
    return bounds


def _median(point: AllreducePoint) -> str:
    return f"{1e6 * point.median_s:,.1f}"


def _microseconds(point: AllreducePoint) -> str:
    from dlguide.measure import Timing

    timing = Timing(point.seconds)
    low, high = timing.low, timing.high
    return f"{_median(point)} ({1e6 * low:,.1f} to {1e6 * high:,.1f})"
