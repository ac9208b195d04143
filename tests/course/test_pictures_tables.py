"""A table that can be narrowed, with escaped cells and links; two texts compared."""

from collections import Counter
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from dlcourse import pictures
from dlcourse.pictures import difference

ROWS = [
    {"name": "b<b>", "size": 2, "note": "see https://example.org/x?a=1&b=2"},
    {"name": "a", "size": 10, "note": None},
    {"name": "c", "size": None, "note": "10_one 11_two"},
]


class Reader(HTMLParser):
    """Texts of the cells, and the addresses of the links."""

    def __init__(self, table):
        super().__init__()
        self.rows, self.links = [], []
        self.feed(table._repr_html_())

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


def test_table_shows_every_cell_with_markup_escaped():
    reader = Reader(pictures.table(ROWS))
    assert reader.rows[0] == ["name", "size", "note"]
    assert reader.rows[1] == ["b<b>", "2", "see https://example.org/x?a=1&b=2"]
    assert reader.rows[2] == ["a", "10", ""]


def test_where_keeps_the_rows_that_fulfil_all_conditions():
    table = pictures.table(ROWS)
    assert [row["name"] for row in table.where(name="a").rows] == ["a"]
    large = table.where(size=lambda size: size is not None and size > 1, name=lambda n: n != "a")
    assert [row["size"] for row in large.rows] == [2]
    assert len(table.where(name="none of them")) == 0


def test_links_go_to_notebooks_and_addresses_only():
    links = {"note": pictures.web_links}
    reader = Reader(pictures.table(ROWS, links=links))
    assert reader.links == ["https://example.org/x?a=1&b=2"]
    books = Reader(pictures.table(ROWS[2:], links={"note": pictures.notebook_links}))
    assert books.links == ["10_one.ipynb", "11_two.ipynb"]
    bad = {"note": lambda text: [("click", "javascript:alert(1)")]}
    assert Reader(pictures.table(ROWS[2:], links=bad)).links == ["#"]


TEXTS = st.lists(st.sampled_from("abcd"), max_size=12).map("\n".join)


@given(TEXTS, TEXTS)
def test_marked_lines_turn_one_text_into_the_other(before, after):
    lines = difference(before, after).lines
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    removed, added = (Counter(text for mark, text in lines if mark == wanted) for wanted in "-+")
    assert old - removed == new - added
    assert not removed - old
    assert not added - new


def test_common_lines_are_cut_and_markup_is_escaped():
    before = "\n".join("1234<6789")
    found = difference(before, before.replace("<", "five"))
    assert found.lines == (("…", ""), ("-", "<"), ("+", "five"), ("…", ""))
    assert "- &lt;" in found._repr_html_()
