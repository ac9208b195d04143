"""Pictures of the lessons show their data and describe it in words."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from dlcourse import number_formats, pictures, search_theory, tensor_layouts
from dlcourse.adversarial import Ring
from dlcourse.onednn_rates import MatmulRate
from dlcourse.phases import StartUp
from dlcourse.pictures import cases
from dlguide import search
from dlguide.parallel.overlap import OverlapStep, TraceEvent, predict
from dlguide.published import load
from dlguide.scaling.predict import HeldOutPrediction
from dlguide.training import experiments as ex


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def shown(figure):
    """Give what a notebook shows of a figure: its MIME types, and the HTML."""
    from IPython.core.formatters import DisplayFormatter

    data, _metadata = DisplayFormatter().format(figure)
    return set(data), data["text/html"]


def test_recipes_show_every_seed_and_the_interval_of_their_difference():
    longer = {"baseline": (0.95, 0.96, 0.94), "naive": (0.91, 0.93, 0.90)}
    drawn = pictures.recipes(longer, {"baseline": 0.95, "naive": 0.92}, "baseline")
    seeds, differences = drawn.axes
    assert sorted(seeds.lines[0].get_xdata()) == pytest.approx([94, 95, 96])
    assert list(seeds.lines[5].get_xdata()) == [92]  # trained here
    (bar,) = [each for each in differences.collections if each.get_segments()]
    (left, _), (right, _) = bar.get_segments()[0]
    low, high = ex.confidence_interval([-4, -3, -4])
    assert (left, right) == pytest.approx((low, high))
    assert "naive 91.3 %" in words(drawn)


def test_speed_and_quality_name_the_region_of_each_size():
    regions = ["A", "B", "C", "A and C"]
    scores = [[95.0], [95.2, 94.8], [90.0], [30.0]]
    drawn = pictures.speed_and_quality([1, 2, 4, 8], [1, 9, 10, 2], scores, regions, 0.9, 0.5)
    speed, quality = drawn.axes
    assert [text.get_text() for text in speed.texts] == regions
    assert [text.get_text() for text in quality.texts] == ["30 %"]  # below the picture


SADDLE = SimpleNamespace(loss=lambda x, y: x**2 - y, view=(-2, 2, -1, 3), minimum=(0.0, 3.0))


PATHS = {"slow": np.array([[1.0, 0.0], [0.5, 0.5]]), "quick": [(1.0, 0.0), (0.2, 1.0), (0.0, 2.0)]}


CURVES = {"one": ([1, 2, 3], [2.0, 1.0, 0.5]), "two": ([1, 2], [2.0, float("nan")])}


def labelled(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_every_path_is_drawn_from_the_start_within_the_view():
    figure = pictures.descent(
        {"saddle": (SADDLE, PATHS), "again": (SADDLE, {"slow": PATHS["slow"]})}
    )
    first, second = figure.axes
    lines = labelled(first)
    assert list(lines) == ["slow", "quick"]
    assert list(labelled(second)) == ["slow"]
    assert np.allclose(np.transpose(lines["quick"].get_data()), PATHS["quick"])
    assert lines["slow"].get_zorder() > lines["quick"].get_zorder()
    assert (first.get_xlim(), first.get_ylim()) == ((-2, 2), (-1, 3))
    marks = [
        np.ravel(line.get_data()).tolist() for line in first.lines if line not in lines.values()
    ]
    assert marks == [[1.0, 0.0], [0.0, 3.0]]  # the start and the minimum
    assert first.get_title() == "saddle"
    assert first.get_xlabel() == "weight x"


def test_curves_keep_their_colours_from_panel_to_panel():
    figure = pictures.loss_curves({"updates": CURVES, "time (s)": {"two": CURVES["two"]}}, log="xy")
    left, right = figure.axes
    assert labelled(left)["two"].get_color() == labelled(right)["two"].get_color()
    assert labelled(left)["one"].get_color() != labelled(left)["two"].get_color()
    assert list(labelled(left)["one"].get_ydata()) == [2.0, 1.0, 0.5]
    assert [axes.get_xlabel() for axes in (left, right)] == ["updates", "time (s)"]
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    assert left.get_ylim() == right.get_ylim()
    assert "loss against updates; one: 2 at 1, 1 at 2, 0.5 at 3" in words(figure)


def test_the_sizes_of_every_layer_are_drawn():
    values, gradients = {"plain": [1e-6, 1e-4, 1e-2], "other": [8.0, 4.0]}, {"plain": [2.0, 3.0]}
    figure = pictures.sizes_by_layer({"values": values, "gradient": gradients})
    plain, other = figure.axes[0].lines
    assert plain.get_xdata().tolist() == [1, 2, 3]
    assert np.allclose(plain.get_ydata(), [1e-6, 1e-4, 1e-2])
    assert np.allclose(other.get_ydata(), [8, 4])
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert "values, first to last layer: plain 1.0e-06 to 1.0e-02; other 8" in words(figure)
    assert [text.get_text() for text in figure.axes[1].texts] == ["plain"]


def test_shares_of_layers_add_up_and_a_layer_without_has_none():
    seconds = {"conv": 1, "dense": 2, "pool": 1}
    shares = {"weights": {"conv": 3, "dense": 9}, "measured time": seconds}
    weights, seconds = pictures.layer_shares(shares).axes
    assert [bar.get_width() for bar in weights.patches] == [25, 75, 0]
    assert [bar.get_width() for bar in seconds.patches] == [25, 50, 25]


def test_nets_stand_where_their_work_and_bytes_are():
    nets = [
        SimpleNamespace(name="small", gradient_bytes=10**7, flops_per_gradient_byte=300.0),
        SimpleNamespace(name="large", gradient_bytes=5 * 10**8, flops_per_gradient_byte=20.0),
    ]
    figure = pictures.footprints(nets)
    axes = figure.axes[0]
    points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]
    assert np.allclose(points, [[10, 3], [500, 10]])
    for line in axes.lines[2:]:  # the lines of equal flops a byte
        ratios = line.get_ydata() * 1e9 / (line.get_xdata() * 1e6)
        assert np.allclose(ratios, ratios[0])
    texts = [text.get_text() for text in axes.texts]
    assert texts[:2] == ["small", "large"]
    assert "small 300; large 20" in words(figure)


def trial(rank, taken, loss=(2.0, 1.0), distance=(0.5, 0.25), samples=7):
    return SimpleNamespace(rank=rank, taken=taken, loss=loss, distance=distance, samples=samples)


def three_ranks():
    return [trial(0, (0, 1, 2, 2)), trial(1, (2, 3), (2.5, 1.5)), trial(2, (2,))]


def test_each_rank_has_its_loss_and_the_sound_runs_have_theirs():
    reference = [trial(0, (), (3.0, 2.0, 1.0)), trial(0, (), (4.0, 2.0)), trial(0, (), (5.0, 2.0))]
    lines = pictures.symptoms(three_ranks(), reference).axes[0].lines
    assert [line.get_label() for line in lines] == [
        *("sound, same start", "sound, other starts", "_"),
        *("rank 0", "rank 1", "rank 2"),
    ]
    assert list(lines[0].get_ydata()) == [3.0, 2.0, 1.0]
    assert lines[0].get_color() != lines[1].get_color() == lines[2].get_color()
    assert list(lines[4].get_ydata()) == [2.5, 1.5]
    assert list(lines[4].get_xdata()) == [1, 2]
    looks = [(line.get_color(), line.get_linestyle()) for line in lines[3:]]
    assert len(set(looks)) == 3


def test_each_sample_is_a_square_coloured_by_the_ranks_that_took_it():
    assert pictures.ranks_per_sample(three_ranks()).tolist() == [1, 1, 3, 1, 0, 0, 0]
    axes = pictures.symptoms(three_ranks()).axes[2]
    squares = axes.images[0].get_array().ravel()
    shown = np.ma.compressed(np.ma.masked_invalid(squares))
    assert shown.tolist() == [1, 1, 2, 1, 0, 0, 0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["no rank: 3", "one rank: 3", "several: 1"]


def test_lines_are_the_means_and_marks_stand_where_they_are_told():
    slow, quick = StartUp(100, 200, 20.0, 0.5), StartUp(100, 200, 5.0, 0.6)
    drawn = pictures.start_up({"slow": slow, "quick": quick}, {"an epoch": 300})
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


SCHEDULES = {
    name: predict([1e-3, 1e-3], [2e-3, 2e-3], [1000, 3000], name, 2, 0.0, 1e6)
    for name in ("end", "overlapped")
}


def boxes(axes, row, hatched=False):
    found = []
    for bars in axes.collections:
        for path in bars.get_paths():
            box = path.get_extents()
            if round((box.y0 + box.y1) / 2) == row and bool(bars.get_hatch()) == hatched:
                found.append((box.x0, box.x1))
    return sorted(found)


def test_intervals_lie_in_their_rows_in_milliseconds():
    drawn = pictures.overlap(SCHEDULES)
    first, second = drawn.axes
    assert np.allclose(boxes(first, 0), [(0, 2), (2, 4), (8, 9), (9, 10)])
    assert np.allclose(boxes(first, 1), [(4, 8)])
    assert np.allclose(boxes(second, 1), [(2, 5), (5, 6)])
    assert first.get_xlim() == second.get_xlim() == pytest.approx((0, 10))
    assert [label.get_text() for label in first.get_yticklabels()] == ["compute", "exchange"]


def test_a_wait_at_the_end_is_exposed_and_clocks_may_begin_anywhere():
    late = (TraceEvent("backward", 0, 7.0, 7.001), TraceEvent("exchange", 0, 7.001, 7.004))
    (axes,) = pictures.overlap({"measured": OverlapStep("end", late)}).axes
    assert np.allclose(boxes(axes, 0), [(0, 1)])
    assert np.allclose(boxes(axes, 0, hatched=True), [(1, 4)])


TIMES = {
    "one": [[(5.0, 5.1), (5.3, 5.4)], [(5.0, 5.3), (5.3, 5.5)]],
    "two": [[(1.0, 1.1), (1.1, 1.2)], [(1.0, 1.2), (1.2, 1.3)]],
}


def spans(bars):
    boxes = [path.get_extents() for path in bars.get_paths()]
    return [(box.x0, box.x1) for box in boxes]


def test_steps_and_waits_lie_where_they_were_measured():
    drawn = pictures.worker_timeline(TIMES)
    for axes, rows in zip(drawn.axes, TIMES.values(), strict=True):
        start = rows[0][0][0]
        for worker, row in enumerate(rows):
            waiting, computing = axes.collections[2 * worker : 2 * worker + 2]
            assert np.allclose(spans(computing), 1e3 * (np.array(row) - start))
            gap = (row[0][1] - start, row[1][0] - start)
            assert np.allclose(spans(waiting), [1e3 * np.array(gap)])
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == ["worker 0", "worker 1"]
    first, second = (axes.get_xlim() for axes in drawn.axes)
    assert first == second


def test_bars_are_shares_of_the_gradients():
    axes = pictures.staleness({"a": [0, 0, 2, 2, 2], "b": [1]}).axes[0]
    hatches = {bar.get_hatch() for bar in axes.patches}
    assert len(hatches) == 2, "bars of two names differ in more than their colour"
    heights = [bar.get_height() for bar in axes.patches]
    assert np.allclose(heights, [40, 0, 60, 0, 100])
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert np.allclose(middles, [-0.2, 0.8, 1.8, 0.2, 1.2])
    assert (
        "a: mean 1.2; b: mean 1.0"
        in pictures.staleness({"a": [0, 0, 2, 2, 2], "b": [1]})._repr_html_()
    )


BUDGET = {
    "a": {"computing": 0.1, "waiting": 0.02, "bytes": 0.03},
    "b": {"computing": 0.2, "waiting": 0.0, "bytes": 0.05},
}


GIVEN = {"large": [1.0, -2.0, 0.5], "small": [0.1, 0.1, 0.1]}


SENT = {"large": [1.0, -2.0, 0.5], "small": [0.0, 0.0, 0.3]}


SECONDS = {
    "slow": {"all": {"computing": 1.0, "bytes": 8.0}, "few": {"computing": 1.5, "bytes": 1.0}},
    "fast": {"all": {"computing": 1.0, "bytes": 0.2}, "few": {"computing": 1.5, "bytes": 0.1}},
}


TRIALS = {"all": (1000, [90, 91]), "few": (10, [80]), "alone": (0, [70, 72])}


def test_parts_of_a_step_lie_one_after_the_other():
    axes = pictures.budget(BUDGET).axes[0]
    for place, one in enumerate(BUDGET.values()):
        boxes = [bars[place] for bars in axes.containers]
        widths = np.array([1e3 * s for s in one.values()])
        assert np.allclose([box.get_width() for box in boxes], widths)
        assert np.allclose([box.get_x() for box in boxes], np.cumsum(widths) - widths)
    assert [text.get_text() for text in axes.texts] == [" 150 ms", " 250 ms"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
    assert "a: computing 100 ms, waiting 20 ms" in pictures.budget(BUDGET)._repr_html_()


def test_given_and_sent_are_sums_over_steps():
    drawn = pictures.error_feedback(GIVEN, SENT)
    for axes, title in zip(drawn.axes, GIVEN, strict=True):
        given, sent = axes.lines
        assert np.allclose(given.get_ydata(), np.cumsum([0, *GIVEN[title]]))
        assert np.allclose(sent.get_ydata(), np.cumsum([0, *SENT[title]]))
        assert axes.get_title() == title
    assert "small: given 0.3, sent 0.3, kept" in drawn._repr_html_()


def test_every_training_is_a_mark():
    drawn = pictures.accuracy_and_bytes(TRIALS, {"few": 81})
    first, mean, *_ = drawn.axes[0].lines
    few, _, live, alone = drawn.axes[1].lines
    assert np.allclose(first.get_xydata(), [[1000, 90], [1000, 91]])
    assert np.allclose(mean.get_xydata(), [[1000, 90.5]])
    assert np.allclose(few.get_xydata(), [[10, 80]])
    assert np.allclose(live.get_xydata(), [[10, 81]])
    assert np.allclose(alone.get_ydata(), 71)  # a line: there are no bytes
    assert drawn.axes[0].get_xscale() == "log"
    assert "all: 1000 bytes, 90.5 percent" in drawn._repr_html_()


SPACE = {
    "rate": search.LogUniform(1e-3, 1.0),
    "width": search.Integer(8, 64),
    "kind": search.Choice(("a", "b")),
}


def objective(parameters, epochs, seed):
    if parameters["width"] > 56:
        raise ValueError("too wide")
    return parameters["rate"] / epochs


FOUND = search.run(objective, SPACE, search.Halving(27), seed=1, show=False)


def test_every_trial_stands_at_its_parameter_and_score():
    drawn = pictures.search_scores(FOUND.trials, FOUND.best(), "error (percent)")
    for axes, name in zip(drawn.axes, SPACE, strict=True):
        rungs = [line for line in axes.lines if "epoch" in line.get_label()]
        for line, epochs in zip(rungs, (1, 3, 9, 27), strict=True):
            trials = [one for one in FOUND.trials if one.epochs == epochs and not one.failed]
            assert list(line.get_xdata()) == [one.parameters[name] for one in trials]
            assert list(line.get_ydata()) == [one.score for one in trials]
        (failed,) = (line for line in axes.lines if line.get_label() == "failed")
        assert len(failed.get_xdata()) == len(FOUND.failed) > 0
        (best,) = (line for line in axes.lines if line.get_label() == "best")
        assert list(best.get_ydata()) == [FOUND.best().score]
        assert axes.get_xlabel() == name
    assert [axes.get_xscale() for axes in drawn.axes] == ["log", "linear", "linear"]
    assert drawn.axes[0].get_ylabel() == "error (percent)"
    assert "error (percent) of" in drawn._repr_html_()


def test_bars_are_the_tasks_of_each_rank_and_the_prediction_a_line():
    seconds = [3.0, 1.0, 1.0, 1.0]
    panels = {
        "free": search_theory.first_free(seconds, 2),
        "dealt": search_theory.beforehand(seconds, 2),
    }
    drawn = pictures.rank_bars(panels, {"free": 3.0})
    for axes, bars in zip(drawn.axes, panels.values(), strict=True):
        for rank, row in enumerate(axes.collections):
            boxes = [path.get_extents() for path in row.get_paths()]
            mine = [(bar.start_s, bar.end_s) for bar in bars if bar.rank == rank]
            assert np.allclose([(box.x0, box.x1) for box in boxes], mine)
        assert {text.get_text() for text in axes.texts} == {"0", "1", "2", "3"}
    first, second = drawn.axes
    assert first.get_xlim() == second.get_xlim()
    assert [line.get_xdata()[0] for line in first.lines] == [3.0]
    assert not second.lines
    assert first.get_title("left") == "free: 3.00 s"
    assert "dealt: 4.00 s" in drawn._repr_html_()


POINTS = [
    (1, {"metadata": 2.0, "bandwidth": 8.0, "network": 0.0}),
    (2, {"metadata": 2.0, "bandwidth": 4.0, "network": 0.0}),
    (4, {"metadata": 2.0, "bandwidth": 1.5, "network": 0.0}),
    (8, {"metadata": 2.0, "bandwidth": 1.0, "network": 0.0}),
]


def test_every_part_that_takes_time_has_its_line_and_the_slowest_a_thick_one():
    figure = pictures.epoch_times({"one": POINTS, "two": POINTS[:2]}, x="clients", wanted_s=3.0)
    one, two = figure.axes
    thin = {line.get_label(): line for line in one.lines if not line.get_label().startswith("_")}
    assert thin.keys() == {"metadata", "bandwidth", "wanted"}
    assert np.array_equal(thin["bandwidth"].get_ydata(), [8.0, 4.0, 1.5, 1.0])
    thick = [line for line in one.lines if line.get_linewidth() > 3]
    assert [list(line.get_xdata()) for line in thick] == [[1, 2, 4], [4, 8]]
    assert [list(line.get_ydata()) for line in thick] == [[8.0, 4.0, 2.0], [2.0, 2.0]]
    assert [text.get_text() for text in one.texts] == ["bandwidth", "metadata"]
    assert one.get_ylim() == two.get_ylim()
    assert one.get_ylim()[0] < 1.0
    assert one.get_xlabel() == "clients"


def test_every_bit_is_drawn():
    numbers = [number_formats.bits(-0.1, name) for name in ("fp32", "bf16", "int8")]
    drawn = pictures.bit_fields(numbers)
    axes = drawn.axes[0]
    digits = [text.get_text() for text in axes.texts if text.get_text() in ("0", "1")]
    wanted = "".join(n.sign + n.exponent + n.fraction for n in numbers)
    assert "".join(digits) == wanted
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fp32", "bf16", "int8"]
    assert "fp32: sign 1, exponent 01111011" in drawn._repr_html_()


def test_ranges_begin_and_end_where_the_formats_do():
    formats = [number_formats.named(name) for name in ("fp32", "fp16")]
    values = np.logspace(-6, 3, 20)
    gaps = {each.name: number_formats.spacing_at(values, each.name) for each in formats}
    left, right = pictures.number_ranges(formats, values, gaps).axes
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
    axes = pictures.gradient_sizes(values, [number_formats.named("fp16")], scale=2.0**8).axes[0]
    plain, scaled = axes.patches
    for patch, shift in ((plain, 0), (scaled, 8)):
        shares, edges = patch.get_data().values, patch.get_data().edges
        found = {int(edge): share for edge, share in zip(edges, shares, strict=False) if share}
        assert found == {-30 + shift: 50.0, -10 + shift: 25.0, -4 + shift: 25.0}


def test_rates_are_the_bars_and_their_ratios_the_words():
    found = [
        MatmulRate("AVX2", "fp32", "gemm", (1e11, 2e11)),
        MatmulRate("DEFAULT", "fp32", "gemm", (2.5e11,)),
        MatmulRate("AVX2", "int8", "gemm_s8", (5e11, 4e11)),
    ]
    axes = pictures.kernel_rates(found, {"int8 with VNNI": 1e12}).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [200, 500, 250]
    assert [text.get_text() for text in axes.texts[:3]] == ["0.8 times", "2.0 times", "1.0 times"]
    assert axes.texts[3].get_text() == "loop: int8 with VNNI"
    assert "AVX2 int8 500e9, 2.0 times the best fp32" in words(axes.figure)


def test_addresses_are_written_into_their_cells():
    places = {
        name: tensor_layouts.addresses((1, 4, 2, 2), tag)[0]
        for name, tag in {"NCHW": "abcd", "NHWC": "acdb"}.items()
    }
    figure = pictures.addresses(places)
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == ["NCHW", "NHWC"]
    for axes, each in zip(panels, places.values(), strict=True):
        texts = [int(text.get_text()) for text in axes.texts]
        assert texts == each.reshape(-1).tolist()
    said = words(figure)
    assert "NCHW: from channel to channel 4, from pixel to pixel 1" in said
    assert "NHWC: from channel to channel 1, from pixel to pixel 4" in said


GK210 = load("batch_seconds_gk210")


def named_lines(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines if line.get_label()[0] != "_"}


def test_batch_seconds_draws_each_framework_of_each_network():
    figure = pictures.batch_seconds(GK210)
    assert [axes.get_title() for axes in figure.axes] == ["FCN-R", "AlexNet-R", "ResNet-56"]
    for axes in figure.axes:
        drawn = named_lines(axes)
        for row in GK210:
            if row["network"] == axes.get_title():
                seconds = [row["gpus_1_s"], row["gpus_2_s"], row["gpus_4_s"]]
                assert list(drawn[row["framework"]]) == seconds
        ideal = drawn["no loss"]
        assert ideal[0] / ideal[2] == pytest.approx(4.0)
    assert "Torch: 0.165 at 1, 0.11 at 2, 0.112 at 4" in words(figure)


def test_published_efficiencies_of_ibm_are_drawn_again():
    rows = [row for row in load("scaling_ibm_ddl") if row["framework"].startswith("Caffe")]
    series = {row["gpus"]: row["speedup_over_one_node"] for row in rows}
    drawn = named_lines(pictures.efficiencies({"IBM": {"Caffe": series}}).axes[0])["Caffe"]
    assert list(drawn) == pytest.approx([row["efficiency"] for row in rows], abs=0.006)


def test_speed_pairs_draw_both_speeds_from_zero_and_name_the_ratio():
    figure = pictures.speed_pairs(
        {"net": {"one": (10.0, 15.0), "two": (4.0, 3.0)}}, ("1", "8"), "images/s"
    )
    axes = figure.axes[0]
    assert sorted(bar.get_height() for bar in axes.patches) == [3.0, 4.0, 10.0, 15.0]
    assert axes.get_ylim()[0] == 0
    assert {text.get_text() for text in axes.texts} == {"x 1.50", "x 0.75"}
    assert "net, two: 4 and 3, ratio 0.75" in words(figure)


def test_last_releases_draw_known_days_only_in_order():
    rows = load("frameworks_2026")
    figure = pictures.last_releases(rows)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    dated = {row["framework"]: row["last_release_date"] for row in rows if row["last_release_date"]}
    assert set(names) == set(dated)
    assert [dated[name] for name in names] == sorted(dated.values())
    drawn = [line.get_marker() for line in axes.lines if line.get_marker() in ("o", "s")]
    ten = {row["framework"] for row in rows if row["named_in"] == "survey Table 1"}
    assert drawn == ["o" if name in ten else "s" for name in names]


def test_throughput_is_drawn_beside_what_is_proportional():
    nets = {"one": [(1, 2, 3), (4, 5, 6)], "two": [(7, 8, 9), (7, 8, 9)]}
    figure = pictures.throughput({"batch": ((1, 16), nets)}, ["sequences per second"])
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.get_legend().texts} == {"one", "two", "proportional"}
    assert list(axes.containers[0].lines[0].get_ydata()) == [2, 5]
    assert any(list(line.get_ydata()) == [2, 32] for line in axes.lines)
    assert "one, batch: 1: 2, 16: 5" in words(figure)


def test_losses_of_a_text_are_drawn_beside_the_tables():
    looks, tables = {0: 4.0, 10: 2.5}, {"all alike": 3.5, "pairs": 2.4}
    figure = pictures.text_losses(looks, tables, {"here": [2.3], "five": [2.2, 2.6]})
    left, right = figure.axes
    assert list(left.lines[0].get_xydata().ravel()) == [0, 4.0, 10, 2.5]
    assert [line.get_ydata()[0] for line in (left.lines[1], right.lines[0])] == [3.5, 2.4]
    assert [list(line.get_ydata()) for line in right.lines[1:]] == [[2.3], [2.2, 2.6]]
    assert "Test: all alike 3.50, pairs 2.40, here 2.30 to 2.30, five 2.20 to 2.60." in words(
        figure
    )


def test_attention_is_drawn_row_by_row_and_told_where_it_looks():
    weights = np.array([[1, 0, 0], [0.25, 0.75, 0], [0.1, 0.6, 0.3]])
    figure = pictures.attention_map({"one head": weights}, ["a", " ", "b"])
    axes = figure.axes[0]
    assert np.array_equal(axes.images[0].get_array(), weights)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "␣", "b"]
    assert "one head: a at a (1.00), ␣ at ␣ (0.75), b at ␣ (0.60)" in words(figure)


def test_shade_is_the_share_of_the_points_and_lies_where_they_do():
    points = np.concatenate([np.tile([[1.53, -0.53]], (30, 1)), np.tile([[-2.0, 2.0]], (10, 1))])
    axes = pictures.densities({"two places": points}, Ring().density).axes[0]
    (image,) = axes.images
    shares = np.asarray(image.get_array())
    assert shares.sum() == pytest.approx(1)
    row, column = np.unravel_index(shares.argmax(), shares.shape)
    left, right, bottom, top = image.get_extent()
    x = left + (column + 0.5) * (right - left) / shares.shape[1]
    y = bottom + (row + 0.5) * (top - bottom) / shares.shape[0]
    assert (x, y) == (pytest.approx(1.53, abs=0.05), pytest.approx(-0.53, abs=0.05))
    assert shares[:, : shares.shape[1] // 2].sum() == pytest.approx(0.25)


def test_outline_stands_where_the_density_is_a_tenth():
    ring = Ring(modes=1, radius=1.0, deviation=0.4)
    axes = pictures.densities({"ring": np.zeros((1, 2))}, ring.density).axes[0]
    outline = np.concatenate(axes.collections[0].get_paths()[0].to_polygons())
    apart = np.linalg.norm(outline - ring.centres[0], axis=1)
    assert np.allclose(apart, 0.4 * np.sqrt(2 * np.log(10)), atol=0.02)


RANDOM = np.random.default_rng(0)


def images_of(figure):
    return figure.axes[0].images


def test_images_fill_rows_from_the_left_and_do_not_overlap():
    images = RANDOM.random((7, 4, 4))
    shown = images_of(pictures.image_grid(images, columns=4))
    boxes = [np.reshape(each.get_extent(), (2, 2)) for each in shown]  # x from to, y from to
    rows = [round(float(box[1].min()), 6) for box in boxes]
    assert [rows.index(row) for row in rows] == [0, 0, 0, 0, 4, 4, 4]
    lefts = [float(box[0][0]) for box in boxes]
    assert lefts[:4] == sorted(lefts[:4])
    assert lefts[4] == lefts[0]
    for one in range(7):
        for other in range(one):
            apart = [
                max(boxes[one][axis].min(), boxes[other][axis].min())
                >= min(boxes[one][axis].max(), boxes[other][axis].max())
                for axis in (0, 1)
            ]
            assert any(apart)
    for image, each in zip(images, shown, strict=True):
        assert np.array_equal(each.get_array(), image)


def test_unit_scale_is_the_same_for_all_and_divides_bytes():
    images = np.array([[[0, 51]], [[102, 255]]], np.uint8)
    shown = images_of(pictures.image_grid(images))
    assert [each.get_clim() for each in shown] == [(0.0, 1.0)] * 2
    assert np.allclose(shown[0].get_array(), [[0.0, 0.2]])
    noisy = images_of(pictures.image_grid(np.array([[[-0.5, 1.5]]])))[0]
    assert noisy.to_rgba(-0.5) == noisy.to_rgba(0.0)
    assert noisy.to_rgba(1.5) == noisy.to_rgba(1.0)


def test_signed_scale_is_one_around_zero_and_tells_the_sign_by_colour():
    shown = images_of(pictures.image_grid([[[0.5, -0.1]], [[-2.0, 0.0]]], scale="signed"))
    assert [each.get_clim() for each in shown] == [(-2, 2)] * 2
    red, _green, blue, _alpha = shown[0].to_rgba(2.0)
    assert red > blue
    red, _green, blue, _alpha = shown[0].to_rgba(-2.0)
    assert blue > red
    assert min(shown[0].to_rgba(0.0)) > 0.95


CLIPS = np.random.default_rng(1).integers(0, 256, (2, 6, 16, 16, 3)).astype(np.uint8)


FILMS = {"truth": CLIPS, "repeat": CLIPS[:, ::-1]}


def test_a_row_for_each_predictor_and_a_column_for_each_frame():
    drawn = pictures.predicted_frames(FILMS, 1)
    images = [image.get_array() for image in drawn.axes[0].get_images()]
    assert len(images) == 12
    assert np.allclose(images[0], CLIPS[1, 0] / 255)
    assert np.allclose(images[6], CLIPS[1, 5] / 255)
    assert {text.get_text() for text in drawn.axes[0].texts} == {"truth", "repeat"}


def test_film_has_all_frames_side_by_side_and_repeats_indefinitely():
    data = pictures.film(FILMS)
    with Image.open(io.BytesIO(data)) as film:
        assert (film.n_frames, film.info["loop"], film.info["duration"]) == (6, 0, 250)
        page = np.asarray(film.convert("RGB")).astype(int)
    # the corner of the first frame, enlarged eight times, is that pixel but for the palette
    assert np.abs(page[:6, :6].reshape(-1, 3) - CLIPS[0, 0, 0, 0]).max() < 40
    assert page.shape[1] == 2 * cases._FRAME + cases._GAP


ONE = [("Edema", 0.9, 0.85, 0.93), ("Mass", 0.6, 0.5, 0.7), ("mean", 0.75, 0.7, 0.8)]


OTHER = [("Mass", 0.8, 0.75, 0.84), ("Edema", 0.7, 0.6, 0.78), ("mean", 0.75, 0.72, 0.78)]


def intervals(axes, number):
    """Findings from top to bottom with the ends of a net's intervals."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    lines = axes.containers[number].lines[2][0].get_segments()
    order = sorted(range(len(lines)), key=lambda row: lines[row][0][1])
    return {
        name: (lines[row][0][0], lines[row][1][0]) for name, row in zip(names, order, strict=True)
    }


def test_intervals_stand_at_their_findings_whatever_the_order():
    axes = pictures.areas_under_curves({"one": ONE, "other": OTHER}).axes[0]
    assert intervals(axes, 0)["Mass"] == pytest.approx((0.5, 0.7))
    assert intervals(axes, 1)["Mass"] == pytest.approx((0.75, 0.84))
    assert intervals(axes, 1)["Edema"] == pytest.approx((0.6, 0.78))


def test_area_under_the_drawn_curve_is_the_count_of_pairs():
    rng = np.random.default_rng(0)
    labels, scores = rng.random(80) < 0.4, rng.normal(size=80).round(1)
    axes = pictures.roc_curves({"one": (labels, scores), "other": (labels, -scores)}).axes[0]
    area = roc_auc_score(labels, scores)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == [f"one: area {area:.3f}", f"other: area {1 - area:.3f}"]
    alarms, hits = axes.lines[0].get_data()
    assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0, 0, 1, 1)


# --- refusals and alternative texts ---

REFUSED = [
    (pictures.predicted_frames, ({**FILMS, "x": CLIPS[:, :3]},), "as many frames in each row"),
    (pictures.image_grid, (np.zeros((1, 2, 2)), None, 8, "own range"), "`scale` must be one of"),
    (pictures.image_grid, (np.zeros((1, 2, 2, 4)),), "`images` must be images of"),
    (pictures.processes, ([],), "`engines` must hold at least one entry, .* Start the cluster"),
]


@pytest.mark.parametrize(("draw", "arguments", "text"), REFUSED)
def test_what_cannot_be_drawn_is_refused(draw, arguments, text):
    with pytest.raises(ValueError, match=text):
        draw(*arguments)


def test_scan_of_rates_marks_the_lowest_mean_and_batches_the_least_median():
    (axes,) = pictures.rate_scan({"loss": {"a": {0.1: [2.0, 4.0], 1.0: [2.5]}}}).axes
    (star,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (1.0, 2.5)
    updates, _ = pictures.batch_costs({1: [9.0, 2.0, 8.0], 8: [3.0]}, {1: [1.0], 8: [2.0]}).axes
    assert [text.get_text() for text in updates.texts] == ["least: batch 8"]


CURVE = {0: [0.1, 0.5], 8: [0.1, 0.2]}
DRAWN = [
    (pictures.descent, ({"saddle": (SADDLE, PATHS)},)),
    (pictures.loss_curves, ({"updates": CURVES},)),
    (pictures.edge, (CURVES, CURVES, CURVES)),
    (pictures.batch_costs, ({1: [9.0, 11.0], 32: [3.0]}, {1: [1.0], 32: [2.0, 3.0]})),
    (pictures.rate_scan, ({"loss": {"plain": {0.1: [2.0, 3.0], 1.0: [1.0]}}},)),
    (pictures.symptoms, (three_ranks(),)),
    (pictures.overlap, (SCHEDULES,)),
    (pictures.staleness, ({"a": [0, 1]},)),
    (
        pictures.layout_steps,
        ({"one": (1.0, 0.0, 0.5)}, {"one": SimpleNamespace(median=1.5, low=1.0, high=2.0)}),
    ),
    (pictures.delays, ({"one": CURVE, "half": CURVE, "fresh": CURVE}, {0: 0.1, 8: 2.0})),
    (pictures.worker_timeline, (TIMES,)),
    (pictures.budget, (BUDGET,)),
    (pictures.error_feedback, (GIVEN, SENT)),
    (pictures.accuracy_and_bytes, (TRIALS, {"few": 81})),
    (pictures.seconds_on_links, (SECONDS, {"all": (1, 1), "few": (1, 1)})),
    (pictures.search_scores, (FOUND.trials, FOUND.best(), "error")),
    (pictures.rank_bars, ({"all": FOUND.trials},)),
    (pictures.projections, ({"p": [(0.1, 0.2)]}, np.abs)),
    (pictures.epoch_times, ({"one": POINTS},)),
    (pictures.addresses, ({"NCHW": tensor_layouts.addresses((1, 4, 2, 2), "abcd")[0]},)),
    (pictures.speed_pairs, ({"net": {"one": (10.0, 15.0)}}, ("1", "8"), "images/s")),
    (pictures.densities, ({"a": np.zeros((2, 2))}, Ring().density)),
    (pictures.image_grid, (RANDOM.random((2, 3, 3)),)),
    (pictures.predicted_frames, (FILMS,)),
    (pictures.area_gains, ({"a - b": ONE},)),
    (pictures.area_by_pictures, ({(100, 50, "scratch"): [0.6, 0.7]}, 20)),
    (pictures.loss_and_rate, ([0.9, 0.7, 0.6], [0.1, 0.1, 0.01], 2)),
    (pictures.reliability, ({"net": (RANDOM.random(80) < 0.4, RANDOM.random(80))},)),
]


@pytest.mark.parametrize(("draw", "arguments"), DRAWN)
def test_every_picture_is_described_in_words(draw, arguments):
    figure = draw(*arguments)
    assert figure._repr_html_().startswith("<img alt=")
    assert len(words(figure)) > 20


HELD = {
    "a": [HeldOutPrediction(16, 110, 90, 130, 100), HeldOutPrediction(32, 150, 140, 160, 200)],
    "none above 8": [],
    "b": [HeldOutPrediction(16, 50, 49, 51, 50)],
}


def test_picture_shows_predicted_over_measured_and_the_interval():
    drawn = pictures.predicted_errors(HELD)
    axes = drawn.axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["a", "b"]
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_xdata()[0] for line in marks] == pytest.approx([1.1, 0.75, 1.0])
    intervals = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert intervals[:3] == [(0.9, 1.3), (0.7, 0.8), (0.98, 1.02)]
    assert [line.get_label() for line in marks] == ["16 workers", "32 workers", "16 workers"]
    assert "a: 1.10 at 16, 0.75 at 32." in drawn._repr_html_()
