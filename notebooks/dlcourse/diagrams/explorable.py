"""A table that a reader can sort and search in the notebook, and that reads well without.

Plain HTML with a script of a few lines: no widgets, no network. Where scripts do not run, such as
on a printed page, the whole table is there.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlguide.errors import require, require_known

_URL = re.compile(r"https://[^\s<>\"]+")

_STYLE = """<style>
.explorable {max-width: 100%; overflow-x: auto}
.explorable table {border-collapse: collapse; font-size: 90%; margin: 0}
.explorable caption {text-align: left; font-weight: bold; padding: 4px 0}
.explorable th, .explorable td {text-align: left; vertical-align: top; padding: 3px 8px;
  border-bottom: 1px solid #dddddd; white-space: normal; min-width: 4em}
.explorable pre {text-align: left; margin: 0; font-size: 80%}
.explorable th button {all: unset; cursor: pointer; font-weight: bold}
.explorable th button:focus-visible {outline: 2px solid #0072B2}
</style>"""

# The search field is made by the script: where it does not run, no dead field is shown.
_SCRIPT = """<script>
document.querySelectorAll("#NAME").forEach(function (box) {
  if (box.dataset.ready) return;
  box.dataset.ready = "yes";
  const table = box.querySelector("table"), body = table.tBodies[0];
  const label = document.createElement("label"), field = document.createElement("input");
  label.append("show rows with ", field);
  field.type = "search";
  field.addEventListener("keydown", function (event) { event.stopPropagation(); });
  field.addEventListener("input", function () {
    for (const row of body.rows)
      row.hidden = !row.textContent.toLowerCase().includes(field.value.toLowerCase());
  });
  box.prepend(label);
  Array.from(table.tHead.rows[0].cells).forEach(function (head, place) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.title = "sort by this column";
    head.append(button);
    button.addEventListener("click", function () {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const text = function (row) { return row.cells[place].textContent; };
      const rows = Array.from(body.rows).sort(function (one, two) {
        return text(one).localeCompare(text(two), "en", {numeric: true});
      });
      body.append(...(up ? rows : rows.reverse()));
    });
  });
});
</script>"""


@dataclass(frozen=True)
class Table:
    """Rows that can be narrowed in Python, and sorted and searched where they are shown.

    Args:
        rows: dictionaries with the same keys.
        columns: keys to show, in order.
        title: what the table holds, its caption.
        links: for a column, what makes (text, address) pairs of its cell.
        code: columns whose cells are program text and keep their lines.
    """

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...]
    title: str
    links: Mapping[str, Callable[[Any], Sequence[tuple[str, str]]]]
    code: tuple[str, ...] = ()

    def where(self, **conditions: Any) -> Table:
        """Keep the rows that fulfil all conditions.

        Args:
            conditions: for a column a value, which the cell must equal, or a function, which the
                cell must fulfil.

        Returns:
            Table: the same with fewer rows, perhaps none.

        Raises:
            ValueError: when a column is unknown.
        """
        for column in conditions:
            self._known(column)

        def fits(row: Mapping[str, Any]) -> bool:
            return all(
                asked(row[column]) if callable(asked) else row[column] == asked
                for column, asked in conditions.items()
            )

        return replace(self, rows=tuple(filter(fits, self.rows)))

    def sort(self, column: str, falling: bool = False) -> Table:
        """Order the rows by one column; empty cells come last.

        Args:
            column: the key to order by.
            falling: the largest first.

        Returns:
            Table: the same rows in another order.

        Raises:
            ValueError: when the column is unknown.
        """
        self._known(column)
        filled = [row for row in self.rows if row[column] is not None]
        empty = [row for row in self.rows if row[column] is None]
        ordered = sorted(filled, key=lambda row: row[column], reverse=falling)
        return replace(self, rows=(*ordered, *empty))

    def select(self, *columns: str) -> Table:
        """Show other columns.

        Args:
            columns: the keys, in order.

        Returns:
            Table: the same rows with these columns.

        Raises:
            ValueError: when a column is unknown.
        """
        for column in columns:
            self._known(column)
        return replace(self, columns=columns)

    def _known(self, column: str) -> None:
        if self.rows:
            require_known(column, self.rows[0], "column")

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        rows = [[_plain(row[column]) for column in self.columns] for row in self.rows]
        said = [" | ".join(row) for row in ([_words(name) for name in self.columns], *rows)]
        return "\n".join([self.title, *said])

    def _repr_html_(self) -> str:
        heads = "".join(f'<th scope="col">{_escaped(_words(name))}</th>' for name in self.columns)
        lines = [self._line(row) for row in self.rows]
        nothing = f'<tr><td colspan="{len(self.columns)}">no row fits</td></tr>'
        body = "\n".join(lines) or nothing
        table = (
            f"<table><caption>{_escaped(self.title)}</caption><thead><tr>{heads}</tr></thead>\n"
            f"<tbody>{body}</tbody></table>"
        )
        name = "table-" + hashlib.sha256(table.encode()).hexdigest()[:12]
        script = _SCRIPT.replace("NAME", name)
        return f'{_STYLE}<div class="explorable" id="{name}">{table}</div>{script}'

    def _line(self, row: Mapping[str, Any]) -> str:
        cells = []
        for place, column in enumerate(self.columns):
            inside = self._cell(column, row[column])
            cells.append(f'<th scope="row">{inside}</th>' if place == 0 else f"<td>{inside}</td>")
        return f"<tr>{''.join(cells)}</tr>"

    def _cell(self, column: str, value: Any) -> str:
        if value is not None and column in self.links:
            pairs = self.links[column](value)
            return ", ".join(_link(text, address) for text, address in pairs)
        if column in self.code:
            return f"<pre>{_escaped(_plain(value))}</pre>"
        return _escaped(_plain(value))


def explore(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    title: str = "Table",
    links: Mapping[str, Callable[[Any], Sequence[tuple[str, str]]]] | None = None,
    code: Sequence[str] = (),
) -> Table:
    """Make a table of rows that a notebook shows when a cell ends with it.

    In the notebook: a click on a column's name sorts, the field above searches. In Python:
    `where`, `sort` and `select`.

    Args:
        rows: dictionaries with the same keys, such as `published.load` gives.
        columns: keys to show, in order; empty for all.
        title: what the table holds.
        links: for a column, what makes (text, address) pairs of its cell, such as `notebooks`
            and `addresses`.
        code: columns whose cells are program text.

    Returns:
        Table: the rows.

    Raises:
        ValueError: when there is no row, a row has other keys, or a column is unknown.
    """
    require(len(rows) > 0, "rows", "hold at least one row", rows)
    known = list(rows[0])
    for row in rows:
        require(list(row) == known, "rows", f"all have the keys {', '.join(known)}", list(row))
    for column in (*columns, *(links or {}), *code):
        require_known(column, known, "column")
    return Table(
        tuple(dict(row) for row in rows),
        tuple(columns) or tuple(known),
        title,
        dict(links or {}),
        tuple(code),
    )


def notebooks(names: str) -> list[tuple[str, str]]:
    """Make links of notebooks' names, for a table in a notebook beside them.

    >>> notebooks("21_collectives")
    [('21 collectives', '21_collectives.ipynb')]
    """
    return [(name.replace("_", " "), f"{name}.ipynb") for name in names.split()]


def addresses(text: str) -> list[tuple[str, str]]:
    """Make links of the addresses in a text.

    Args:
        text: text with addresses that begin with https.

    Returns:
        list: (host and beginning of the path, address) for each.

    >>> addresses("see https://example.org/a")
    [('example.org/a', 'https://example.org/a')]
    """
    found = _URL.findall(text)
    names = [url.removeprefix("https://").removeprefix("www.") for url in found]
    short = [name if len(name) <= 30 else name[:29] + "…" for name in names]
    return list(zip(short, found, strict=True))


def _link(text: str, address: str) -> str:
    safe = address if re.match(r"https://|[\w./-]+$", address) else "#"
    return f'<a href="{_escaped(safe)}">{_escaped(text)}</a>'


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
