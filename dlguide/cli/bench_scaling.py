"""`dlguide bench scaling`: strong or weak scaling measured here, with a prediction beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dlguide.cli.app import OversubscribeOption
from dlguide.cli.bench import NetOption, bench
from dlguide.errors import require


@bench.command("scaling")
def scaling_command(
    mode: Annotated[
        str, typer.Option(help="strong: the global batch stays; weak: each rank's does.")
    ] = "weak",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, such as 1,2.")] = "1,2",
    update: Annotated[
        str, typer.Option(help="synchronous, or asynchronous with a server, one rank more.")
    ] = "synchronous",
    net: NetOption = "mnist_cnn",
    batch: Annotated[int, typer.Option(help="Images of a step: each rank's, or all.")] = 100,
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
        mode, counts, update, net, batch, steps, min(rounds, steps), oversubscribe
    )
    print(found)
    record = output / f"scaling-{mode}-{update}.json"
    record.write_text(json.dumps(found.as_dict(), indent=1) + "\n")
    print(f"Numbers: {record}")
