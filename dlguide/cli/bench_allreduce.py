"""`dlguide bench allreduce`: ours, the MPI library's own and Horovod's over sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlguide.checks import require
from dlguide.cli.app import OversubscribeOption, RanksOption
from dlguide.cli.bench import bench
from dlguide.collectives import LIBRARY

if TYPE_CHECKING:
    from dlguide.bench.allreduce import Comparison


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
    from dlguide.collectives import keeping
    from dlguide.folders import require_writable

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
    plots.allreduce(found.seconds(), ranks, others, output / f"{name}.png")
    print(f"Numbers and plot: {output / name}.json, {output / name}.png")
    if keep and not library_algorithms:
        print(
            f"collectives.allreduce on {ranks} ranks chooses by it: {keeping.keep(found.table())}"
        )


def _bytes(word: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (word[:-1], word[-1]) if word[-1:].upper() in units else (word, "")
    text = "be numbers of bytes such as 8,1024,4M"
    require(number.strip().isdigit(), "sizes", text, word)
    return int(number) * units.get(unit.upper(), 1)


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{found.ranks} ranks, {found.library}; microseconds (GB/s of bus, bytes sent by a rank)"
    )
    drawn = Table(title=title, title_justify="left")
    sizes = sorted({point.nbytes for point in found.points})
    drawn.add_column("algorithm")
    for nbytes in sizes:
        drawn.add_column(f"{nbytes:,}", justify="right")
    for name in dict.fromkeys(point.name for point in found.points):
        cells = []
        for point in sorted(found.points, key=lambda each: each.nbytes):
            if point.name == name:
                speed = point.bus_bytes_per_s(found.ranks) / 1e9
                sent = "?" if point.sent is None else f"{point.sent:,}"
                cells.append(f"{1e6 * point.median_s:.1f}\n({speed:.2f}, {sent})")
        drawn.add_row(name, *cells)
    Console(width=max(100, 16 * len(sizes) + 22)).print(drawn)
    if any(point.name == LIBRARY for point in found.points):
        steps = ", ".join(f"from {start:,} bytes {name}" for start, name in found.table().steps)
        print(f"Fastest: {steps}.")
