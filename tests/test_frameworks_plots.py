"""Pictures of published speeds: the numbers of the tables stand in the picture and in its words."""

import numpy as np
import pytest

from dlguide import plots
from dlguide.plots import frameworks
from dlguide.published import load

GK210 = load("batch_seconds_gk210")


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def lines(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines if line.get_label()[0] != "_"}


def test_batch_seconds_draws_each_framework_of_each_network():
    figure = plots.batch_seconds(GK210)
    assert [axes.get_title() for axes in figure.axes] == ["FCN-R", "AlexNet-R", "ResNet-56"]
    for axes in figure.axes:
        drawn = lines(axes)
        for row in GK210:
            if row["network"] == axes.get_title():
                seconds = [row["gpus_1_s"], row["gpus_2_s"], row["gpus_4_s"]]
                assert list(drawn[row["framework"]]) == seconds
        ideal = drawn["no loss"]
        assert ideal[0] / ideal[2] == pytest.approx(4.0)
    assert "FCN-R Torch 0.165, 0.11, 0.112" in words(figure)


def test_efficiencies_are_shares_of_the_speed_up_from_the_first_point():
    figure = plots.efficiencies({"A": {"x": {4: 1.0, 16: 3.5}}, "B": {"y": {1: 2.0, 2: 3.0}}})
    first, second = figure.axes
    assert list(lines(first)["x"]) == [1.0, 3.5 / 4]
    assert list(lines(second)["y"]) == [1.0, 0.75]
    assert first.get_ylim()[0] == 0
    assert "A, x: 1 on 4, 3.5 on 16" in words(figure)
    assert second.get_xlabel() == "GPUs"


def test_published_efficiencies_of_ibm_are_drawn_again():
    rows = [row for row in load("scaling_ibm_ddl") if row["framework"].startswith("Caffe")]
    series = {row["gpus"]: row["speedup_over_one_node"] for row in rows}
    drawn = lines(plots.efficiencies({"IBM": {"Caffe": series}}).axes[0])["Caffe"]
    assert list(drawn) == pytest.approx([row["efficiency"] for row in rows], abs=0.006)


def test_speed_pairs_draw_both_speeds_from_zero_and_name_the_ratio(tmp_path):
    path = tmp_path / "pairs.png"
    figure = plots.speed_pairs(
        {"net": {"one": (10.0, 15.0), "two": (4.0, 3.0)}}, ("1", "8"), path=path
    )
    axes = figure.axes[0]
    assert sorted(bar.get_height() for bar in axes.patches) == [3.0, 4.0, 10.0, 15.0]
    assert axes.get_ylim()[0] == 0
    assert {text.get_text() for text in axes.texts} == {"x 1.50", "x 0.75"}
    assert "net, two: 4 and 3, ratio 0.75" in words(figure)
    assert path.stat().st_size > 1000


def test_last_releases_draw_known_days_only_in_order():
    rows = load("frameworks_2026")
    figure = plots.last_releases(rows)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    dated = {row["framework"]: row["last_release_date"] for row in rows if row["last_release_date"]}
    assert set(names) == set(dated)
    assert [dated[name] for name in names] == sorted(dated.values())
    full = [line.get_fillstyle() == "full" for line in axes.lines if line.get_marker() == "o"]
    kinds = {row["framework"]: row["date_is"] for row in rows}
    assert full == [kinds[name] == "release" for name in names]


@pytest.mark.parametrize(
    ("text", "year"), [("2020-01-01", 2020.0), ("2020-07", 2020.498), ("2021", 2021.0)]
)
def test_days_become_years(text, year):
    assert frameworks._day(text) == pytest.approx(year, abs=2e-3)


def test_empty_input_is_refused():
    for call in (plots.batch_seconds, plots.last_releases):
        with pytest.raises(ValueError, match="`rows` must"):
            call([])
    with pytest.raises(ValueError, match="`panels` must hold at least one series"):
        plots.efficiencies({})
    with pytest.raises(ValueError, match="`panels` must hold at least one case"):
        plots.speed_pairs({}, ("a", "b"))


def test_colours_of_five_frameworks_differ():
    axes = plots.batch_seconds(GK210).axes[0]
    assert len({line.get_color() for line in axes.lines}) == len(np.unique(list(lines(axes))))
