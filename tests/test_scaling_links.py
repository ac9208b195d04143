"""Links by name have the published rates, and measured messages give their link back.

Tests dlguide.scaling.costs.links.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlguide import published
from dlguide.scaling import costs

ROWS = {row["name"]: row for row in published.load("links")}
UNKNOWN = [name for name, row in ROWS.items() if row["latency_us"] is None]


def test_every_row_names_its_source_and_what_its_latency_is():
    for row in ROWS.values():
        assert row["source"]
        known = ("measured", "upper bound", "model")
        assert (row["latency_is"] in known) == (row["latency_us"] is not None)
        assert row["latency_is"] in (*known, "not found")
        assert 1990 < row["year"] < 2027


@pytest.mark.parametrize("name", ROWS)
def test_link_has_the_latency_and_rate_of_the_table(name):
    found = costs.link(name, latency_s=1e-5 if name in UNKNOWN else None)
    assert found.bytes_per_s == pytest.approx(ROWS[name]["gbit_per_s"] * 125e6)
    expected = 1e-5 if name in UNKNOWN else ROWS[name]["latency_us"] * 1e-6
    assert found.latency_s == pytest.approx(expected)
    half = costs.link(name, 0.5, latency_s=0.0)
    assert half.bytes_per_s == pytest.approx(found.bytes_per_s / 2)
    assert half.latency_s == 0


def test_rates_are_those_of_the_tutorial():
    tutorial = {row["name"]: row for row in published.load("interconnects")}
    for ours, theirs in {
        "Gigabit Ethernet": "Gigabit Ethernet",
        "10-Gigabit Ethernet": "10-Gigabit Ethernet",
        "100-Gigabit Ethernet (RDMA)": "100-Gigabit Ethernet",
        "InfiniBand DDR": "InfiniBand 4X DDR",
        "InfiniBand FDR": "InfiniBand 4X FDR",
        "InfiniBand EDR": "InfiniBand 4X EDR",
        "InfiniBand HDR": "InfiniBand 4X HDR",
        "Omni-Path": "Omni-Path",
    }.items():
        assert ROWS[ours]["gbit_per_s"] == tutorial[theirs]["gbit_per_s"]
        assert ROWS[ours]["year"] == tutorial[theirs]["year"]


def test_no_link_is_faster_than_its_generation_allows():
    # one direction of one link, from the aggregate of both directions in the data sheets
    sheets = {row["name"]: row["interconnect_gbytes_per_s"] for row in published.load("hardware")}
    for name, gpu, links in (
        ("NVLink 1", "NVIDIA P100 SXM2", 4),
        ("NVLink 2", "NVIDIA V100 SXM2", 6),
        ("NVLink 3", "NVIDIA A100 SXM4 80 GB", 12),
        ("NVLink 4", "NVIDIA H100 SXM5", 18),
        ("NVLink 5", "NVIDIA B200", 18),
    ):
        nominal = sheets[gpu] * 8 / 2 / links
        assert 0.75 * nominal < ROWS[name]["gbit_per_s"] < nominal


def test_names_go_from_old_to_new():
    names = costs.link_names()
    assert sorted(names) == sorted(ROWS)
    assert np.all(np.diff([ROWS[name]["year"] for name in names]) >= 0)


def test_unknown_link_is_told_the_nearest():
    with pytest.raises(ValueError, match=r"Did you mean InfiniBand EDR\?"):
        costs.link("Infiniband EDR")
    for name in UNKNOWN:
        with pytest.raises(ValueError, match=re.escape(f"got {name!r}. Give `latency_s`")):
            costs.link(name)
    with pytest.raises(ValueError, match="`efficiency` must be above 0"):
        costs.link("InfiniBand EDR", 0)


def test_messages_of_a_link_give_it_back():
    true = costs.Link(3e-6, 2e9)
    sizes = [8, 1024, 65536, 1 << 22]
    found = costs.fitted((n, true.seconds(n)) for n in sizes)
    assert found.latency_s == pytest.approx(3e-6)
    assert found.bytes_per_s == pytest.approx(2e9)
    noise = np.random.default_rng(0).normal(1, 0.02, 40)
    noisy = costs.fitted((n, true.seconds(n) * f) for n, f in zip(sizes * 10, noise, strict=True))
    assert noisy.latency_s == pytest.approx(3e-6, rel=0.05)
    assert noisy.bytes_per_s == pytest.approx(2e9, rel=0.05)


def test_link_never_has_a_negative_latency():
    found = costs.fitted([(100, 1e-7), (1000, 2e-6)])  # a line would begin below 0
    assert found.latency_s == 0
    # least squares of the relative errors of t = n / B, in closed form
    x = np.array([100 / 1e-7, 1000 / 2e-6])
    assert 1 / found.bytes_per_s == pytest.approx(x.sum() / (x**2).sum())


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "two sizes"),
        ([(8, 1e-6), (8, 2e-6)], "two sizes"),
        ([(8, 0.0), (16, 1e-6)], "positive times"),
        ([(8, 2e-6), (1 << 20, 1e-6)], "larger times"),
    ],
)
def test_messages_that_cannot_be_are_refused(points, words):
    with pytest.raises(ValueError, match=words):
        costs.fitted(points)
