"""The picture of a slow start ends where the numbers say.

Tests dlguide.plots.start_up and dlguide.plots.exchange_ways.
"""

from __future__ import annotations

import numpy as np
import pytest

from dlguide import plots
from dlguide.measure.start_up import StartUp


def test_lines_are_the_means_and_marks_stand_where_they_are_told():
    slow, quick = StartUp(100, 200, 20.0, 0.5), StartUp(100, 200, 5.0, 0.6)
    drawn = plots.start_up({"slow": slow, "quick": quick}, {"an epoch": 300})
    axes, ratio = drawn.axes
    lines = {line.get_label(): line for line in axes.lines}
    for name, one in (("slow", slow), ("quick", quick)):
        counts, means = lines[name].get_data()
        assert counts[0] == 1
        assert counts[-1] == 1500
        assert np.allclose(means, [100 * n / one.seconds(int(n)) for n in counts])
    for panel in (axes, ratio):
        assert any(list(line.get_xdata()) == [300, 300] for line in panel.lines)
    assert "an epoch" in [text.get_text() for text in ratio.texts]
    # slow catches up after 151 batches: 20 + 150 * 0.5 = 5 + 150 * 0.6
    counts, shares = ratio.lines[0].get_data()
    assert all(shares[counts < 151] > 1)
    assert all(shares[counts > 151] < 1)
    assert ratio.get_ylim()[0] < shares[-1] < 1 < ratio.get_ylim()[1]
    assert len(plots.start_up({"slow": slow}).axes) == 1
    with pytest.raises(ValueError, match="1 to 4 names"):
        plots.start_up({})


def test_bars_of_ways_are_as_long_as_what_they_show():
    sent = {"allreduce": {"worker": 2e6}, "dist_sync": {"worker": 2e6, "server": 4e6}}
    speeds = {"allreduce": 50.0, "dist_sync": 40.0}
    left, right = plots.exchange_ways(sent, sent, speeds).axes
    assert sorted(bar.get_width() for bar in left.patches) == [2.0, 2.0, 4.0]
    assert sorted(line.get_xdata()[0] for line in left.lines) == [2.0, 2.0, 4.0]
    assert [bar.get_width() for bar in right.patches] == [50.0, 40.0]
    with pytest.raises(ValueError, match="name the same ways"):
        plots.exchange_ways(sent, sent, {"allreduce": 50.0})
