"""The order of the thesis' recipes comes out in notebook 25's setting, on seeds it does not use.

Tests dlcourse.large_batches with the recipes that stand in the notebook.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlcourse import large_batches
from dlguide.data import datasets

pytestmark = pytest.mark.long

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "25_large_batches.ipynb"
SEEDS = range(10, 15)


def lesson():
    """Take the recipes from the cell that defines them, so that test and lesson cannot part."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (cell,) = [source for source in sources if "\nrecipes = {" in source]
    names = {"large_batches": large_batches, "replace": replace}
    exec(cell.partition("\nsteps_of")[0], names)
    return names["recipes"]


@pytest.fixture(scope="module")
def points():
    """Test accuracy after the last epoch (%), of each recipe and seed."""
    recipes, data = lesson(), datasets.load()
    return {
        name: np.array([
            100 * large_batches.train(recipes[name], seed, data, every_epochs=8).accuracy
            for seed in SEEDS
        ])
        for name in ("baseline", "naive", "no warmup", "stepping", "gradual", "reduced")
    }  # fmt: skip


# Another processor adds up in another order, and with the scaled rate that is another training:
# the margins lie well inside what comes out, and only large losses must be clear as well.
@pytest.mark.parametrize(
    ("better", "worse", "margin"),
    [
        ("baseline", "naive", 2.0),
        ("no warmup", "naive", 0.0),
        ("stepping", "no warmup", 0.3),
        ("gradual", "no warmup", 0.3),
        ("reduced", "stepping", 0.0),
    ],
)
def test_order_of_the_thesis_comes_out(better, worse, margin, points):
    gains = points[better] - points[worse]
    assert gains.mean() > margin, gains


@pytest.mark.parametrize("better", ["baseline", "stepping", "gradual"])
def test_loss_by_naive_scaling_is_clear(better, points):
    gains = points[better] - points["naive"]
    assert large_batches.confidence_interval(gains)[0] > 0, gains


@pytest.mark.parametrize("warmup", ["stepping", "gradual"])
def test_warmup_gives_back_more_than_half_of_what_naive_scaling_lost(warmup, points):
    lost = points["baseline"] - points["naive"]
    assert (points[warmup] - points["naive"]).mean() > lost.mean() / 2
