"""`dlguide bench allreduce`: ours, the MPI library's own and Horovod's over sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlguide.cli.app import OversubscribeOption, RanksOption
from dlguide.cli.bench import bench
from dlguide.collectives import LIBRARY
from dlguide.errors import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlguide.bench.allreduce import Comparison, Point


@bench.command("allreduce")
def allreduce_command(
    ranks: RanksOption = 2,
    sizes: Annotated[str, typer.Option(help="Bytes, as 8,1024,4M; default 8 to 64M.")] = "",
    repeats: Annotated[int, typer.Option(help="Samples of each.")] = 7,
    horovod: Annotated[bool, typer.Option(help="Measure Horovod's too.")] = True,
    library_algorithms: Annotated[
        bool, typer.Option(help="The MPI library's own algorithms, one by one.")
    ] = False,
    keep: Annotated[
        bool, typer.Option(help="Let collectives.allreduce choose by what was measured.")
    ] = True,
    output: Annotated[Path, typer.Option(help="Folder for the record and the plot.")] = Path(
        "build"
    ),
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Compare allreduces from 8 bytes to 64 MiB, and keep which one is fastest where."""
    from dlguide import plots, published
    from dlguide.bench import allreduce as comparison
    from dlguide.collectives import autotune
    from dlguide.files import require_writable

    require_writable(output, "output")
    asked = [_bytes(word) for word in sizes.split(",")] if sizes else list(comparison.SIZES)
    if library_algorithms:
        found = comparison.library_algorithms(ranks, asked, repeats, oversubscribe)
    else:
        found = comparison.allreduce(
            ranks, asked, repeats=repeats, horovod=horovod, oversubscribe=oversubscribe
        )
    _print(found)
    table = published.load("allreduce_hoti17")
    print(
        f"Grey in the plot: {table[0]['gpus']} GPUs in 2017 (Panda et al., Hot Interconnects 25); "
        "which library's column the text kept is not certain, most probably MVAPICH2-GDR's."
    )
    name = "allreduce-library" if library_algorithms else "allreduce"
    (output / f"{name}.json").write_text(json.dumps(found.as_dict()))
    others = [(row["bytes"], row["us"] / 1e6) for row in table if row["bytes"] <= max(asked)]
    plots.allreduce(found.seconds(), ranks, others).savefig(output / f"{name}.png")
    print(f"Numbers and plot: {output / name}.json, {output / name}.png")
    if keep and not library_algorithms:
        print(
            f"collectives.allreduce on {ranks} ranks chooses by "
            f"{autotune.save_table(found.table())}"
        )


def _bytes(word: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (word[:-1], word[-1]) if word[-1:].upper() in units else (word, "")
    text = "be numbers of bytes such as 8,1024,4M"
    require(number.strip().isdigit(), "sizes", text, word)
    return int(number) * units.get(unit.upper(), 1)


def _print(found: Comparison) -> None:
    """Print times, speeds and bytes, a row for each size."""
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(point.name for point in found.points))
    cells: dict[str, Callable[[Point], str]] = {
        "Microseconds": lambda point: f"{1e6 * point.median_s:,.1f}",
        "Bus bandwidth, GB/s": lambda point: f"{point.bus_bytes_per_s(found.ranks) / 1e9:.2f}",
        "Bytes that a rank sends": lambda point: "" if point.sent is None else f"{point.sent:,}",
    }
    print(f"{found.ranks} ranks, {found.library}")
    for title, cell in cells.items():
        told = [name for name in names if any(cell(p) for p in found.points if p.name == name)]
        drawn = Table(title=title, title_justify="left")
        for column in ("bytes", *told):
            drawn.add_column(column.replace("_", " "), justify="right")
        for nbytes in sorted({point.nbytes for point in found.points}):
            row = {point.name: cell(point) for point in found.points if point.nbytes == nbytes}
            drawn.add_row(f"{nbytes:,}", *(row[name] for name in told))
        if told:
            Console(width=22 + 14 * len(told)).print(drawn)
    if LIBRARY in names:
        steps = ", ".join(f"from {start:,} bytes {name}" for start, name in found.table().steps)
        print(f"Fastest: {steps}.")
