"""Converting a data set from one format to another, a sample at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dlguide.data.formats.framing import FRAMINGS
from dlguide.data.formats.manifest import Manifest, read_manifest
from dlguide.data.formats.opening import KINDS, create, open_dataset
from dlguide.data.formats.plain import PlainRecords
from dlguide.data.formats.reading import Dataset
from dlguide.errors import require, require_count, require_known

Progress = Callable[[int, int | None], None]


def convert(
    source: str | os.PathLike | Dataset | PlainRecords,
    target: str | os.PathLike,
    kind: str,
    shards: int | None = None,
    progress: bool | Progress = False,
) -> Manifest:
    """Write the samples of one data set as another, in the same order.

    One sample and a few megabytes that wait to be written are in memory, however large the data
    set is. The target appears whole, at the end, or not at all, also when the process is killed.

    Args:
        source: folder of a data set, or one that is open: also what `open_plain` gives.
        target: folder to write; it must not exist yet.
        kind: format of the target, as for `create`.
        shards: number of files to share the samples among, as evenly as whole samples allow
            (tfrecord and recordio only); None for one.
        progress: True draws a bar to standard error; a function is called with the samples done
            and all samples (None where nobody knows).

    Returns:
        Manifest: of the target.

    Raises:
        ValueError: when an argument is out of range.
        DamageError: when the source is damaged; then there is no target.
    """
    require_known(kind, KINDS, "kind")
    with contextlib.ExitStack() as stack:
        if not isinstance(source, Dataset | PlainRecords):
            source = stack.enter_context(open_dataset(source))
        total = source.count if isinstance(source, Dataset) else None
        cuts = _cuts(shards, total, kind)
        writer = stack.enter_context(create(target, kind))
        report = stack.enter_context(_reporting(progress, total))
        for sample in source:
            if writer.count in cuts:
                writer.cut()
            writer.append(sample)
            report(writer.count, total)
    return read_manifest(Path(target))


def _cuts(shards: int | None, total: int | None, kind: str) -> set[int]:
    """Return the numbers of the samples with which a new file begins."""
    if shards is None:
        return set()
    known = " and ".join(sorted(FRAMINGS))
    require(kind in FRAMINGS, "shards", f"be None but for {known}", shards)
    require_count(shards, "shards")
    then = "Convert it to one file first, or use `create` with `shard_samples`."
    require(total is not None, "shards", "be None where nobody knows the samples", shards, then)
    require(shards <= max(total, 1), "shards", f"be at most the {total} samples", shards)
    return {shard * total // shards for shard in range(1, shards)}


@contextlib.contextmanager
def _reporting(progress: bool | Progress, total: int | None) -> Iterator[Progress]:
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("samples", total=total)
        yield lambda done, of: bar.update(task, completed=done)
