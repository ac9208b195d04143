"""`dlguide wheelhouse`: all that setting up needs, for machines without the internet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlguide.cli.app import app


@app.command()
def wheelhouse(
    folder: Annotated[Path, typer.Argument(help="To fill; a wheelhouse there is replaced.")],
    pytorch: Annotated[bool, typer.Option("--pytorch", help="PyTorch too, for lesson 53.")] = False,
) -> None:
    """Gather all pinned packages, Horovod and the course, for `make setup WHEELHOUSE=FOLDER`."""
    from dlguide import make_wheelhouse
    from dlguide import wheelhouse as checking

    place = make_wheelhouse.fill(folder, pytorch)
    files = checking.read(place)["files"]
    total = sum(entry["bytes"] for entry in files.values())
    print(f"{place}: {len(files)} files, {total / 1e9:.2f} GB, for {_words(checking.here())}.")
    print(f"Copy it, then there, in a clone: `make setup WHEELHOUSE={place}`.")


def _words(machine: dict[str, str]) -> str:
    return f"Python {machine['python']} on {machine['machine']}"
