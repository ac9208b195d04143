"""Predicted schedules obey what they promise, and measured overlap is what its formula says.

Tests dlcourse.parallel.overlap.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse.parallel import overlap
from dlcourse.parallel.overlap import OverlapTiming, predict
from dlguide.measure import Timing
from dlguide.models import Cost, LayerCost

# two ranks, no latency, 1000 bytes/s: a message takes a second for 1000 bytes
WIRE = {"ranks": 2, "latency_s": 0.0, "bytes_per_s": 1000.0}


def rows(schedule):
    return [(each.kind[0], each.layer, each.start_s, each.end_s) for each in schedule.intervals]


@pytest.mark.parametrize(
    ("name", "backward", "exchange", "forward", "exposed"),
    [
        ("end", [(1, 0, 2), (0, 2, 4)], [(None, 4, 8)], [(0, 8, 9), (1, 9, 10)], 4),
        ("layerwise", [(1, 0, 2), (0, 5, 7)], [(1, 2, 5), (0, 7, 8)], [(0, 8, 9), (1, 9, 10)], 4),
        ("overlapped", [(1, 0, 2), (0, 2, 4)], [(1, 2, 5), (0, 5, 6)], [(0, 6, 7), (1, 7, 8)], 2),
        ("priority", [(1, 0, 2), (0, 2, 4)], [(1, 2, 5), (0, 5, 6)], [(0, 6, 7), (1, 7, 8)], 2),
    ],
)
def test_two_layers_as_worked_out_by_hand(name, backward, exchange, forward, exposed):
    found = predict([1, 1], [2, 2], [1000, 3000], name, **WIRE)
    right = [("b", *each) for each in backward] + [("e", *each) for each in exchange]
    assert rows(found) == right + [("f", *each) for each in forward]
    assert (found.computing_s, found.exchange_s, found.exposed_s) == (6, 4, exposed)
    assert found.overlap == 1 - exposed / 4


def test_priority_lets_the_first_layer_pass_the_slices_of_the_last():
    arguments = ([1, 1, 1], [1, 1, 1], [1000, 1000, 6000])
    whole = predict(*arguments, "priority", **WIRE)
    assert [each.layer for each in whole.intervals if each.kind == "exchange"] == [2, 0, 1]
    cut = predict(*arguments, "priority", **WIRE, slice_bytes=2000)
    sent = [(e.layer, e.start_s, e.end_s) for e in cut.intervals if e.kind == "exchange"]
    assert sent == [(2, 1, 3), (0, 3, 4), (1, 4, 5), (2, 5, 7), (2, 7, 9)]
    forward = [(e.layer, e.start_s) for e in cut.intervals if e.kind == "forward"]
    assert forward == [(0, 4), (1, 5), (2, 9)]
    assert (whole.step_s, cut.step_s) == (11, 10)


times = st.floats(0, 5)
nets = st.lists(st.tuples(times, times, st.integers(0, 9000)), min_size=1, max_size=6)


@given(nets, st.integers(1, 5), st.floats(0, 0.1), st.sampled_from([None, 700, 5000]))
def test_every_schedule_obeys_causes_and_bounds(layers, ranks, latency_s, slice_bytes):
    forward_s, backward_s, nbytes = zip(*layers, strict=True)
    found = {
        name: predict(forward_s, backward_s, nbytes, name, ranks, latency_s, 1000.0, slice_bytes)
        for name in overlap.SCHEDULES
    }
    compute_s = sum(forward_s) + sum(backward_s)
    for name, schedule in found.items():
        of = {kind: [e for e in schedule.intervals if e.kind == kind]
              for kind in ("backward", "exchange", "forward")}  # fmt: skip
        assert [e.layer for e in of["backward"]] == list(reversed(range(len(layers))))
        assert [e.layer for e in of["forward"]] == list(range(len(layers)))
        for row in (of["backward"] + of["forward"], of["exchange"]):
            assert all(b.start_s >= a.end_s - 1e-9 for a, b in pairwise(row))
        ready = {e.layer: e.end_s for e in of["backward"]}
        needed = {e.layer: e.start_s for e in of["forward"]}
        for each in of["exchange"]:
            made = sum(backward_s) if each.layer is None else ready[each.layer]
            assert each.start_s >= made - 1e-9
            assert each.end_s <= needed[each.layer or 0] + 1e-9
        assert schedule.computing_s == pytest.approx(compute_s)
        first_s = backward_s[-1]
        least = max(compute_s, first_s + schedule.exchange_s)
        most = compute_s + schedule.exchange_s
        assert least - 1e-9 <= schedule.step_s <= most + 1e-9, name
        assert -1e-9 <= schedule.exposed_s <= schedule.exchange_s + 1e-9
    for name in ("end", "layerwise"):
        assert found[name].exposed_s == pytest.approx(found[name].exchange_s)
    assert found["overlapped"].step_s <= found["layerwise"].step_s + 1e-9
    assert found["priority"].step_s <= found["overlapped"].step_s + 1e-9


@given(nets)
def test_overlapped_equals_the_recursion(layers):
    """A message ends at max(end of the one before, gradient ready) + its time."""
    forward_s, backward_s, nbytes = zip(*layers, strict=True)
    ready = end = 0.0
    for took, size in zip(reversed(backward_s), reversed(nbytes), strict=True):
        ready += took
        end = max(end, ready) + size / 1000
    found = predict(forward_s, backward_s, nbytes, "overlapped", **WIRE)
    assert found.step_s == pytest.approx(end + sum(forward_s))


def layer(name, trainable, multiply_adds):
    return LayerCost(name, "", (1,), trainable, 0, trainable, multiply_adds, 0, 0, 0, 0, 1.0)


def test_time_is_shared_by_flops_and_layers_without_weights_join_the_one_before():
    parts = [("in", 0, 5), ("a", 10, 20), ("pool", 0, 5), ("b", 30, 60), ("out", 0, 10)]
    cost = Cost("net", 1, tuple(layer(*part) for part in parts))
    forward_s, backward_s, nbytes = overlap.split_by_layer(cost, 3.0)
    assert np.allclose(forward_s, [0.3, 0.7])
    assert np.allclose(backward_s, [0.6, 1.4])
    assert nbytes == [40, 120]


def test_overlap_is_what_computing_hides():
    def timing(*seconds):
        return Timing(tuple(seconds))

    alone = (timing(4.0, 4.0, 4.0), timing(10.0, 11.0, 12.0))
    one = OverlapTiming("iallreduce", "host", 2, 8, *alone, timing(11.0, 12.0, 13.0))
    assert (one.exposed_s, one.overlap, one.spread) == (1.0, 0.75, (0.75, 0.75))
    disturbed = OverlapTiming("iallreduce", "host", 2, 8, *alone, timing(16.0, 19.0, 16.0))
    assert (disturbed.exposed_s, disturbed.overlap) == (6.0, -0.5)
    assert disturbed.spread == (1 - 7 / 4, 1 - 5 / 4)
    assert "exposed 6000.00 of 4000.00 ms, overlap -0.50 (-0.75 to -0.25)" in str(disturbed)
