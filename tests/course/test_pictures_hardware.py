"""Pictures of hardware draw every core, link and cell, and the roof as its formula."""

import numpy as np
import pytest
from fake_machine import machine as fake

from dlcourse import gpu_topology, pictures, processors, roofline
from dlcourse.roofline import Roof

ROOF = Roof(
    processor="Some Processor",
    threads=2,
    flops_per_s={"float32": 2e11, "int8": 8e11},
    bytes_per_s=4e10,
    median_per_s={"float32": 1.9e11, "int8": 8e11, "memory": 3.9e10},
    how={"float32": "a", "int8": "b", "memory": "c"},
    missing={"bfloat16": "this processor multiplies no bfloat16"},
)


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("nodes", [(2,), (24, 24), (16, 16, 16, 16)])
def test_topology_draws_every_core_once(nodes):
    here = fake(*nodes, threads=2)
    (axes,) = pictures.topology(here).axes
    boxes = [patch for patch in axes.patches if patch.get_width() == 0.85]
    assert len(boxes) == here.physical_cores
    numbers = [int(word) for text in texts(axes) for word in text.split() if word.isdigit()]
    assert set(range(here.logical_cores)) <= set(numbers)
    assert sum("NUMA" in text for text in texts(axes)) == len(nodes)


def test_catalogue_draws_what_is_stated():
    found = processors.select(since=2016)
    name = "NVIDIA P100 SXM2"
    peak, bandwidth, balance = pictures.catalogue(found, {name: "P100"}).axes
    assert len(bandwidth.lines) == len([each for each in found if each.bytes_per_s])
    assert texts(peak) == texts(bandwidth) == texts(balance) == ["P100"]
    points = [line.get_xydata()[0].tolist() for line in balance.lines]
    assert [2016, pytest.approx(21.2e12 / 732e9)] in points


def test_links_draw_each_link_and_the_ring_over_them():
    ring = gpu_topology.best_ring(gpu_topology.DGX_1)
    (axes,) = pictures.links(gpu_topology.DGX_1, ring.order).axes
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert len(dashed) == 8
    assert texts(axes).count("100") == 8
    assert texts(axes).count("50") == 8
    left, right = pictures.links(gpu_topology.DGX_1, range(8), ring.order).axes
    dotted = [[line.get_linestyle() for line in each.lines].count(":") for each in (left, right)]
    missing = sum(not gpu_topology.bandwidth(gpu_topology.DGX_1, k, (k + 1) % 8) for k in range(8))
    assert dotted == [missing, 0]


def test_the_plot_draws_slope_peaks_and_points():
    placed = [
        roofline.place(ROOF, "dense", 1e9, 1e9, seconds=0.1),
        roofline.place(ROOF, "convolution", 1e9, 1e7),
    ]
    (axes,) = pictures.roofline(ROOF, placed).axes
    roofs = {line.get_label(): line.get_xydata() for line in axes.lines[:2]}
    for dtype, data in roofs.items():
        right = np.minimum(ROOF.flops_per_s[dtype], data[:, 0] * ROOF.bytes_per_s)
        assert np.allclose(data[:, 1], right)
    points = [line.get_xydata()[0].tolist() for line in axes.lines[2:]]
    assert points == [[1.0, 1e10], [100.0, 2e11]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "intensity (flop/byte)",
        "operations per second",
    )
    words = pictures.roofline(ROOF, placed)._repr_html_()
    assert "dense at 1 flop/byte, limited by memory" in words
    assert "convolution at 100 flop/byte, limited by arithmetic" in words
