"""`dlguide cleanup` and `dlguide install-horovod`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dlguide.cli.app import app


@app.command()
def cleanup(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """End the processes that clusters have left behind, ours and only ours."""
    from dlguide.cluster import processes

    ended = processes.cleanup()
    if as_json:
        print(json.dumps([vars(each) for each in ended]))
        return
    for each in ended:
        print(f"ended {each.pid}: {each.command}")
    print(f"{len(ended)} left-over process{'' if len(ended) == 1 else 'es'} ended.")


@app.command("install-horovod")
def install_horovod(
    mpicc: Annotated[str | None, typer.Option(help="A site's own MPI compiler.")] = None,
    force: Annotated[bool, typer.Option(help="Build even when a wheel is in the cache.")] = False,
) -> None:
    """Build and install Horovod for this Python, TensorFlow and MPI."""
    from dlguide import install_horovod

    install_horovod.install(mpicc, force)
