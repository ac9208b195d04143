"""One notebook, executed in this process: what `execute` starts."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from dlguide.notebooks.executing import CUT, raise_loopback
from dlguide.notebooks.shortening import shorten


def _run(path: Path, output: Path | None, fast: bool) -> str:
    """Execute a notebook in this process; return what failed, or nothing."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    if fast:
        shorten(notebook.cells)
    client = NotebookClient(
        notebook,
        timeout=None,  # the process has the limit
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        return re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    finally:
        if output is not None:
            nbformat.write(notebook, output)
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Execute one notebook in this process, with `lo` raised if the network was cut.

    Args:
        arguments: what follows the command's name; None takes it from the command line.

    Returns:
        int: the exit status.
    """
    parser = argparse.ArgumentParser("dlguide.notebooks")
    parser.add_argument("path", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--fast", action="store_true")
    chosen = parser.parse_args(arguments)
    if os.environ.get(CUT) == "1":
        raise_loopback()
    error = _run(chosen.path, chosen.output, chosen.fast)
    if error:
        print(error)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
