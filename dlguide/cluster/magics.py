"""`%%px` for a `Cluster`: a cell runs on the ranks under the same supervision as a function."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any

from dlguide.cluster import rank
from dlguide.cluster.output import RankOutput
from dlguide.errors import require


def register(cluster: Callable[[], Any]) -> None:
    """Register the magics `%px`, `%%px` and `%pxresult` for a cluster in this notebook."""
    import IPython

    def live() -> Any:
        found = cluster()
        if found is None:
            raise RuntimeError("The cluster is gone. Run `cluster = dlguide.cluster.Cluster()`.")
        return found

    def px(line: str, cell: str | None = None) -> None:
        _run_cell(live(), line, cell)

    def pxresult(line: str) -> None:
        call = live().last_call
        if call is None:
            raise RuntimeError("No cell has run on the ranks. Run one with `%%px`.")
        RankOutput(call.folder, call.calls).close()

    shell = IPython.get_ipython()
    shell.register_magic_function(px, "line_cell", "px")
    shell.register_magic_function(pxresult, "line", "pxresult")


def _run_cell(cluster: Any, line: str, cell: str | None) -> None:
    """Run a cell on the ranks; `line` holds the options and, without a cell, the code.

    Options: `--targets 0,2` for some ranks only, `--local` to run it in this kernel as well.
    """
    if cell is None:
        ranks, local, code = list(range(cluster.ranks)), False, line
    else:
        ranks, local = options(line, cluster.ranks)
        code = cell
    if local:
        import IPython

        IPython.get_ipython().run_cell(code)
    cluster.run_on(ranks, rank.run_cell, code)


def options(line: str, ranks: int) -> tuple[list[int], bool]:
    """Parse the options of a `%%px` line.

    >>> options("--targets 0,2", 3)
    ([0, 2], False)
    """
    parser = argparse.ArgumentParser(prog="%%px", add_help=False, exit_on_error=False)
    parser.add_argument("--targets", "-t", default="all")
    parser.add_argument("--local", action="store_true")
    given, unknown = parser.parse_known_args(shlex.split(line))
    require(not unknown, "%%px", "be followed by --targets or --local only", " ".join(unknown))
    if given.targets == "all":
        return list(range(ranks)), given.local
    words = given.targets.split(",")
    chosen = [int(word) for word in words if word.strip().isdigit()]
    good = len(set(chosen)) == len(words) and max(chosen) < ranks
    require(good, "targets", f"be ranks from 0 to {ranks - 1}, each once, as in 0,1", given.targets)
    return chosen, given.local
