"""A processor is chosen as the guide argues, with numbers that can be checked.

Tests dlcourse.processor_choice.
"""

import re

import pytest

from dlcourse import processor_choice

# --- choosing ----------------------------------------------------------------------------------


def names(choices):
    return [each.name for each in choices]


def test_a_model_that_fits_goes_to_the_highest_peak_of_all():
    # ResNet-50: 16 bytes x 25.6e6 parameters are 0.4e9 bytes
    few, many = 4 * 125e12, 2000 * 2.15e12
    first, second = processor_choice.choose(
        25_557_032, 1_281_167, {"V100": 4, "Platinum 8160": 2000}
    )
    assert (first.kind, second.kind) == ("cpu", "gpu")
    assert first.flops_per_s == pytest.approx(many)
    assert second.flops_per_s == pytest.approx(few)
    assert any(f"{few / many:.2g} of its peak" in reason for reason in first.reasons)
    assert names(processor_choice.choose(25_557_032, 1_281_167, {"V100": 4, "8160": 20}))[
        0
    ].startswith("NVIDIA")


def test_a_model_too_large_for_one_is_split_and_copies_are_whole():
    # 10e9 parameters x 16 bytes = 160e9 bytes: 5 V100 of 32e9 hold one copy, 8 hold one, not 1.6
    first, second = processor_choice.choose(10**10, 1000, {"V100": 8, "8180": 2})
    assert (first.parts, first.count, first.flops_per_s) == (5, 8, 5 * 125e12)
    assert "model parallelism" in first.reasons[0]
    assert second.parts == 1
    assert "The model fits" in second.reasons[0]


@pytest.mark.parametrize(
    ("samples", "text"),
    [(1000, "fits into what the model leaves"), (10**7, r"through one PCIe link .* 95\.6 s")],
)
def test_data_that_do_not_fit_must_come_through_the_link(samples, text):
    (choice,) = processor_choice.choose(10**6, samples, {"P100": 4})
    # 10^7 images x 150528 bytes / 15.75e9 bytes/s
    assert any(re.search(text, reason) for reason in choice.reasons)


def test_the_guide_s_outdated_sentence_is_named_where_it_matters():
    choices = processor_choice.choose(10**6, 1000, {"6980P": 2, "8180": 2})
    told = {each.name: " ".join(each.reasons) for each in choices}
    assert "The guide (4.3)" in told["Intel Xeon 6980P (socket)"]
    assert "The guide" not in told["Intel Xeon Scalable 8180 (socket)"]
    assert str(choices[0]).count("\n") == len(choices[0].reasons)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        ({"parameters": 0}, r"`parameters` must be a whole number of at least 1, got 0"),
        ({"samples": 1.5}, r"`samples` must be a whole number"),
        ({"available": {}}, r"`available` must name at least one processor"),
        ({"available": {"P100": 0}}, r"`available\['P100'\]` must be a whole number"),
        ({"available": {"P1000": 1}}, r"`name` must be in the catalogue, got .P1000."),
    ],
)
def test_bad_input_is_named(harm, text):
    good = {"parameters": 10**6, "samples": 1000, "available": {"P100": 1}}
    with pytest.raises(ValueError, match=text):
        processor_choice.choose(**{**good, **harm})
