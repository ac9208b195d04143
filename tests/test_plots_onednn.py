"""Figures of layouts, primitives and speeds show what they are given and say it aloud."""

import pytest

from dlguide import plots
from dlguide.bench.comparison import Speed
from dlguide.machine import layouts, onednn
from dlguide.measure import Timing


def test_addresses_are_written_into_their_cells(tmp_path):
    places = {
        name: layouts.addresses((1, 4, 2, 2), tag)[0]
        for name, tag in {"NCHW": "abcd", "NHWC": "acdb"}.items()
    }
    figure = plots.addresses(places, tmp_path / "a.png")
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == ["NCHW", "NHWC"]
    for axes, each in zip(panels, places.values(), strict=True):
        texts = [int(text.get_text()) for text in axes.texts]
        assert texts == each.reshape(-1).tolist()
    words = figure._repr_html_()
    assert "NCHW: from channel to channel 4, from pixel to pixel 1" in words
    assert "NHWC: from channel to channel 1, from pixel to pixel 4" in words
    assert (tmp_path / "a.png").exists()
    with pytest.raises(ValueError, match="`places` must hold at least one layout"):
        plots.addresses({})


def test_bars_of_primitives_add_up_to_the_time():
    rows = {
        "fused": [onednn.Row("convolution", "", "", "", 2, 0.004, 0.8),
                  onednn.Row("convolution", "x", "", "", 1, 0.001, 0.2)],
        "plain": [onednn.Row("convolution", "", "", "", 3, 0.006, 0.6),
                  onednn.Row("reorder", "", "", "", 4, 0.004, 0.4)],
    }  # fmt: skip
    figure = plots.primitives(rows)
    widths = [bar.get_width() for bars in figure.axes[0].containers for bar in bars]
    assert sum(widths) == pytest.approx(15.0)
    assert "fused: convolution 5 ms (3). plain: convolution 6 ms (3)" in figure._repr_html_()
    with pytest.raises(ValueError, match="`tables` must hold at least one table"):
        plots.primitives({})


def test_speeds_have_a_panel_for_each_mode():
    speeds = [
        Speed(mode, on, 10, Timing((0.5 if on else 1.0,) * 3))
        for mode in ("train", "infer")
        for on in (True, False)
    ]
    figure = plots.onednn_speeds(speeds)
    assert [axes.get_title() for axes in figure.axes] == ["train", "infer"]
    heights = {round(bar.get_height()) for axes in figure.axes for bar in axes.patches}
    assert heights == {10, 20}
    assert "train, oneDNN on: 20" in figure._repr_html_()
    with pytest.raises(ValueError, match="`speeds` must hold at least one"):
        plots.onednn_speeds([])
