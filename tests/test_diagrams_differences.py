"""Two programs as one marked text: what is marked rebuilds both of them.

Tests dlguide.diagrams.differences.
"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlguide.diagrams import difference

TEXTS = st.lists(st.sampled_from("abcd"), max_size=12).map("\n".join)


def side(found, marks):
    return [text for mark, text in found.lines if mark in marks]


@given(TEXTS, TEXTS)
def test_lines_rebuild_both_texts(before, after):
    assume(before.splitlines() != after.splitlines())
    found = difference(before, after, around=100)
    assert side(found, " -") == before.splitlines()
    assert side(found, " +") == after.splitlines()


@given(TEXTS, TEXTS)
def test_fewer_lines_around_change_no_mark(before, after):
    whole, short = (difference(before, after, around=count) for count in (100, 0))
    for mark in "-+":
        assert side(whole, mark) == side(short, mark)
    assert side(short, " ") == []


def test_lines_around_a_change_are_kept_and_the_rest_is_cut():
    before = "\n".join("123456789")
    found = difference(before, before.replace("5", "five"), around=2)
    assert str(found).splitlines() == ["…", "  3", "  4", "- 5", "+ five", "  6", "  7", "…"]


def test_equal_texts_show_one_cut():
    assert difference("a\nb", "a\nb").lines == (("…", ""),)
    assert difference("", "").lines == ()


def test_count_leaves_out_empty_lines_and_comments():
    found = difference("a", "a\n\n# said\nb\n    # said\n  c")
    assert (found.count("+"), found.count("-")) == (2, 0)


def test_html_escapes_the_text_and_shows_the_marks():
    shown = difference("a < b", "a <b>")._repr_html_()
    assert "- a &lt; b" in shown
    assert "+ a &lt;b&gt;" in shown
    assert "<b>" not in shown


def test_negative_count_is_refused():
    with pytest.raises(ValueError, match="`around` must be"):
        difference("a", "b", around=-1)
