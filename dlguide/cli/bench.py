"""`dlguide bench`: benchmarks with equal work on both sides."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlguide.cli.app import (
    NetOption,
    OutputOption,
    OversubscribeOption,
    RanksOption,
    app,
    print_table,
)
from dlguide.collectives import LIBRARY
from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlguide.bench.allreduce import AllreduceComparison, AllreducePoint
    from dlguide.bench.io import ReadingComparison
    from dlguide.measure.limits import Bound, Limits

bench = typer.Typer(help="Benchmarks: equal work first, then median and spread.")
app.add_typer(bench, name="bench", no_args_is_help=True)

SecondsOption = Annotated[float, typer.Option(help="Time of all measured steps together (s).")]

# Each format takes about as much as the data; the rest is for indices and blocks half full.
_SPACE_FACTOR = 8


def _image_of(net: str, image: int | None) -> int | None:
    """Take the size that was asked for; the nets for MNIST have one of their own."""
    from dlguide import models

    return None if image is None and net in models.names("digits") else image or 224


def _draw(picture: Any, path: Path) -> None:
    """Save the plot beside the numbers, and name both."""
    picture.savefig(f"{path}.png")
    print(f"Numbers and plot: {path}.json, {path}.png")


@bench.command("limits")
def limits_command(
    again: Annotated[bool, typer.Option(help="Measure again what is stored.")] = False,
) -> None:
    """What this machine allows: memory, cache line, processes, page cache, multiply-adds."""
    print(_limits(again))


def _limits(again: bool = False) -> Limits:
    """Return the stored limits of this machine; measure them if there are none."""
    from dlguide.machine import describe, threads
    from dlguide.measure import limits

    found = None if again else limits.load()
    if found is None:
        print("Measuring the limits of this machine, about half a minute; they are stored.")
        machine = describe()
        plan = threads.plan(machine, machine.usable_cores)
        found = limits.measure([cpus[0] for cpus in plan.cpus])
    return found


@bench.command("onednn")
def onednn_command(
    net: NetOption = "resnet50",
    batch_per_rank: Annotated[int, typer.Option(help="Images per step.")] = 16,
    image: Annotated[int | None, typer.Option(help="Pixels a side; default 224.")] = None,
    seconds: SecondsOption = 60.0,
    mode: Annotated[str, typer.Option(help="train, infer, or both.")] = "train,infer",
    seed: Annotated[int, typer.Option(help="Of weights and images.")] = 0,
    output: OutputOption = Path("build"),
) -> None:
    """Training and inference with oneDNN on and off, as the workshop's tf_bench of 2019."""
    from dlguide import plots
    from dlguide.bench import onednn
    from dlguide.files import require_writable

    require_writable(output, "output")
    modes = [word.strip() for word in mode.split(",")]
    stored = _limits()
    print(f"Starting two processes, then {seconds:g} s of steps and what begun ones need.")
    found = onednn.compare(net, batch_per_rank, _image_of(net, image), seconds, modes, seed=seed)
    print("\n##### Executive summary #####")
    print(found.summary(stored))
    found.write(output / "onednn.json")
    _draw(plots.onednn_speeds(found.speeds), output / "onednn")


@bench.command("streams")
def streams_command(
    net: NetOption = "mnist_cnn",
    batch_per_rank: Annotated[int, typer.Option(help="Images of one answer of a stream.")] = 1,
    image: Annotated[int | None, typer.Option(help="Pixels a side; default 224.")] = None,
    seconds: SecondsOption = 20.0,
    seed: Annotated[int, typer.Option(help="Of weights and images.")] = 0,
    output: OutputOption = Path("build"),
) -> None:
    """Inference with many streams of few threads against few streams of many."""
    from dlguide import plots
    from dlguide.bench import streams
    from dlguide.files import require_writable

    require_writable(output, "output")
    splits = streams.compare(net, batch_per_rank, _image_of(net, image), seconds, seed=seed)
    print(streams.table(splits))
    record = {"net": net, "splits": [dataclasses.asdict(each) for each in splits]}
    (output / "streams.json").write_text(json.dumps(record, indent=1) + "\n")
    _draw(plots.streams(splits), output / "streams")


@bench.command("scaling")
def scaling_command(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, such as 1,2.")] = "1,2",
    update: Annotated[
        str, typer.Option(help="synchronous, or asynchronous with a server, one rank more.")
    ] = "synchronous",
    net: NetOption = "mnist_cnn",
    batch_per_rank: Annotated[
        int | None, typer.Option(help="Weak scaling: images of each rank; default 100.")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Strong scaling instead: images of all ranks.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Measured steps of each part.")] = 60,
    rounds: Annotated[int, typer.Option(help="Turns they are divided into.")] = 20,
    output: Annotated[Path, typer.Option(help="Folder for the record.")] = Path("build"),
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Measure strong or weak scaling, and predict each number of ranks from one rank's parts."""
    from dlguide.bench import scaling
    from dlguide.files import require_writable

    require_writable(output, "output")
    words = [word.strip() for word in ranks.split(",")]
    text = "be numbers of ranks such as 1,2"
    require(all(word.isdigit() for word in words), "ranks", text, ranks)
    counts = [int(word) for word in words]
    found = scaling.measure(
        counts, update, net, batch_per_rank, global_batch, steps, min(rounds, steps), oversubscribe
    )
    print(found)
    record = output / f"scaling-{found.mode}-{update}.json"
    record.write_text(json.dumps(dataclasses.asdict(found), indent=1) + "\n")
    print(f"Numbers: {record}")


@bench.command("allreduce")
def allreduce_command(
    ranks: RanksOption = 2,
    sizes: Annotated[str, typer.Option(help="Bytes, as 8,1024,4M; default 8 to 64M.")] = "",
    repeats: Annotated[int, typer.Option(help="Samples of each.")] = 7,
    horovod: Annotated[bool, typer.Option(help="Measure Horovod's too.")] = True,
    library_algorithms: Annotated[
        bool, typer.Option(help="The MPI library's own algorithms, one by one.")
    ] = False,
    mpi: Annotated[
        str, typer.Option(help="The libraries of several MPIs in turns: mpich,openmpi,intel.")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Of --mpi: turns, each on new ranks.")] = 5,
    keep: Annotated[
        bool, typer.Option(help="Let collectives.allreduce choose by what was measured.")
    ] = True,
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
    require(not (mpis and library_algorithms), "mpi", "not be given with library_algorithms", mpi)
    for each in mpis:
        find_mpi(each)
    stored = _limits()
    if mpis:
        found = comparison.mpis(mpis, ranks, asked, repeats, rounds, oversubscribe)
        bounds = _print_allreduce(found, stored.with_memory_now([ranks * n for n in asked]))
        (output / "allreduce-mpis.json").write_text(json.dumps(dataclasses.asdict(found)))
        _draw(plots.allreduce_shares(found.points, bounds), output / "allreduce-mpis")
        return
    if library_algorithms:
        found = comparison.library_algorithms(ranks, asked, repeats, oversubscribe)
    else:
        found = comparison.allreduce(
            ranks, asked, repeats=repeats, horovod=horovod, oversubscribe=oversubscribe
        )
    _print_allreduce(found, stored.with_memory_now([ranks * nbytes for nbytes in asked]))
    table = published.load("allreduce_hoti17")
    print(
        f"Grey in the plot: {table[0]['gpus']} GPUs in 2017 (Panda et al., Hot Interconnects 25); "
        "which library's column the text kept is not certain, most probably MVAPICH2-GDR's."
    )
    name = "allreduce-library" if library_algorithms else "allreduce"
    (output / f"{name}.json").write_text(json.dumps(dataclasses.asdict(found)))
    others = [(row["bytes"], row["us"] / 1e6) for row in table if row["bytes"] <= max(asked)]
    _draw(plots.allreduce(found.seconds(), ranks, others), output / name)
    if keep and not library_algorithms:
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
    output: OutputOption = Path("build"),
) -> None:
    """Read the same samples from every file format, in order and at random, cold and warm."""
    from dlguide import plots
    from dlguide.bench import io
    from dlguide.files import require_writable

    for value, name in ((samples, "samples"), (image_bytes, "image_bytes"), (repeats, "repeats")):
        require_count(value, name)
    require_writable(output, "output")
    place = output if folder is None else folder
    require_writable(place, "folder", _SPACE_FACTOR * samples * (image_bytes + 4096))
    stored = _limits()
    with tempfile.TemporaryDirectory(prefix="dlguide-io-", dir=place) as written:
        paths = io.write(written, io.make(samples, image_bytes, seed))
        print(f"{samples} samples in {len(paths)} formats, equal; reading them, {repeats} turns.")
        found = io.compare(paths, repeats, names=forget_names, seed=seed)
    _print_reading(found, stored)
    found.write(output / "io.json")
    _draw(plots.reading_speeds(found.speeds), output / "io")


def _print_reading(found: ReadingComparison, limits: Limits) -> None:
    from dlguide.bench.io import COLUMNS
    from dlguide.measure.limits import SHARE

    title = "Reading all samples once"
    print_table(title, COLUMNS, found.lines(limits), left=3, width=140, no_wrap=True)
    print("MB/s of the samples' data. Checked: every sample against its checksum, taken apart into")
    print("data, labels and key. Raw: the bytes alone. A pass includes opening the data set.")
    print(f"{SHARE}: of one core that reads the page cache and computes CRC-32C; warm passes only.")
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
