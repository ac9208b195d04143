"""`dlguide bench io`: formats, access patterns, cold and warm, in one table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlguide.cli.bench import bench
from dlguide.errors import require_count

if TYPE_CHECKING:
    from dlguide.bench.io_speeds import Comparison

# Each format takes about as much as the data; the rest is for indices and blocks half full.
_ROOM = 8


@bench.command("io")
def io_command(
    samples: Annotated[int, typer.Option(help="Samples in each data set.")] = 1500,
    image_bytes: Annotated[int, typer.Option(help="Mean size of a sample (bytes).")] = 33_000,
    repeats: Annotated[int, typer.Option(help="Passes of each way.")] = 5,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write and read; default: the output folder.")
    ] = None,
    forget_names: Annotated[
        bool,
        typer.Option(
            help="In cold passes forget directory entries too: needs root, slows the machine."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of samples and random order.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the record and the plot.")] = Path(
        "build"
    ),
) -> None:
    """Read the same samples from every file format, in order and at random, cold and warm."""
    from dlguide import plots
    from dlguide.bench import io
    from dlguide.files import require_writable

    for value, name in ((samples, "samples"), (image_bytes, "image_bytes"), (repeats, "repeats")):
        require_count(value, name)
    require_writable(output, "output")
    place = output if folder is None else folder
    require_writable(place, "folder", _ROOM * samples * (image_bytes + 4096))
    with tempfile.TemporaryDirectory(prefix="dlguide-io-", dir=place) as written:
        paths = io.write(written, io.make(samples, image_bytes, seed))
        print(f"{samples} samples in {len(paths)} formats, equal; reading them, {repeats} turns.")
        found = io.compare(paths, repeats, names=forget_names, seed=seed)
    _print(found)
    found.write(output / "io.json")
    plots.reading_speeds(found.speeds).savefig(output / "io.png")
    print(f"Numbers and plot: {output / 'io.json'}, {output / 'io.png'}")


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    from dlguide.bench.io_speeds import COLUMNS

    drawn = Table(title="Reading all samples once", title_justify="left")
    for number, column in enumerate(COLUMNS):
        drawn.add_column(column, justify="left" if number < 3 else "right", no_wrap=True)
    for row in found.lines():
        drawn.add_row(*row)
    Console(width=120).print(drawn)
    print("MB/s of the samples' data. Checked: every sample against its checksum, taken apart into")
    print("data, labels and key. Raw: the bytes alone. A pass includes opening the data set.")
    print(f"{found.folder} ({found.file_system or 'unknown file system'}). {found.cold_share()}")
    print(found.names)
    for cold in (True, False):
        best = max(
            (kind for kind in found.kinds() if kind not in ("folder", "plain read")),
            key=lambda kind: found.speed(kind, "sequential", cold).samples_per_s,
        )
        state = "cold" if cold else "warm"
        gain = found.gain(best, "sequential", cold)
        print(f"{state}: {best} gives {gain} times the samples/s of one file a sample, in order.")
