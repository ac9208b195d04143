"""The table of fastest allreduces, kept for this machine from one run to the next."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
import warnings
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dlguide.collectives.choosing import LIBRARY, Table
from dlguide.files import cache_folder

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def path(ranks: int) -> Path:
    """Name the file of this machine's table."""
    return cache_folder() / f"allreduce-{platform.node()}-{ranks}.json"


def keep(table: Table) -> Path:
    """Write a table for this machine, by a temporary file and a rename."""
    target = path(table.ranks)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".json")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(table), file)
        os.replace(name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return target


def load(ranks: int) -> Table:
    """Read this machine's table; without one, the MPI library's allreduce for all sizes.

    Args:
        ranks: number of ranks (count).

    Returns:
        Table: for `allreduce`. A damaged file is told by a warning and not used.
    """
    unmeasured = Table(ranks, ((0, LIBRARY),))
    try:
        return Table.from_dict(json.loads(path(ranks).read_text()))
    except FileNotFoundError:
        return unmeasured
    except (ValueError, KeyError, TypeError, OSError) as error:
        warnings.warn(
            f"{path(ranks)} is not a table of allreduces ({error}), so MPI's allreduce is taken. "
            "Delete it, or measure again with `dlguide bench allreduce`.",
            RuntimeWarning,
            stacklevel=2,
        )
        return unmeasured


def table_of(comm: Comm) -> Table:
    """Give all ranks of a communicator the table of its first one; collective at the first call.

    Ranks that looked into different files could choose different algorithms, and hang.
    """
    kept = comm.Get_attr(_key())
    if kept is None:
        kept = comm.bcast(load(comm.size) if comm.rank == 0 else None)
        comm.Set_attr(_key(), kept)
    return kept


@cache
def _key() -> int:
    from mpi4py import MPI

    return MPI.Comm.Create_keyval()
