"""Progress of a longer task, reported to a function or drawn as a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int | None], None]


@contextmanager
def reporting(
    progress: bool | Progress | None, what: str, unit: str = "bytes"
) -> Iterator[Progress]:
    """Give a function to call with what is done and what there is in all."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (MofNCompleteColumn(), TextColumn(unit, markup=False))
    if unit == "bytes":
        counted = (DownloadColumn(), TransferSpeedColumn())
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *counted,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
