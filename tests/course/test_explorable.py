"""A table that can be explored: narrowed, sorted, escaped, and readable without a script."""

from html.parser import HTMLParser

import pytest

from dlcourse.diagrams import explorable

ROWS = [
    {"name": "b<b>", "size": 2, "note": "see https://example.org/x?a=1&b=2"},
    {"name": "a", "size": 10, "note": None},
    {"name": "c", "size": None, "note": "10_one 11_two"},
]


class Reader(HTMLParser):
    """Texts of the cells, attributes of the links, tags that were opened and closed."""

    def __init__(self):
        super().__init__()
        self.rows, self.links, self.open, self.in_cell = [], [], [], False

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.in_cell = True
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.rows[-1][-1] += data


def read(table):
    reader = Reader()
    reader.feed(table._repr_html_())
    assert reader.open == []
    return reader


def test_table_shows_every_cell_with_markup_escaped():
    reader = read(explorable.explore(ROWS))
    assert reader.rows[0] == ["name", "size", "note"]
    assert reader.rows[1] == ["b<b>", "2", "see https://example.org/x?a=1&b=2"]
    assert reader.rows[2] == ["a", "10", ""]


def test_without_its_script_no_row_is_hidden_and_no_dead_field_is_shown():
    page = explorable.explore(ROWS)._repr_html_().split("<script>")[0]
    assert "hidden" not in page
    assert "<input" not in page
    assert "<caption>" in page
    assert page.count('scope="row"') == 3
    assert page.count('scope="col"') == 3


def test_two_tables_in_one_notebook_do_not_share_a_name():
    one, two = (explorable.explore(ROWS, title=title)._repr_html_() for title in "ab")
    name = one.split('id="')[1].split('"')[0]
    assert f'"#{name}"' in one
    assert name not in two


def test_nothing_is_loaded_from_elsewhere():
    page = explorable.explore(ROWS)._repr_html_()
    for word in ("src=", "@import", "url(", "fetch(", "<link"):
        assert word not in page


def test_where_keeps_the_rows_that_fulfil_all_conditions():
    table = explorable.explore(ROWS)
    assert [row["name"] for row in table.where(name="a").rows] == ["a"]
    large = table.where(size=lambda size: size is not None and size > 1, name=lambda n: n != "a")
    assert [row["size"] for row in large.rows] == [2]
    assert len(table.where(name="none of them")) == 0
    assert "no row fits" in table.where(name="none of them")._repr_html_()
    assert len(table) == 3


def test_sort_puts_numbers_in_order_and_empty_cells_last():
    table = explorable.explore(ROWS)
    assert [row["size"] for row in table.sort("size").rows] == [2, 10, None]
    assert [row["size"] for row in table.sort("size", falling=True).rows] == [10, 2, None]


def test_select_shows_other_columns():
    reader = read(explorable.explore(ROWS).select("note", "name"))
    assert reader.rows[0] == ["note", "name"]
    assert reader.rows[3] == ["10_one 11_two", "c"]


def test_text_form_has_title_heads_and_cells():
    lines = repr(explorable.explore(ROWS, columns=("name", "size"), title="Sizes")).splitlines()
    assert lines == ["Sizes", "name | size", "b<b> | 2", "a | 10", "c | "]


def test_links_go_to_notebooks_and_addresses_only():
    links = {"note": explorable.addresses}
    reader = read(explorable.explore(ROWS, links=links))
    assert reader.links == ["https://example.org/x?a=1&b=2"]
    books = read(explorable.explore(ROWS[2:], links={"note": explorable.notebooks}))
    assert books.links == ["10_one.ipynb", "11_two.ipynb"]
    bad = {"note": lambda text: [("click", "javascript:alert(1)")]}
    assert read(explorable.explore(ROWS[2:], links=bad)).links == ["#"]


def test_program_text_keeps_its_lines():
    rows = [{"name": "x", "text": "if a < b:\n    go()"}]
    page = explorable.explore(rows, code=("text",))._repr_html_()
    assert "if a &lt; b:\n    go()</pre>" in page


@pytest.mark.parametrize(
    ("call", "text"),
    {
        "no row": (lambda: explorable.explore([]), "`rows` must hold at least one row"),
        "other keys": (lambda: explorable.explore([{"a": 1}, {"b": 1}]), "all have the keys a"),
        "column": (lambda: explorable.explore(ROWS, ["names"]), "Did you mean name"),
        "link": (lambda: explorable.explore(ROWS, links={"nam": str}), "Did you mean name"),
        "where": (lambda: explorable.explore(ROWS).where(sise=1), "`column` must be one of"),
        "sort": (lambda: explorable.explore(ROWS).sort("sise"), "Did you mean size"),
        "select": (lambda: explorable.explore(ROWS).select("sise"), "Did you mean size"),
    }.values(),
)
def test_wrong_use_is_refused_with_the_known_names(call, text):
    with pytest.raises(ValueError, match=text):
        call()
