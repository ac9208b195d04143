"""Measurements of `dlguide bench` and `dlguide tune`: allreduce, formats, oneDNN, threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.collectives import ring_share
from dlguide.errors import require
from dlguide.measure import Timing
from dlguide.plots.figures import BLUE, COLOURS, GREY, MARKERS, ORANGE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def allreduce(
    seconds: Mapping[int, Mapping[str, float]],
    ranks: int,
    published: Sequence[tuple[int, float]] = (),
) -> Figure:
    """Draw the time and the bus bandwidth 2 (p - 1)/p n / t of allreduces over sizes.

    Args:
        seconds: for each size (bytes) the time of each algorithm (s).
        ranks: number of ranks p (count).
        published: sizes (bytes) and times (s) of another machine, a grey dashed line.

    Returns:
        Figure: microseconds on the left, GB/s on the right, both axes logarithmic.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(seconds), "seconds", "hold at least one size", {})
    names = dict.fromkeys(name for times in seconds.values() for name in times)
    drawn, (left, right) = figure(columns=2, width=10.5, height=4.2)
    share = ring_share(ranks)
    lines = {name: sorted((n, t[name]) for n, t in seconds.items() if name in t) for name in names}
    for number, (name, points) in enumerate(lines.items()):
        sizes = [nbytes for nbytes, _ in points]
        look = {
            "color": (*COLOURS[:5], "black")[number % 6],
            "marker": MARKERS[number % 6],
            "linestyle": "-:"[number // 6 % 2],
            "markersize": 4,
        }
        left.plot(sizes, [1e6 * each for _, each in points], label=name, **look)
        right.plot(sizes, [share * nbytes / each / 1e9 for nbytes, each in points], **look)
    if published:
        sizes, times = zip(*published, strict=True)
        left.plot(sizes, [1e6 * each for each in times], "--", color=GREY, label="published")
    _logarithmic(left, "microseconds", "Time of one allreduce")
    if ranks > 1:  # one rank sends nothing
        _logarithmic(right, "GB/s", "Bus bandwidth")
    left.legend(frameon=False, fontsize=7)
    return drawn


def allreduce_shares(points: Sequence[Any], bounds: Mapping[int, Any]) -> Figure:
    """Draw allreduces as `bench.allreduce.mpis` measured them, beside the limit of the machine.

    Args:
        points: of several names and sizes.
        bounds: by size (bytes) the limit, as `Limits.allreduce` gives it.

    Returns:
        Figure: microseconds with quartiles and the limit on the left, both axes logarithmic; on
        the right the share of the limit, where that is known.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(len(points) > 0, "points", "hold at least one", [])
    drawn, (left, right) = figure(columns=2, width=10.5, height=3.6)
    known = {n: bound.seconds for n, bound in sorted(bounds.items()) if bound.seconds is not None}
    left.plot(
        known.keys(), [1e6 * each for each in known.values()], "--", color=GREY, label="limit"
    )
    for number, name in enumerate(dict.fromkeys(point.name for point in points)):
        own = sorted((p for p in points if p.name == name), key=lambda point: point.nbytes)
        sizes, times = [p.nbytes for p in own], [Timing(p.seconds) for p in own]
        look = {"color": COLOURS[number % 6], "marker": MARKERS[number % 6], "markersize": 4}
        middle = [1e6 * each.median for each in times]
        around = list(
            zip(
                *(
                    (1e6 * (each.median - each.low), 1e6 * (each.high - each.median))
                    for each in times
                ),
                strict=True,
            )
        )
        left.errorbar(sizes, middle, yerr=around, label=name, capsize=2, **look)
        shares = {p.nbytes: bounds[p.nbytes].share(p.median_s) for p in own}
        shares = {nbytes: share for nbytes, share in shares.items() if share is not None}
        right.plot(shares.keys(), shares.values(), label=name, **look)
    _logarithmic(left, "microseconds", "Time of one allreduce")
    _logarithmic(right, "share of the limit", "Limit: memory, or two transfers of a cache line")
    right.set_yscale("linear")
    right.set_ylim(0, None)
    left.legend(frameon=False, fontsize=8)
    return drawn


def _logarithmic(axes: Axes, unit: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [1 << power for power in range(3, 30, 4)]
    low, high = axes.get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(shown, [_short(tick) for tick in shown])
    axes.set_xlabel("size of the array on every rank")
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=10)


def _short(nbytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


def reading_speeds(speeds: Sequence[Any]) -> Figure:
    """Draw the MB/s of formats, read in several ways, as `bench.io.compare` measured them.

    Returns:
        Figure: a panel for each access pattern and state of the page cache, all with one
        logarithmic axis; blue dots for samples that were checked and decoded, grey diamonds for
        the raw bytes, with quartiles.

    Raises:
        ValueError: when there is no speed.
    """
    require(len(speeds) > 0, "speeds", "hold at least one", [])
    panels = list(dict.fromkeys((each.access, each.cold) for each in speeds))
    kinds = list(dict.fromkeys(each.kind for each in speeds))
    alt = "MB/s, higher is better. " + "; ".join(
        f"{each.kind} {each.access} {('warm', 'cold')[each.cold]}, "
        f"{('raw', 'checked')[each.checked]}: {each.bytes_per_s / 1e6:.3g}"
        for each in speeds
    ) + "."  # fmt: skip
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn, axes_of = figure(rows, columns, 4.6 * columns, 0.9 + 0.27 * len(kinds), alt)
    quartiles = [
        sorted(each.nbytes / 1e6 / s for s in (each.timing.low, each.timing.high))
        for each in speeds
    ]
    span = min(low for low, _ in quartiles) / 1.5, max(high for _, high in quartiles) * 1.5
    for axes, panel in zip(axes_of, panels, strict=False):
        for each, (low, high) in zip(speeds, quartiles, strict=True):
            if (each.access, each.cold) != panel:
                continue
            y, speed = kinds.index(each.kind), each.bytes_per_s / 1e6
            around = _around(speed, low, high)
            look = {"color": GREY, "fmt": "D", "label": "bytes alone"}
            if each.checked:
                look = {"color": BLUE, "fmt": "o", "label": "checked and taken apart"}
            axes.errorbar([speed], [y + (-0.15 if each.checked else 0.15)], xerr=around, **look)
        axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
        axes.set(xscale="log", xlim=span, ylim=(len(kinds) - 0.5, -0.5))
        axes.set_title(f"{panel[0]}, {'cold' if panel[1] else 'warm'}", fontsize=10)
        axes.set_xlabel("MB/s of samples")
    for axes in axes_of[len(panels) :]:
        axes.set_visible(False)
    labelled = dict(zip(*reversed(axes_of[0].get_legend_handles_labels()), strict=True))
    place = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 8}
    drawn.legend(labelled.values(), labelled.keys(), **place)
    return drawn


def _around(speed: float, low: float, high: float) -> list[list[float]]:
    # rounding can put a quartile that equals the median on the wrong side of it
    return [[max(0.0, speed - low)], [max(0.0, high - speed)]]


def onednn_speeds(speeds: Sequence[Any]) -> Figure:
    """Draw the images per second with oneDNN on and off, as `bench.onednn.compare` measured them.

    Returns:
        Figure: a panel for each mode, bars with the quartiles as lines.

    Raises:
        ValueError: when there is no speed.
    """
    require(len(speeds) > 0, "speeds", "hold at least one", [])
    modes = list(dict.fromkeys(each.mode for each in speeds))
    alt = "Images per second, higher is better. " + " ".join(
        f"{each.mode}, oneDNN {('off', 'on')[each.onednn]}: {each.images_per_s:.3g}."
        for each in speeds
    )
    drawn, panels = figure(columns=len(modes), width=3.2 * len(modes), height=2.6, alt=alt)
    for axes, mode in zip(panels, modes, strict=True):
        for each in speeds:
            if each.mode == mode:
                low, high = (each.batch_per_rank / s for s in (each.timing.high, each.timing.low))
                look = {"yerr": _around(each.images_per_s, low, high), "capsize": 3}
                colour = (ORANGE, BLUE)[each.onednn]
                axes.bar(("off", "on")[each.onednn], each.images_per_s, 0.6, color=colour, **look)
        axes.set_title(mode)
        axes.set_xlabel("oneDNN")
    panels[0].set_ylabel("images/s")
    return drawn


def streams(splits: Sequence[Any]) -> Figure:
    """Draw throughput and latency of inference against streams, as `bench.streams.compare` gave.

    Returns:
        Figure: images/s of all streams on the left, latency on the right.

    Raises:
        ValueError: when there is no split.
    """
    require(len(splits) > 0, "splits", "hold at least one", [])
    names = [f"{each.streams} x {each.threads}" for each in splits]
    alt = "Streams x threads. " + " ".join(
        f"{name}: {each.median_images_per_s:.3g} images/s, latency {1e3 * each.latency.median:.3g} "
        f"ms, 95 of 100 within {1e3 * each.late_s:.3g} ms."
        for name, each in zip(names, splits, strict=True)
    )
    drawn, (left, right) = figure(columns=2, height=2.8, alt=alt)
    left.bar(names, [each.median_images_per_s for each in splits], 0.6, color=BLUE)
    left.set(title="all streams together", ylabel="images/s", xlabel="streams x threads")
    late = [1e3 * each.late_s for each in splits]
    right.bar(names, late, 0.6, color=SKY, label="95 of 100 within")
    middle = [1e3 * each.latency.median for each in splits]
    right.plot(names, middle, "o", color=ORANGE, label="median")
    right.set(title="one answer", ylabel="latency (ms)", xlabel="streams x threads")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def tuning(result: Any) -> Figure:
    """Draw a `tuning.HalvingResult`: images/s as colour, ranks to the right, threads upwards.

    Of the candidates of one cell, which differ in inter-op threads and binding, the best gives
    the colour. The frame marks the best of all; "default" are TensorFlow's own settings, "free"
    are ranks without binding.

    Returns:
        Figure: the heat map.

    Raises:
        ValueError: when no candidate was measured.
    """
    from matplotlib.patches import Rectangle

    cells: dict[tuple[int, int], list[Any]] = {}
    for row in result.rows:
        if row.median > 0 and not row.error:
            where = (row.candidate.ranks, row.candidate.threads)
            cells.setdefault(where, []).append(row)
    require(bool(cells), "result", "hold a candidate that was measured", [])
    ranks = sorted({where[0] for where in cells})
    threads = sorted({where[1] for where in cells})
    best = {where: max(rows, key=lambda r: (r.rung, r.median)) for where, rows in cells.items()}
    drawn, (axes,) = figure(
        width=max(4.2, 2.2 + 1.5 * len(ranks)),
        height=max(2.6, 1.4 + 0.75 * len(threads)),
        alt=_words(result, best),
    )
    grid = [[best[p, t].median if (p, t) in best else float("nan") for p in ranks] for t in threads]
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis")
    speeds = [row.median for row in best.values()]
    middle = (min(speeds) + max(speeds)) / 2
    for (p, t), row in best.items():
        text = f"{row.median:.0f}\n{_settings(row.candidate)}"
        others = [each for each in cells[p, t] if each.candidate.default and each is not row]
        text += "".join(f"\ndefault: {each.median:.0f}" for each in others)
        # cividis is dark at its lower end
        colour = "black" if row.median >= middle else "white"
        place = (ranks.index(p), threads.index(t))
        axes.text(*place, text, color=colour, ha="center", va="center", fontsize=8)
        if result.best == row.candidate:
            corner = place[0] - 0.47, place[1] - 0.47
            style = {"edgecolor": ORANGE, "linewidth": 3}
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, **style))
    axes.set_xticks(range(len(ranks)), [str(each) for each in ranks])
    axes.set_yticks(range(len(threads)), [str(each) for each in threads])
    axes.set(xlabel="ranks", ylabel="threads per rank", title="Throughput (frame: the best)")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    drawn.colorbar(image, ax=axes, label="images/s over all ranks")
    return drawn


def _settings(candidate: Any) -> str:
    if candidate.default:
        return "default"
    return f"inter-op {candidate.inter_op}, {'bound' if candidate.bound else 'free'}"


def _words(result: Any, best: dict[tuple[int, int], Any]) -> str:
    described = [
        f"{p} rank{'s' * (p > 1)} x {t} thread{'s' * (t > 1)}: {row.median:.0f}"
        for (p, t), row in sorted(best.items())
    ]
    base = "" if result.baseline is None else f" Baseline: {result.baseline}."
    return f"Heat map of images/s. {'; '.join(described)}. Best: {result.best}.{base}"
