"""In a notebook: `%%px`, a cell that is run again, and a closed or killed kernel.

Covers dlguide.cluster.magics in a real kernel.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from dlguide.cluster import magics, processes

pytestmark = pytest.mark.timeout(240)

START = "import dlguide\ncluster = dlguide.cluster.Cluster(ranks=2)\nprint(cluster.name)"


@contextmanager
def kernel():
    """Start a kernel; give a function that runs a cell in it and returns what it printed."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=90, kernel_name="python3")

    def run(code):
        cell = nbformat.v4.new_code_cell(code)
        client.nb.cells.append(cell)
        client.execute_cell(cell, len(client.nb.cells) - 1)
        texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
        return "".join(texts)

    with client.setup_kernel():
        yield run


def test_px_runs_cells_on_the_ranks_under_watch():
    with kernel() as run:
        name = run(START).strip()
        assert run("%%px\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nrank * 10") in (
            "[0] 0\n[1] 10\n",
            "[1] 10\n[0] 0\n",
        )
        assert sorted(run("%pxresult").split("\n")) == ["", "[0] 0", "[1] 10"]
        assert run("%%px --targets 1\nprint('only', rank)") == "[1] only 1\n"
        assert sorted(run("%px print(rank)").split("\n")) == ["", "[0] 0", "[1] 1"]
        assert run("%%px --local\nhere = 5\nassert here == 5") == ""
        assert run("print(here)") == "5\n"
        with pytest.raises(CellExecutionError, match="targets` must be ranks from 0 to 1"):
            run("%%px --targets 2\n1")
        with pytest.raises(CellExecutionError, match="each once, as in 0,1, got '0,0'"):
            run("%%px --targets 0,0\n1")
        with pytest.raises(CellExecutionError, match=r"rank 1 has not joined|rank 1 has returned"):
            run("%%px\nif rank == 0:\n    MPI.COMM_WORLD.barrier()")
        assert "[0] again\n" in run("%%px\nprint('again')")
        with pytest.raises(CellExecutionError, match="NameError: name 'rank' is not defined"):
            run("%%px\nrank")
        with pytest.raises(CellExecutionError, match="SyntaxError"):
            run("%%px\n1 +")
        assert name != run("print(cluster.name)").strip()


def test_a_cell_that_is_run_again_replaces_its_cluster_and_a_closed_kernel_takes_it_along():
    with kernel() as run:
        first = run(START).strip()
        second = run(START).strip()
        assert first != second
        assert not [each for each in processes.living() if each.cluster == first]
        assert run("cluster.run(lambda: 3)") == "[3, 3]"
    deadline = time.monotonic() + 15
    while [each for each in processes.living() if each.cluster == second]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_options_name_the_ranks():
    assert magics.options("", 3) == ([0, 1, 2], False)
    assert magics.options("-t 2", 3) == ([2], False)
    with pytest.raises(ValueError, match="--noblock"):
        magics.options("--noblock", 3)
