"""Execute a notebook and write down, cell by cell, how far it is: a line of JSON each.

It runs in a process of its own that may be killed at any moment; what was written stays.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from dlguide.notebooks import executing


def run(path: Path, journal: Path) -> bool:
    """Execute a notebook in this process and keep a journal.

    Args:
        path: the notebook.
        journal: the file to write: first the number of cells with code, then one line for each
            that ended, and one for an error.

    Returns:
        bool: whether every cell ran.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    code = [number for number, cell in enumerate(notebook.cells) if _has_code(cell)]

    def note(**entry: Any) -> None:
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def ended(cell: Any, cell_index: int, execute_reply: Any) -> None:
        if cell_index in code:
            note(done=code.index(cell_index) + 1)

    def failed(cell: Any, cell_index: int, execute_reply: Any) -> None:
        note(done=code.index(cell_index))  # it has ended too, but not well

    note(cells=len(code))
    client = NotebookClient(
        notebook,
        timeout=None,  # the process has the limit
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=ended,
        on_cell_error=failed,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        note(error=f"{error.ename}: {error.evalue}")
        return False
    except DeadKernelError:
        note(error="DeadKernelError: the kernel died")
        return False
    return True


def _has_code(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def main(arguments: list[str] | None = None) -> int:
    """Execute one notebook from the command line.

    Args:
        arguments: what follows the command's name; None takes it from the command line.

    Returns:
        int: the exit status.
    """
    parser = argparse.ArgumentParser("dlguide.doctor.journal")
    parser.add_argument("path", type=Path)
    parser.add_argument("journal", type=Path)
    chosen = parser.parse_args(arguments)
    if os.environ.get(executing.CUT) == "1":
        executing.raise_loopback()
    return 0 if run(chosen.path, chosen.journal) else 1


if __name__ == "__main__":
    sys.exit(main())
