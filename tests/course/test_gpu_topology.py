"""What nvidia-smi prints is read as the graph that it means.

Tests dlcourse.gpu_topology.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcourse import gpu_topology

PAIRS_ON_PCIE = """
        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      PHB     SYS     SYS     0-13
GPU1    PHB      X      SYS     SYS     0-13
GPU2    SYS     SYS      X      PHB     14-27
GPU3    SYS     SYS     PHB      X      14-27
"""


# DGX_1_MATRIX is the hybrid cube mesh of 8 V100 as nvidia-smi numbers it
def test_it_is_the_same_mesh_as_the_guides_numbered_otherwise():
    mesh = gpu_topology.parse_matrix(gpu_topology.DGX_1_MATRIX, 50e9)
    assert all(sum(gpu_topology.bandwidth(mesh, a, b) for b in range(8)) == 300e9 for a in range(8))
    assert sorted(mesh.values()) == sorted(gpu_topology.DGX_1.values())
    wanted = {frozenset(pair): speed for pair, speed in gpu_topology.DGX_1.items()}

    def renamed(order):
        return {frozenset((order[a], order[b])): speed for (a, b), speed in mesh.items()}

    assert any(renamed(order) == wanted for order in itertools.permutations(range(8)))
    assert gpu_topology.best_ring(mesh).bytes_per_s == 100e9


def test_the_driver_is_asked_where_there_is_one(tmp_path):
    assert gpu_topology.matrix_of_this_node("no-such-program") is None
    for name, line, expected in (
        ("works", 'printf "GPU0 X NV2\\nGPU1 NV2 X\\n"; test "$*" = "topo -m"', {(0, 1): 100e9}),
        ("no-device", 'echo "No devices were found"', None),
        ("fails", 'echo "GPU0 X"; exit 9', None),
    ):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        text = gpu_topology.matrix_of_this_node(str(program))
        assert (text and gpu_topology.parse_matrix(text, 50e9)) == expected


def test_the_way_through_the_host_fills_what_is_missing_and_no_more():
    mesh = gpu_topology.parse_matrix(gpu_topology.DGX_1_MATRIX, 50e9)
    whole = gpu_topology.through_host(mesh, 12e9)
    assert len(whole) == 28
    assert {pair: whole[pair] for pair in mesh} == mesh
    # the cells that say SYS
    through = {0: (5, 6, 7), 1: (4, 6, 7), 2: (4, 5, 7), 3: (4, 5, 6)}
    pairs = {(first, second) for first, others in through.items() for second in others}
    assert {pair: whole[pair] for pair in whole.keys() - mesh} == dict.fromkeys(pairs, 12e9)

    assert gpu_topology.slowest_link(tuple(range(8)), mesh) == 0.0
    assert gpu_topology.slowest_link(tuple(range(8)), whole) == 12e9
    best = gpu_topology.best_ring(mesh)
    assert gpu_topology.slowest_link(best.order, whole) == best.bytes_per_s


ONE = (
    "\x1b[4m\tGPU0\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \t0-15\t0\n\nLegend:\n  X = Self\n"
)
TWO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n"


@pytest.mark.parametrize(("text", "count"), [(ONE, 1), (TWO, 2), (PAIRS_ON_PCIE, 4)])
def test_gpus_without_nvlink_are_there_too(text, count):
    gpus = gpu_topology.gpus(text)
    assert gpus == tuple(range(count))
    assert gpu_topology.parse_matrix(text, 50e9) == {}
    whole = gpu_topology.through_host({}, 30e9, gpus)
    assert len(whole) == count * (count - 1) // 2
    if count > 2:
        assert gpu_topology.best_ring(whole).bytes_per_s == 30e9


def slowest(graph, order):
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    return min(gpu_topology.bandwidth(graph, a, b) for a, b in pairs)


def test_best_ring_of_dgx_1_takes_double_links_only_and_three_rings_use_all():
    ring = gpu_topology.best_ring(gpu_topology.DGX_1)
    assert sorted(ring.order) == list(range(8))
    assert ring.bytes_per_s == slowest(gpu_topology.DGX_1, ring.order) == 100e9
    found = gpu_topology.disjoint_rings(gpu_topology.DGX_1, 50e9)
    assert len(found) == 3
    used = dict.fromkeys(gpu_topology.DGX_1, 0.0)
    for each in found:
        for pair in zip(each.order, (*each.order[1:], each.order[0]), strict=True):
            used[pair if pair in used else pair[::-1]] += 50e9
    assert used == gpu_topology.DGX_1


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_best_ring_is_that_of_trying_all(data):
    count = data.draw(st.integers(3, 6))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    speeds = data.draw(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=len(pairs), max_size=len(pairs))
    )
    graph = {pair: speed for pair, speed in zip(pairs, speeds, strict=True) if speed}
    devices = gpu_topology.devices(graph)
    if len(devices) < 3:
        return
    best = max(slowest(graph, (devices[0], *rest)) for rest in itertools.permutations(devices[1:]))
    ring = gpu_topology.best_ring(graph)
    assert (ring.bytes_per_s if ring else 0.0) == best
    assert ring is None or slowest(graph, ring.order) == best
