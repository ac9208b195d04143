"""The catalogue has the guide's Table 1 and current data sheets; `choose` argues as the guide does.

Tests dlcourse.processors.
"""

import re

import pytest

from dlcourse import processors
from dlguide import published

# Table 1 of the guide, as printed: fp32, fp64 (TFLOPS), memory (GB), its bandwidth (GB/s).
TABLE_1 = {
    "AMD Instinct MI25": (12.29, 0.77, 16, 484),
    "AMD Instinct MI50": (13.4, 6.7, 16, 1024),
    "AMD Instinct MI60": (14.7, 7.4, 32, 1024),
    "NVIDIA P100 SXM2": (10.6, 5.3, 16, 732),
    "NVIDIA V100 SXM2": (15.7, 7.8, 32, 900),
    "Intel Xeon Scalable 8180 (socket)": (3.0, 1.5, 768, 119),
    "AMD EPYC 7601 (socket)": (1.1, 0.56, 2000, 159),
}
KINDS = {"asic", "cpu", "fpga", "gpu", "ipu", "manycore", "tpu"}


def test_table_1_of_the_guide_stands_as_printed():
    rows = [row for row in published.load("hardware") if row["source"] == "PRACE 2019 Table 1"]
    columns = ("fp32_tflops", "fp64_tflops", "memory_gbytes", "memory_gbytes_per_s")
    assert {row["name"]: tuple(row[column] for column in columns) for row in rows} == TABLE_1


def test_every_row_has_a_known_kind_a_year_and_a_source():
    found = processors.select()
    assert {each.kind for each in found} == KINDS
    for each in found:
        assert 2010 <= each.year <= 2026
        assert each.source
        assert each.memory_bytes > 0
    assert len({each.name for each in found}) == len(found)


def test_figures_that_were_computed_agree_with_their_formula():
    formulas = {
        "E5-2680": 14 * 2.4e9 * 32,
        "8160": 24 * 1.4e9 * 64,
        "6148F": 20 * 1.6e9 * 64,
        "9654": 96 * 2.4e9 * 32,
        "9965": 192 * 2.25e9 * 64,
        "6980P": 128 * 2.0e9 * 64,
        "7250": 68 * 1.4e9 * 64,
        "1080 Ti": 3584 * 1.582e9 * 2,
        "Titan V": 5120 * 1.455e9 * 2,
    }
    for name, flops_per_s in formulas.items():
        each = processors.find(name)
        assert "computed" in each.note
        assert each.flops_per_s["float32"] == pytest.approx(flops_per_s, rel=0.01)


def test_data_that_do_not_fit_must_come_through_the_link():
    (choice,) = processors.choose(10**6, 10**7, {"P100": 4})
    # 10^7 images x 150528 bytes / 15.75e9 bytes/s
    assert any(re.search(r"through the host.s link .* 95\.6 s", text) for text in choice.reasons)
