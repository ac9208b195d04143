"""The catalogue holds the guide's Table 1 and today's datasheets; choosing follows the guide.

Tests dlguide.machine.catalogue.processors and dlguide.machine.catalogue.choosing.
"""

import json
import re

import pytest

from dlguide import published
from dlguide.machine import catalogue

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
MODERN = ("A100", "H100", "H200", "B200", "MI300X", "6980P", "EPYC 9965", "Grace")


def test_table_1_of_the_guide_stands_as_printed():
    rows = [row for row in published.load("hardware") if row["source"] == "PRACE 2019 Table 1"]
    columns = ("fp32_tflops", "fp64_tflops", "memory_gbytes", "memory_gbytes_per_s")
    assert {row["name"]: tuple(row[column] for column in columns) for row in rows} == TABLE_1


@pytest.mark.parametrize("name", MODERN)
def test_today_s_processors_are_there_with_memory_and_peak(name):
    each = catalogue.find(name)
    assert each.year >= 2020
    assert each.source
    assert each.memory_bytes > 0
    assert each.bytes_per_s > 0
    assert each.flops_per_s["float32"] > 0


def test_every_row_has_a_known_kind_a_year_and_a_source():
    found = catalogue.processors()
    assert {each.kind for each in found} == set(catalogue.KINDS)
    for each in found:
        assert 2010 <= each.year <= 2026
        assert each.source
        json.dumps(each.as_dict())
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
        each = catalogue.find(name)
        assert "computed" in each.note
        assert each.flops_per_s["float32"] == pytest.approx(flops_per_s, rel=0.01)


def test_tensor_figures_are_dense():
    # the sparse ones that vendors print are twice these; 16 bits then are never above 8 bits
    for each in catalogue.processors("gpu", since=2020):
        rates = each.flops_per_s
        assert rates["bfloat16"] <= rates["int8"] <= 2.01 * rates["bfloat16"]


def test_processors_are_chosen_by_kind_and_year_in_order():
    found = catalogue.processors("cpu", since=2017)
    assert all(each.kind == "cpu" and each.year >= 2017 for each in found)
    assert [each.year for each in found] == sorted(each.year for each in found)
    assert len(catalogue.processors(since=2016)) < len(catalogue.processors())


def test_balance_is_peak_over_bandwidth():
    p100 = catalogue.find("P100")
    assert p100.balance() == pytest.approx(10.6e12 / 732e9)
    assert p100.balance("bfloat16") is None
    assert p100.training_format() == "float16"
    assert catalogue.find("POWER8").training_format() is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Xeon", r"`name` must fit one processor only, got 'Xeon'\. There are: Intel Xeon"),
        ("Pentium", r"`name` must be in the catalogue, got 'Pentium'\. There are: NVIDIA K40"),
        (" ", r"`name` must be a text"),
    ],
)
def test_a_name_that_is_not_one_processor_lists_them(name, text):
    with pytest.raises(ValueError, match=text):
        catalogue.find(name)


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"`kind` must be one of asic, cpu, .*Did you mean gpu"):
        catalogue.processors("gpus")


# --- choosing ----------------------------------------------------------------------------------


def names(choices):
    return [each.name for each in choices]


def test_a_model_that_fits_goes_to_the_highest_peak_of_all():
    # ResNet-50: 16 bytes x 25.6e6 parameters are 0.4e9 bytes
    few, many = 4 * 125e12, 2000 * 2.15e12
    first, second = catalogue.choose(25_557_032, 1_281_167, {"V100": 4, "Platinum 8160": 2000})
    assert (first.kind, second.kind) == ("cpu", "gpu")
    assert first.flops_per_s == pytest.approx(many)
    assert second.flops_per_s == pytest.approx(few)
    assert any(f"{few / many:.2g} of its peak" in reason for reason in first.reasons)
    assert names(catalogue.choose(25_557_032, 1_281_167, {"V100": 4, "8160": 20}))[0].startswith(
        "NVIDIA"
    )


def test_a_model_too_large_for_one_is_split_and_copies_are_whole():
    # 10e9 parameters x 16 bytes = 160e9 bytes: 5 V100 of 32e9 hold one copy, 8 hold one, not 1.6
    first, second = catalogue.choose(10**10, 1000, {"V100": 8, "8180": 2})
    assert (first.parts, first.count, first.flops_per_s) == (5, 8, 5 * 125e12)
    assert "model parallelism" in first.reasons[0]
    assert second.parts == 1
    assert "The model fits" in second.reasons[0]


def test_what_cannot_hold_the_model_comes_last():
    choices = catalogue.choose(10**10, 1000, {"P100": 4, "8180": 1})
    assert names(choices)[-1] == "NVIDIA P100 SXM2"
    assert not choices[-1].fits
    assert choices[-1].flops_per_s == 0
    assert "cannot hold" in choices[-1].reasons[0]


def test_developing_takes_one_that_holds_the_model():
    few = {"H200": 1, "8180": 100}
    produce, develop = (
        catalogue.choose(10**8, 1000, few, stage=stage) for stage in ("produce", "develop")
    )
    assert produce[0].kind == "gpu"
    assert {each.count for each in develop} == {1}
    large = catalogue.choose(10**10, 1000, {"P100": 16, "8180": 1}, stage="develop")
    assert {each.name: each.count for each in large}["NVIDIA P100 SXM2"] == 10


def test_activations_count_as_memory_of_a_worker():
    kwargs = {"parameters": 10**8, "samples": 1000, "available": {"P100": 1}}
    assert catalogue.choose(**kwargs)[0].fits
    assert not catalogue.choose(**kwargs, activation_bytes=16e9)[0].fits


@pytest.mark.parametrize(
    ("samples", "text"),
    [(1000, "fits into what the model leaves"), (10**7, r"through one PCIe link .* 95\.6 s")],
)
def test_data_that_do_not_fit_must_come_through_the_link(samples, text):
    (choice,) = catalogue.choose(10**6, samples, {"P100": 4})
    # 10^7 images x 150528 bytes / 15.75e9 bytes/s
    assert any(re.search(text, reason) for reason in choice.reasons)


def test_a_processor_without_a_peak_says_so_and_is_no_winner():
    choices = catalogue.choose(10**6, 1000, {"POWER8": 100, "P100": 1})
    assert names(choices)[0] == "NVIDIA P100 SXM2"
    assert any("No peak" in reason for reason in choices[-1].reasons)


def test_the_guide_s_outdated_sentence_is_named_where_it_matters():
    choices = catalogue.choose(10**6, 1000, {"6980P": 2, "8180": 2})
    told = {each.name: " ".join(each.reasons) for each in choices}
    assert "The guide (4.3)" in told["Intel Xeon 6980P (socket)"]
    assert "The guide" not in told["Intel Xeon Scalable 8180 (socket)"]
    assert str(choices[0]).count("\n") == len(choices[0].reasons)


def test_the_share_of_a_gpu_in_the_outdated_sentence_is_table_1_s():
    fp32 = {name: row[0] for name, row in TABLE_1.items()}
    xeon = fp32["Intel Xeon Scalable 8180 (socket)"]
    p100, v100 = fp32["NVIDIA P100 SXM2"], fp32["NVIDIA V100 SXM2"]
    text = catalogue.OUTDATED["4.3, dual socket"][1]
    assert f"{100 * 2 * xeon / p100:.0f} % of a P100" in text
    assert f"{100 * 2 * xeon / v100:.0f} % of a V100" in text
    assert f"{100 * xeon / v100:.0f}-{100 * xeon / p100:.0f} % is one socket" in text


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        ({"parameters": 0}, r"`parameters` must be a whole number of at least 1, got 0"),
        ({"samples": 1.5}, r"`samples` must be a whole number"),
        ({"available": {}}, r"`available` must name at least one processor"),
        ({"available": {"P100": 0}}, r"`available\['P100'\]` must be a whole number"),
        ({"available": {"P1000": 1}}, r"`name` must be in the catalogue, got .P1000."),
        ({"stage": "dev"}, r"`stage` must be one of develop, produce"),
        ({"activation_bytes": -1}, r"`activation_bytes` must be at least 0"),
    ],
)
def test_bad_input_is_named(harm, text):
    good = {"parameters": 10**6, "samples": 1000, "available": {"P100": 1}}
    with pytest.raises(ValueError, match=text):
        catalogue.choose(**{**good, **harm})
