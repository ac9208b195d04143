"""The order of the thesis' recipes comes out in notebook 25's setting, on seeds it does not use.

Tests dlguide.training.experiments with the recipes that stand in the notebook.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlguide.cluster import Cluster
from dlguide.training import experiments

pytestmark = pytest.mark.long

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "25_large_batches.ipynb"
SEEDS = range(10, 15)


def lesson():
    """Take the recipes from the cell that defines them, so that test and lesson cannot part."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (cell,) = [source for source in sources if "\nrecipes = {" in source]
    names = {"experiments": experiments, "replace": replace}
    exec(cell.partition("\nsteps_of")[0], names)
    return names["recipes"]


@pytest.fixture(scope="module")
def results():
    recipes = lesson()
    recipes["reduced"] = replace(recipes["stepping"], batch_per_worker=8)
    with Cluster(ranks=2) as cluster:
        settings = experiments.each_seed(recipes, SEEDS)
        return experiments.run(settings, cluster=cluster, show=False)


def compared(results, first, second):
    return experiments.compare(*(experiments.select(results, name) for name in (first, second)))


# Another processor adds up in another order, and with the scaled rate that is another training:
# the margins lie well inside what comes out, and only large losses must be clear as well.
@pytest.mark.parametrize(
    ("better", "worse", "points"),
    [
        ("baseline", "naive", 2.0),
        ("no warmup", "naive", 0.0),
        ("stepping", "no warmup", 0.3),
        ("gradual", "no warmup", 0.3),
        ("reduced", "stepping", 0.0),
    ],
)
def test_order_of_the_thesis_comes_out(better, worse, points, results):
    difference = compared(results, better, worse)
    assert 100 * difference.mean > points, str(difference)


@pytest.mark.parametrize("better", ["baseline", "stepping", "gradual"])
def test_loss_by_naive_scaling_is_clear(better, results):
    difference = compared(results, better, "naive")
    assert difference.clear, str(difference)


@pytest.mark.parametrize("warmup", ["stepping", "gradual"])
def test_warmup_gives_back_more_than_half_of_what_naive_scaling_lost(warmup, results):
    lost = compared(results, "baseline", "naive").mean
    assert compared(results, warmup, "naive").mean > lost / 2
