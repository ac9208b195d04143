"""What nvidia-smi prints is read as the graph that it means.

Tests dlguide.machine.link_matrix.
"""

from __future__ import annotations

import itertools

import pytest

from dlguide.machine import link_matrix, links

# the hybrid cube mesh of 8 V100 as nvidia-smi numbers it
CUBE_MESH = """
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity\x1b[0m
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \t20-39,60-79

Legend:
  X    = Self
"""
PAIRS_ON_PCIE = """
        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      PHB     SYS     SYS     0-13
GPU1    PHB      X      SYS     SYS     0-13
GPU2    SYS     SYS      X      PHB     14-27
GPU3    SYS     SYS     PHB      X      14-27
"""


def test_it_is_the_same_mesh_as_the_guides_numbered_otherwise():
    mesh = link_matrix.read(CUBE_MESH, 50e9)
    assert all(sum(links.bandwidth(mesh, a, b) for b in range(8)) == 300e9 for a in range(8))
    assert sorted(mesh.values()) == sorted(links.DGX_1.values())
    wanted = {frozenset(pair): speed for pair, speed in links.DGX_1.items()}

    def renamed(order):
        return {frozenset((order[a], order[b])): speed for (a, b), speed in mesh.items()}

    assert any(renamed(order) == wanted for order in itertools.permutations(range(8)))
    assert links.best_ring(mesh).bytes_per_s == 100e9


def test_the_built_in_matrix_is_the_printed_one():
    assert link_matrix.read(link_matrix.DGX_1, 50e9) == link_matrix.read(CUBE_MESH, 50e9)
    assert link_matrix.ways(link_matrix.DGX_1) == link_matrix.ways(CUBE_MESH)


def test_the_driver_is_asked_where_there_is_one(tmp_path):
    assert link_matrix.of_this_node("no-such-program") is None
    for name, line, expected in (
        ("works", 'printf "GPU0 X NV2\\nGPU1 NV2 X\\n"; test "$*" = "topo -m"', {(0, 1): 100e9}),
        ("no-device", 'echo "No devices were found"', None),
        ("fails", 'echo "GPU0 X"; exit 9', None),
    ):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        text = link_matrix.of_this_node(str(program))
        assert (text and link_matrix.read(text, 50e9)) == expected


def test_pairs_without_nvlink_go_through_the_host():
    assert link_matrix.read(PAIRS_ON_PCIE, 50e9) == {}
    assert link_matrix.ways(PAIRS_ON_PCIE)[0, 1] == "PHB"
    assert link_matrix.ways(PAIRS_ON_PCIE)[1, 2] == "SYS"
    assert len(link_matrix.ways(PAIRS_ON_PCIE)) == 6
    ways = link_matrix.ways(CUBE_MESH)
    assert len(ways) == 28 - 16
    assert set(ways.values()) == {"SYS"}


def test_the_way_through_the_host_fills_what_is_missing_and_no_more():
    mesh = link_matrix.read(CUBE_MESH, 50e9)
    whole = link_matrix.through_host(mesh, 12e9)
    assert len(whole) == 28
    assert sorted(whole.values()) == sorted([*mesh.values(), *[12e9] * 12])
    assert link_matrix.slowest(tuple(range(8)), mesh) == 0.0
    assert link_matrix.slowest(tuple(range(8)), whole) == 12e9
    best = links.best_ring(mesh)
    assert link_matrix.slowest(best.order, whole) == best.bytes_per_s


ONE = "\x1b[4m\tGPU0\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \t0-15\t0\n"
TWO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n"


@pytest.mark.parametrize(("text", "count"), [(ONE, 1), (TWO, 2), (PAIRS_ON_PCIE, 4)])
def test_gpus_without_nvlink_are_there_too(text, count):
    everyone = link_matrix.gpus(text)
    assert everyone == tuple(range(count))
    mesh = link_matrix.read(text, 50e9)
    assert mesh == {}
    whole = link_matrix.through_host(mesh, 30e9, everyone)
    assert len(whole) == count * (count - 1) // 2
    if count > 2:
        assert links.best_ring(whole).bytes_per_s == 30e9


def test_text_that_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match="rows that begin with GPU0"):
        link_matrix.read("no devices were found", 50e9)
    with pytest.raises(ValueError, match="say the same of GPU 0 and 1"):
        link_matrix.read("GPU0 X NV1\nGPU1 NV2 X", 50e9)
    with pytest.raises(ValueError, match=r"2 columns for 2 GPUs.*rows \[1\]"):
        link_matrix.read("GPU0 X NV1\nGPU1 NV1", 50e9)
    with pytest.raises(ValueError, match="link_bytes_per_s"):
        link_matrix.read(PAIRS_ON_PCIE, 0)
