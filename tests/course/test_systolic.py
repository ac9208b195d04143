"""A systolic array against NumPy.

Tests dlcourse.processors.
"""

from itertools import pairwise

import numpy as np
import pytest

from dlcourse import processors


@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 4, 4), (1, 3, 2), (7, 2, 5)])
def test_systolic_array_gives_the_product_and_never_reads_twice(rows, depth, columns):
    random = np.random.default_rng(rows)
    left = random.integers(-9, 9, (rows, depth))
    right = random.integers(-9, 9, (depth, columns))
    found = processors.systolic_clocks(left, right)
    assert np.array_equal(np.array(found[-1].results), left @ right)
    assert len(found) == rows + depth + columns - 2
    assert sum(each.busy for each in found) == rows * depth * columns
    # a number comes into the first column once, and walks on from there
    entered = [row[0] for each in found for row in each.inputs if row[0] is not None]
    assert sorted(entered) == sorted(left.ravel().tolist())
    for before, after in pairwise(found):
        for k in range(depth):
            assert after.inputs[k][1:] == before.inputs[k][:-1]
