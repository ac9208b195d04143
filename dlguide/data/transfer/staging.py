"""Staging: one rank of each node copies a data set to the node's own disk, the others wait."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlguide.data.transfer.copying import copy_all, difference
from dlguide.data.transfer.errors import TransferError
from dlguide.data.transfer.listing import Listing, list_files, require_folder
from dlguide.data.transfer.progress import Progress, reporting
from dlguide.errors import require
from dlguide.files import file_lock, require_writable

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_LOOK_S = 0.005


@dataclass(frozen=True)
class Staged:
    """What staging did on one node.

    path (of the copy), files (count), nbytes (of all), seconds (until it could be used), copied
    (False when it was there already, whole).
    """

    path: str
    files: int
    nbytes: int
    seconds: float
    copied: bool

    @property
    def bytes_per_s(self) -> float:
        """Speed of copying, or of checking a copy that was there (bytes/s)."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Give the record as plain values."""
        return {**asdict(self), "bytes_per_s": self.bytes_per_s}


def stage(
    source: str | os.PathLike,
    target: str | os.PathLike,
    comm: Comm | None = None,
    node_comm: Comm | None = None,
    quick: bool = False,
    replace: bool = False,
    progress: bool | Progress | None = None,
) -> Staged:
    """Copy a data set to a disk of each node; collective over `comm`.

    On each node one rank copies. The others sleep: they would take its core while they wait.
    What is read is held against the checksums of the data set on the way; a file without one
    must not change while it is copied. The copy gets its name when it is whole; a copy that was
    killed leaves nothing under the name, and the next one clears up. When two jobs stage to the
    same place at once the second waits for the first and finds its copy. A copy that is there and
    whole is used as it is.

    Moves once per node all bytes of the data set from the source's file system to the node.
    What is left out: files are not brought to the disk by force (`fsync`), so after a power
    failure do not use `quick`.

    Args:
        source: folder of a data set: one of `formats.create`, or any folder of ordinary files,
            with SHA256SUMS or without.
        target: name of the copy; equal on all ranks of a node. The folders around it are made.
        comm: the ranks; all must call with the same arguments. None for this process alone.
        node_comm: the ranks of `comm` that use the same target; None for those that share
            memory, which are those of a node.
        quick: whether to trust a copy that is there when names, lengths and, without checksums,
            times of change fit. Otherwise its bytes are read and held against their checksums.
        replace: whether to replace what stands under the name when it is no whole copy of the
            source.
        progress: True draws a bar; a function is called with the bytes done and in all; on
            rank 0 of `comm` only.

    Returns:
        Staged: what was done on this rank's node; the same on all its ranks.

    Raises:
        ValueError: on all ranks alike, when an argument is not what it must be, something else
            stands under the name, or the disk is too full.
        TransferError: on all ranks alike, when a rank could not copy; the text names it and why.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 4.6: copy the data set to every
        node before training where it fits there, as ImageNet-1K with its 42 GB does.
    """
    if comm is None:
        return _stage(source, target, quick, replace, progress)
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank) if node_comm is None else node_comm
    asked = (str(source), bool(quick), bool(replace))
    try:
        _raise(comm.allgather(_unequal(comm, node, asked, str(target))))
        problem = staged = None
        if node.rank == 0:
            try:
                told = progress if comm.rank == 0 else None
                staged = _stage(source, target, quick, replace, told)
            except Exception as error:  # all ranks raise it
                problem = (isinstance(error, ValueError), str(error) or type(error).__name__)
        _raise(_meet(comm, problem))
        return node.bcast(staged)
    finally:
        if node_comm is None:
            node.Free()


def _unequal(comm: Comm, node: Comm, asked: tuple, target: str) -> tuple[bool, str] | None:
    """Find arguments that differ between ranks; only the target may, from node to node."""
    everyone = comm.allgather(asked)
    targets = node.allgather(target)
    for name, kinds in (
        *zip(("source", "quick", "replace"), zip(*everyone, strict=True), strict=True),
        ("target", targets),
    ):
        different = sorted(map(repr, set(kinds)))
        if len(different) > 1:
            where = "ranks of a node" if name == "target" else "ranks"
            return True, f"`{name}` must be equal on all {where}, got {' and '.join(different)}."
    return None


def _meet(comm: Comm, problem: tuple[bool, str] | None) -> list[tuple[bool, str] | None]:
    """Wait for all ranks without taking a core from those that copy; gather what went wrong."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_LOOK_S)
    return comm.allgather(problem)


def _raise(told: list[tuple[bool, str] | None]) -> None:
    """Raise what some ranks told, the same text on all."""
    ranks: dict[str, list[int]] = {}
    for rank, problem in enumerate(told):
        if problem is not None:
            ranks.setdefault(problem[1], []).append(rank)
    if not ranks:
        return
    text = " ".join(
        f"Rank{'s' * (len(at) > 1)} {', '.join(map(str, at))}: {what}" for what, at in ranks.items()
    )
    values = all(problem[0] for problem in told if problem is not None)
    raise ValueError(text) if values else TransferError(text)


def _stage(
    source: str | os.PathLike,
    target: str | os.PathLike,
    quick: bool,
    replace: bool,
    progress: bool | Progress | None,
) -> Staged:
    """Stage in this process, while no other one stages to the same place."""
    started = time.monotonic()
    given, final = Path(os.path.abspath(source)), Path(os.path.abspath(target))
    _require_apart(given, final)
    require_folder(given)
    require_writable(final.parent, "target")
    with file_lock(final.with_name(f".{final.name}.lock"), wait=True):
        listing = list_files(given)  # the source may have changed while we waited
        partial, before = (final.with_name(f".{final.name}.{what}") for what in ("partial", "old"))
        for left in (partial, before):  # we hold the lock: whoever made them is gone
            shutil.rmtree(left, ignore_errors=True)
        copied = False
        with reporting(progress, f"staging {final.name}") as report:
            if not _is_there(listing, final, quick, replace, _counter(report, listing)):
                require_writable(final.parent, "target", listing.nbytes)
                _copy(given, partial, listing, _counter(report, listing))
                if os.path.lexists(final):
                    os.rename(final, before)
                os.rename(partial, final)
                shutil.rmtree(before, ignore_errors=True)
                copied = True
    seconds = time.monotonic() - started
    return Staged(str(final), len(listing.files), listing.nbytes, seconds, copied)


def _is_there(
    listing: Listing, final: Path, quick: bool, replace: bool, done: Callable[[int], None]
) -> bool:
    if not os.path.lexists(final):
        return False
    what = difference(listing, final, quick, done)
    must = "hold nothing, or a whole copy of the source"
    then = "Remove it, choose another target, or use `replace=True`."
    require(not what or replace, "target", must, f"{final}: {what}", then)
    return not what


def _copy(source: Path, partial: Path, listing: Listing, done: Callable[[int], None]) -> None:
    try:
        copy_all(source, partial, listing, done)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _counter(report: Progress, listing: Listing) -> Callable[[int], None]:
    """Give a function that adds up bytes and reports their sum; threads may call it at once."""
    done, alone = 0, threading.Lock()

    def add(nbytes: int) -> None:
        nonlocal done
        with alone:
            done += nbytes
            report(done, listing.nbytes)

    return add


def _require_apart(source: Path, target: Path) -> None:
    """Neither folder may lie in the other: a copy would copy itself, a replacement its source."""
    real, goal = source.resolve(), target.resolve()
    apart = real != goal and real not in goal.parents and goal not in real.parents
    require(apart, "target", f"lie apart from the source {source}", str(target))
