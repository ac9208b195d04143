"""`dlguide bench io`, `onednn` and `scaling`: what the course adds to the benchmarks."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dlguide.cli.app import NetOption, OutputOption, OversubscribeOption, print_table
from dlguide.cli.bench import draw, stored_limits
from dlguide.errors import require, require_count

SecondsOption = Annotated[float, typer.Option(help="Time of all measured steps together (s).")]

# Each format takes about as much as the data; the rest is for indices and blocks half full.
_SPACE_FACTOR = 8


def _image_of(net: str, image: int | None) -> int | None:
    """Take the size that was asked for; the nets for MNIST have one of their own."""
    from dlguide import models

    return None if image is None and net in models.names("digits") else image or 224


def onednn(
    net: NetOption = "resnet50",
    batch_per_rank: Annotated[int, typer.Option(help="Images per step.")] = 16,
    image: Annotated[int | None, typer.Option(help="Pixels a side; default 224.")] = None,
    seconds: SecondsOption = 60.0,
    mode: Annotated[str, typer.Option(help="train, infer, or both.")] = "train,infer",
    seed: Annotated[int, typer.Option(help="Of weights and images.")] = 0,
    output: OutputOption = Path("build"),
) -> None:
    """Training and inference with oneDNN on and off, as the workshop's tf_bench of 2019."""
    from dlcourse import pictures
    from dlcourse.bench import onednn
    from dlguide.files import require_writable

    require_writable(output, "output")
    modes = [word.strip() for word in mode.split(",")]
    stored = stored_limits()
    print(f"Starting two processes, then {seconds:g} s of steps and what begun ones need.")
    found = onednn.compare(net, batch_per_rank, _image_of(net, image), seconds, modes, seed=seed)
    print("\n##### Executive summary #####")
    print(found.summary(stored))
    found.write(output / "onednn.json")
    draw(pictures.onednn_speeds(found.speeds), output / "onednn")


def scaling(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, such as 1,2.")] = "1,2",
    net: NetOption = "mnist_cnn",
    batch_per_rank: Annotated[
        int | None, typer.Option(help="Weak scaling: images of each rank; default 100.")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Strong scaling instead: images of all ranks.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Measured steps of each part.")] = 60,
    output: Annotated[Path, typer.Option(help="Folder for the record.")] = Path("build"),
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Measure strong or weak scaling, and predict each number of ranks from one rank's parts."""
    from dlcourse.bench import scaling
    from dlguide.files import require_writable

    require_writable(output, "output")
    words = [word.strip() for word in ranks.split(",")]
    text = "be numbers of ranks such as 1,2"
    require(all(word.isdigit() for word in words), "ranks", text, ranks)
    counts = [int(word) for word in words]
    mode, rows = scaling.measure(counts, net, batch_per_rank, global_batch, steps, oversubscribe)
    print(f"{mode} scaling: {scaling.MODES[mode]}.", *rows, scaling.LAUNCHERS, sep="\n")
    record = output / f"scaling-{mode}.json"
    record.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    print(f"Numbers: {record}")


def io(
    samples: Annotated[int, typer.Option(help="Samples in each data set.")] = 1500,
    image_bytes: Annotated[int, typer.Option(help="Mean size of a sample (bytes).")] = 33_000,
    repeats: Annotated[int, typer.Option(help="Passes of each way.")] = 5,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write and read; default: the output folder.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of samples and random order.")] = 0,
    output: OutputOption = Path("build"),
) -> None:
    """Read the same samples from every file format, in order and at random, cold and warm."""
    from dlcourse import pictures
    from dlcourse.bench import io
    from dlguide.files import require_writable
    from dlguide.measure.limits import SHARE

    for value, name in ((samples, "samples"), (image_bytes, "image_bytes"), (repeats, "repeats")):
        require_count(value, name)
    require_writable(output, "output")
    place = output if folder is None else folder
    require_writable(place, "folder", _SPACE_FACTOR * samples * (image_bytes + 4096))
    stored = stored_limits()
    with tempfile.TemporaryDirectory(prefix="dlguide-io-", dir=place) as written:
        paths = io.write(written, io.make(samples, image_bytes, seed))
        print(f"{samples} samples in {len(paths)} formats, equal; reading them, {repeats} turns.")
        found = io.compare(paths, repeats, seed=seed)
    title = "Reading all samples once"
    print_table(title, io.COLUMNS, found.lines(stored), left=3, width=140, no_wrap=True)
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
    found.write(output / "io.json")
    draw(pictures.reading_speeds(found.speeds), output / "io")
