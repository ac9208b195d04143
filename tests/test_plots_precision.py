"""The pictures of number formats show the bits, ranges and rates they were given.

Tests dlguide.plots.precision.
"""

import numpy as np
import pytest

from dlguide import plots
from dlguide.machine import precision


def test_every_bit_is_drawn():
    numbers = [precision.bits(-0.1, name) for name in ("fp32", "bf16", "int8")]
    drawn = plots.bit_fields(numbers)
    axes = drawn.axes[0]
    digits = [text.get_text() for text in axes.texts if text.get_text() in ("0", "1")]
    wanted = "".join(n.sign + n.exponent + n.fraction for n in numbers)
    assert "".join(digits) == wanted
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fp32", "bf16", "int8"]
    assert "fp32: sign 1, exponent 01111011" in drawn._repr_html_()


def test_ranges_begin_and_end_where_the_formats_do():
    formats = [precision.named(name) for name in ("fp32", "fp16")]
    values = np.logspace(-6, 3, 20)
    gaps = {each.name: precision.spacing_at(values, each.name) for each in formats}
    left, right = plots.number_ranges(formats, values, gaps).axes
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in left.patches]
    wanted = []
    for each in formats:
        points = np.log10([each.smallest_subnormal, each.smallest_normal, each.largest])
        wanted += [(points[1], points[2]), (points[0], points[1])]
    assert np.allclose(ends, wanted)
    for line, name in zip(right.lines, gaps, strict=True):
        assert np.allclose(line.get_ydata(), gaps[name] / values)


def test_gradients_are_counted_once_each():
    values = {"some": np.array([0.0, 2.0**-30, 2.0**-30, -(2.0**-4), 2.0**-10])}
    axes = plots.gradient_sizes(values, [precision.named("fp16")], scale=2.0**8).axes[0]
    plain, scaled = axes.patches
    for patch, shift in ((plain, 0), (scaled, 8)):
        shares, edges = patch.get_data().values, patch.get_data().edges
        found = {int(edge): share for edge, share in zip(edges, shares, strict=False) if share}
        assert found == {-30 + shift: 50.0, -10 + shift: 25.0, -4 + shift: 25.0}


def test_rates_are_the_bars_and_their_ratios_the_words():
    found = [
        precision.Rate("AVX2", "fp32", "gemm", 2e11),
        precision.Rate("AVX2", "int8", "gemm_s8", 5e11),
    ]
    axes = plots.kernel_rates(found).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [200, 500]
    assert [text.get_text() for text in axes.texts] == ["2.5x"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.bit_fields([]),
        lambda: plots.number_ranges([], [], {}),
        lambda: plots.gradient_sizes({}, []),
        lambda: plots.kernel_rates([]),
    ],
)
def test_nothing_is_not_drawn(draw):
    with pytest.raises(ValueError, match=r"must hold at least one"):
        draw()
