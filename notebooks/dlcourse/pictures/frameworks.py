"""Frameworks: published speeds, releases, tables, and programs side by side."""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from dlcourse.pictures.shapes import not_empty, note
from dlguide.errors import require, require_count, require_known
from dlguide.plots.figures import BLUE, COLOURS, GREY, MARKERS, ORANGE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@not_empty
def batch_seconds(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the seconds per batch of frameworks on 1, 2 and 4 devices."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    frameworks = list(dict.fromkeys(row["framework"] for row in rows))
    counts = (1, 2, 4)
    drawn, panels = figure(columns=len(networks), width=3.6 * len(networks), height=3.8)
    for axes, network in zip(panels, networks, strict=True):
        for row in rows:
            if row["network"] == network:
                place = frameworks.index(row["framework"])
                seconds = [row[f"gpus_{count}_s"] for count in counts]
                _line(axes, counts, seconds, row["framework"], place)
        top = max(row["gpus_1_s"] for row in rows if row["network"] == network)
        ideal = [1.25 * top / count for count in counts]
        axes.plot(counts, ideal, "--", color=GREY, linewidth=1, label="no loss")
        _doubling(axes, counts)
        axes.set_yscale("log")
        axes.set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
        lowest = min(row["gpus_4_s"] for row in rows)
        axes.set_ylim(0.8 * lowest, 1.4 * max(row["gpus_1_s"] for row in rows))
        axes.minorticks_off()
        axes.set_title(network, fontsize=10)
        axes.set_xlabel("GPUs (GK210)")
    panels[0].set_ylabel("seconds per batch")
    _shared_legend(drawn, panels[0])
    return drawn


@not_empty
def efficiencies(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]], devices: str = "GPUs"
) -> Figure:
    """Draw how much of the ideal speed-up is left as devices are added."""
    drawn, grid = figure(columns=len(panels), width=4.6 * len(panels), height=3.6)
    for axes, (title, series) in zip(grid, panels.items(), strict=True):
        for place, (label, line) in enumerate(series.items()):
            counts, values = list(line), list(line.values())
            shares = [
                (value / values[0]) / (count / counts[0])
                for count, value in zip(counts, values, strict=True)
            ]
            _line(axes, counts, shares, label, place)
        counts = {count for line in series.values() for count in line}
        _doubling(axes, sorted(count for count in counts if count & (count - 1) == 0))
        axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
        axes.set_ylim(0.0, 1.1)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(devices)
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    grid[0].set_ylabel("efficiency (1 = no loss)")
    return drawn


@not_empty
def speed_pairs(
    panels: Mapping[str, Mapping[str, tuple[float, float]]],
    names: tuple[str, str],
    unit: str = "images/s",
) -> Figure:
    """Draw two speeds for each of several cases, with their ratio above."""
    summary = [
        f"{title}, {case}: {one:g} and {two:g}, ratio {two / one:.2f}"
        for title, cases in panels.items()
        for case, (one, two) in cases.items()
    ]
    alt = f"{unit}: {names[0]} and {names[1]}. {'; '.join(summary)}."
    drawn, grid = figure(columns=len(panels), width=2.7 * len(panels) + 0.6, height=3.4, alt=alt)
    for axes, (title, cases) in zip(grid, panels.items(), strict=True):
        for place, (one, two) in enumerate(cases.values()):
            axes.bar(place - 0.2, one, 0.38, color=SKY, label=names[0])
            axes.bar(place + 0.2, two, 0.38, color=BLUE, hatch="//", label=names[1])
            point = place, max(one, two)
            note(axes, f"x {two / one:.2f}", point, 0, 3, ha="center", fontsize=10)
        axes.set_xticks(range(len(cases)), cases, fontsize=8)
        axes.margins(y=0.15)
        axes.set_title(title, fontsize=10)
    grid[0].set_ylabel(unit)
    _shared_legend(drawn, grid[0])
    return drawn


@not_empty
def last_releases(
    rows: Sequence[Mapping[str, Any]], mark: tuple[str, str] = ("2019-12-03", "the survey")
) -> Figure:
    """Draw when each framework was last released: the survey's ten, and the others."""
    from matplotlib.ticker import MultipleLocator

    dated = [row for row in rows if row["last_release_date"]]
    dated.sort(key=lambda row: row["last_release_date"])
    summary = [f"{row['framework']} {row['last_release_date']}" for row in dated]
    alt = f"Last release that was found, by day. {'; '.join(summary)}."
    drawn, (axes,) = figure(width=8.4, height=0.27 * len(dated) + 1.0, alt=alt)
    for place, row in enumerate(dated):
        of_ten = row["named_in"] == "survey Table 1"
        look = {"color": BLUE, "marker": "o"} if of_ten else {"color": ORANGE, "marker": "s"}
        day = _day(row["last_release_date"])
        axes.plot(day, place, linestyle="none", **look)
        note(axes, str(row["last_release"]), (day, place), 7, 0, va="center")
    day = _day(mark[0])
    axes.axvline(day, color=GREY, linestyle="--", linewidth=1)
    note(axes, mark[1], (day, len(dated) - 0.4), 4, 0, color=GREY)
    axes.set_yticks(range(len(dated)), [row["framework"] for row in dated], fontsize=8)
    axes.set_xlim(right=max(_day(row["last_release_date"]) for row in dated) + 1.1)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    title = "Last release: the survey's ten frameworks (circles), others (squares)"
    axes.set_title(title, fontsize=10, pad=14)
    axes.set_xlabel("year")
    axes.xaxis.set_major_locator(MultipleLocator(1))
    return drawn


@not_empty
def passes(first_s: Mapping[str, float], later_s: Mapping[str, float], most: int = 1000) -> Figure:
    """Draw the first and a later pass of each way, and the sum over many passes.

    Args:
        first_s: way -> its first pass, for "session" the making of its graph.
        later_s: way -> one later pass.
    """
    said = [f"{name} {1e3 * first_s.get(name, 0):.3g} and {1e3 * later_s[name]:.3g} ms"
            for name in later_s]  # fmt: skip
    alt = f"Preparation or first pass, and a later pass: {'; '.join(said)}."
    drawn, (bars, lines) = figure(columns=2, width=10.4, height=3.6, alt=alt)
    counts = [2**power for power in range(most.bit_length())]
    for place, (name, later) in enumerate(later_s.items()):
        first = first_s.get(name)
        bars.bar(place + 0.2, 1e3 * later, 0.38, color=BLUE, label="a later pass")
        if first is not None:
            look = {"color": ORANGE, "hatch": "//", "label": "first pass, or making the graph"}
            bars.bar(place - 0.2, 1e3 * first, 0.38, **look)
        if name != "NumPy":
            repeats = [count - (first is not None and name != "session") for count in counts]
            _line(lines, counts, [(first or 0) + later * each for each in repeats], name, place - 1)
    bars.set_xticks(range(len(later_s)), later_s, fontsize=8)
    bars.set(yscale="log", ylabel="milliseconds per pass")
    bars.margins(y=0.3)
    handles = dict(zip(*bars.get_legend_handles_labels()[::-1], strict=True))
    bars.legend(handles.values(), handles.keys(), frameon=False, fontsize=8)
    bars.set_title("one pass", fontsize=10)
    lines.set_title("many passes, computed from one (without NumPy)", fontsize=10)
    lines.set(xscale="log", yscale="log", xlabel="passes", ylabel="seconds in all")
    lines.legend(frameon=False, fontsize=8, ncols=2)
    return drawn


def _day(text: str) -> float:
    parts = [int(part) for part in text.split("-")]
    day = datetime.date(*[*parts, 1, 1][:3])
    return day.year + (day.timetuple().tm_yday - 1) / 365.25


def _line(
    axes: Axes, counts: Sequence[int], values: Sequence[float], label: str, place: int
) -> None:
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.plot(counts, values, marker=marker, color=colour, label=label, linewidth=1.4)


def _doubling(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts], fontsize=8)
    axes.minorticks_off()


def _shared_legend(drawn: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    drawn.legend(
        once.values(), once.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8
    )


# --- tables and programs ---


@dataclass(frozen=True)
class Table:
    """Rows of a published table, shown as HTML by a notebook and as plain text by print."""

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...]
    title: str
    links: Mapping[str, Callable[[Any], Sequence[tuple[str, str]]]]
    code: tuple[str, ...] = ()

    def where(self, **conditions: Any) -> Table:
        """Keep the rows whose cells equal a value, or fulfil a function, for all conditions."""
        for column in conditions:
            self._require(column)

        def fits(row: Mapping[str, Any]) -> bool:
            return all(
                wanted(row[column]) if callable(wanted) else row[column] == wanted
                for column, wanted in conditions.items()
            )

        return replace(self, rows=tuple(filter(fits, self.rows)))

    def sort(self, column: str, descending: bool = False) -> Table:
        """Order the rows by one column; empty cells come last."""
        self._require(column)
        filled = [row for row in self.rows if row[column] is not None]
        empty = [row for row in self.rows if row[column] is None]
        ordered = sorted(filled, key=lambda row: row[column], reverse=descending)
        return replace(self, rows=(*ordered, *empty))

    def select(self, *columns: str) -> Table:
        """Show other columns."""
        for column in columns:
            self._require(column)
        return replace(self, columns=columns)

    def _require(self, column: str) -> None:
        if self.rows:
            require_known(column, self.rows[0], "column")

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        heads = " | ".join(name.replace("_", " ") for name in self.columns)
        rows = (" | ".join(_text(row[name]) for name in self.columns) for row in self.rows)
        return "\n".join([self.title, heads, *rows])

    def _repr_html_(self) -> str:
        style = "text-align: left; vertical-align: top; padding: 3px 8px"
        heads = "".join(
            f'<th scope="col" style="{style}">{_escaped(name.replace("_", " "))}</th>'
            for name in self.columns
        )
        lines = []
        for row in self.rows:
            cells = [self._cell(name, row[name]) for name in self.columns]
            first, *others = cells
            inside = "".join(f'<td style="{style}">{cell}</td>' for cell in others)
            lines.append(f'<tr><th scope="row" style="{style}">{first}</th>{inside}</tr>')
        body = "\n".join(lines) or f'<tr><td colspan="{len(self.columns)}">no row fits</td></tr>'
        return (
            f"<table><caption>{_escaped(self.title)}</caption><thead><tr>{heads}</tr></thead>\n"
            f"<tbody>{body}</tbody></table>"
        )

    def _cell(self, column: str, value: Any) -> str:
        if value is not None and column in self.links:
            return ", ".join(_link(*pair) for pair in self.links[column](value))
        cell = _escaped(_text(value))
        return f'<pre style="text-align: left">{cell}</pre>' if column in self.code else cell


@not_empty
def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    title: str = "Table",
    links: Mapping[str, Callable[[Any], Sequence[tuple[str, str]]]] | None = None,
    code: Sequence[str] = (),
) -> Table:
    """Make a table of rows with the same keys, such as `published.load` gives."""
    known = list(rows[0])
    for row in rows:
        require(list(row) == known, "rows", f"all have the keys {', '.join(known)}", list(row))
    for column in (*columns, *(links or {}), *code):
        require_known(column, known, "column")
    return Table(tuple(rows), tuple(columns) or tuple(known), title, links or {}, tuple(code))


def notebook_links(names: str) -> list[tuple[str, str]]:
    """Make links of the names of notebooks."""
    return [(name.replace("_", " "), f"{name}.ipynb") for name in names.split()]


def web_links(text: str) -> list[tuple[str, str]]:
    """Make links of the https addresses in a text."""
    found = re.findall(r"https://[^\s<>\"]+", text)
    names = [url.removeprefix("https://").removeprefix("www.") for url in found]
    short = [name if len(name) <= 30 else name[:29] + "…" for name in names]
    return list(zip(short, found, strict=True))


def _link(text: str, address: str) -> str:
    safe = address if re.match(r"https://|[\w./-]+$", address) else "#"
    return f'<a href="{_escaped(safe)}">{_escaped(text)}</a>'


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


# Light enough for black letters; the marks say the same without colour.
_MARK_COLOURS = {"-": "#f9dccb", "+": "#cfe6f5", " ": "transparent", "…": "transparent"}


@dataclass(frozen=True)
class Difference:
    """Lines with marks: "-" removed, "+" new, " " in both, "…" some were left out."""

    lines: tuple[tuple[str, str], ...]

    def count(self, mark: str) -> int:
        """Count the lines with a mark that are neither empty nor only a comment."""
        return sum(
            one == mark and bool(text.strip()) and not text.strip().startswith("#")
            for one, text in self.lines
        )

    def __str__(self) -> str:
        return "\n".join(f"{mark} {text}".rstrip() for mark, text in self.lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<div style="background: {_MARK_COLOURS[mark]}; padding: 0 0.5em">'
            f"{html.escape(f'{mark} {text}'.rstrip()) or ' '}</div>"
            for mark, text in self.lines
        )
        style = "font-family: monospace; white-space: pre; line-height: 1.35; color: black"
        return f'<div style="{style}; background: white">{rows}</div>'


def difference(before: str, after: str, around: int = 1) -> Difference:
    """Compare two texts line by line, with `around` equal lines on each side of a change."""
    require_count(around, "around", least=0)
    old, new = before.splitlines(), after.splitlines()
    found: list[tuple[str, str]] = []
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for number, (kind, i1, i2, j1, j2) in enumerate(blocks):
        if kind != "equal":
            found += [("-", line) for line in old[i1:i2]] + [("+", line) for line in new[j1:j2]]
            continue
        first = around if number else 0
        last = around if number < len(blocks) - 1 else 0
        if i2 - i1 <= first + last:
            found += [(" ", line) for line in old[i1:i2]]
        else:
            found += [(" ", line) for line in old[i1 : i1 + first]]
            found.append(("…", ""))
            found += [(" ", line) for line in old[i2 - last : i2]]
    return Difference(tuple(found))
