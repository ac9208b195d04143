"""`dlguide bench`: benchmarks with equal work on both sides."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from dlguide.cli.app import app

bench = typer.Typer(help="Benchmarks: equal work first, then median and spread.")
app.add_typer(bench, name="bench", no_args_is_help=True)

NetOption = Annotated[str, typer.Option(help="A net of dlguide.models.")]
SecondsOption = Annotated[float, typer.Option(help="Time of all measured steps together (s).")]
OutputOption = Annotated[Path, typer.Option(help="Folder for the record and the plot.")]


def _image_of(net: str, image: int | None) -> int | None:
    """Take the size that was asked for; the nets for MNIST have one of their own."""
    from dlguide import models

    return None if image is None and net in models.names("digits") else image or 224


@bench.command("onednn")
def onednn_command(
    net: NetOption = "resnet50",
    batch: Annotated[int, typer.Option(help="Images per step.")] = 16,
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
    print(f"Starting two processes, then {seconds:g} s of steps and what begun ones need.")
    found = onednn.compare(net, batch, _image_of(net, image), seconds, modes, seed=seed)
    print("\n##### Executive summary #####")
    print(found.summary())
    found.write(output / "onednn.json")
    plots.onednn_speeds(found.speeds).savefig(output / "onednn.png")
    print(f"Numbers and plot: {output / 'onednn.json'}, {output / 'onednn.png'}")


@bench.command("streams")
def streams_command(
    net: NetOption = "mnist_cnn",
    batch: Annotated[int, typer.Option(help="Images of one answer.")] = 1,
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
    splits = streams.compare(net, batch, _image_of(net, image), seconds, seed=seed)
    print(streams.table(splits))
    record = {"net": net, "splits": [dataclasses.asdict(each) for each in splits]}
    (output / "streams.json").write_text(json.dumps(record, indent=1) + "\n")
    plots.streams(splits).savefig(output / "streams.png")
    print(f"Numbers and plot: {output / 'streams.json'}, {output / 'streams.png'}")
