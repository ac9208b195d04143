"""Rings in a graph of links, and a systolic array, against brute force and NumPy.

Tests dlguide.machine.links and dlguide.machine.systolic.
"""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlguide.machine import links, systolic


def test_dgx_1_has_six_links_a_gpu_and_the_guide_s_two_examples():
    assert links.devices(links.DGX_1) == tuple(range(8))
    for gpu in range(8):
        assert sum(links.bandwidth(links.DGX_1, gpu, other) for other in range(8)) == 300e9
    assert links.bandwidth(links.DGX_1, 0, 1) == 100e9
    assert links.bandwidth(links.DGX_1, 3, 0) == 50e9
    assert links.bandwidth(links.DGX_1, 0, 7) == 0.0


def slowest(graph, order):
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    return min(links.bandwidth(graph, a, b) for a, b in pairs)


def test_best_ring_of_dgx_1_takes_double_links_only_and_three_rings_use_all():
    ring = links.best_ring(links.DGX_1)
    assert sorted(ring.order) == list(range(8))
    assert ring.bytes_per_s == slowest(links.DGX_1, ring.order) == 100e9
    found = links.rings(links.DGX_1, 50e9)
    assert len(found) == 3
    used = dict.fromkeys(links.DGX_1, 0.0)
    for each in found:
        for pair in zip(each.order, (*each.order[1:], each.order[0]), strict=True):
            used[pair if pair in used else pair[::-1]] += 50e9
    assert used == links.DGX_1


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_best_ring_is_that_of_trying_all(data):
    count = data.draw(st.integers(3, 6))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    speeds = data.draw(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=len(pairs), max_size=len(pairs))
    )
    graph = {pair: speed for pair, speed in zip(pairs, speeds, strict=True) if speed}
    if len(links.devices(graph)) < 3:
        return
    everyone = links.devices(graph)
    best = max(slowest(graph, (everyone[0], *rest)) for rest in permutations(everyone[1:]))
    ring = links.best_ring(graph)
    assert (ring.bytes_per_s if ring else 0.0) == best
    assert ring is None or slowest(graph, ring.order) == best


def test_nonsense_graphs_are_refused():
    with pytest.raises(ValueError, match="`links` must link 3 to 16 devices, got 2"):
        links.best_ring({(0, 1): 1.0})
    with pytest.raises(ValueError, match="`width` must be positive, got 0"):
        links.rings(links.DGX_1, 0)
    assert links.best_ring({(0, 1): 1.0, (1, 2): 1.0}) is None


@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 4, 4), (1, 3, 2), (7, 2, 5)])
def test_systolic_array_gives_the_product_and_never_reads_twice(rows, depth, columns):
    random = np.random.default_rng(rows)
    left = random.integers(-9, 9, (rows, depth))
    right = random.integers(-9, 9, (depth, columns))
    found = systolic.clocks(left, right)
    assert np.array_equal(np.array(found[-1].results), left @ right)
    assert len(found) == rows + depth + columns - 2
    assert sum(each.busy for each in found) == rows * depth * columns
    # a number comes into the first column once, and walks on from there
    entered = [row[0] for each in found for row in each.inputs if row[0] is not None]
    assert sorted(entered) == sorted(left.ravel().tolist())
    for before, after in pairwise(found):
        for k in range(depth):
            assert after.inputs[k][1:] == before.inputs[k][:-1]


def test_systolic_array_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"`inputs` must be M x 2 for these weights, got \(2, 3\)"):
        systolic.clocks(np.ones((2, 3)), np.ones((2, 2)))


# --- their pictures ----------------------------------------------------------------------------
