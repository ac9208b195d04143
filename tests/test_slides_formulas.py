"""Formulas of dlguide.slides.formulas: every one in the notebooks is drawn, and as it was meant."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from dlguide import notebooks
from dlguide.slides import prose
from dlguide.slides.formulas import mathml


def tree(source, display=False):
    return ElementTree.fromstring(mathml(source, display))


def shape(source):
    """The elements of a formula as nested lists, its rows of one left out."""

    def nested(element):
        children = [nested(child) for child in element]
        if element.tag == "mrow" and len(children) == 1:
            return children[0]
        return [element.tag, *(children or [element.text])]

    return nested(next(iter(tree(source))))


def in_notebooks():
    found = set()
    for path in notebooks.find():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                text = re.sub(r"^```.*?^```", "", "".join(cell["source"]), flags=re.S | re.M)
                for match in prose.FORMULA.finditer(text):
                    found.add(match["display"] or match["inline"] or "")
    return sorted(found - {""})


def test_every_formula_of_the_notebooks_becomes_well_formed_mathml():
    formulas = in_notebooks()
    assert len(formulas) > 400
    for each in formulas:
        drawn = tree(each, display=True)
        assert drawn.tag == "math"
        assert drawn.get("alttext") == " ".join(each.split())


def test_no_word_of_latex_is_left_in_what_is_drawn():
    for each in in_notebooks():
        assert "\\" not in "".join(tree(each).itertext()), each


def test_an_argument_without_braces_is_one_sign():
    one, two = ["mn", "1"], ["mn", "2"]
    assert shape(r"\frac12") == ["mfrac", one, two]
    assert shape(r"\frac{1}{2}") == ["mfrac", one, two]
    assert shape(r"x^2") == ["msup", ["mi", "x"], two]
    assert shape(r"\sqrt\kappa") == ["msqrt", ["mi", "κ"]]
    assert shape(r"x^12") == ["mrow", ["msup", ["mi", "x"], one], two]


def test_scripts_stand_beside_letters_and_below_sums():
    assert shape("x_i^2") == ["msubsup", ["mi", "x"], ["mi", "i"], ["mn", "2"]]
    assert shape("x^2_i") == shape("x_i^2")
    assert shape(r"\sum_i^n")[0] == "munderover"
    assert shape(r"\max_c")[0] == "munder"
    assert shape(r"\underbrace{x}_{\text{a b}}")[0] == "munder"
    assert shape("f_d'")[0] == "msubsup"


def test_numbers_text_and_brackets_keep_together():
    assert shape("3.14") == ["mn", "3.14"]
    assert shape(r"\text{one  rank}") == ["mtext", "one\N{NO-BREAK SPACE}rank"]
    row = shape(r"\left(\frac{a}{b}\right]")
    assert [row[1][:2], row[3][:2]] == [["mo", "("], ["mo", "]"]]
    grown = tree(r"\Big( x \Big)").find(".//mo")
    assert grown.get("minsize") == "1.8em"


def test_a_binomial_is_a_fraction_without_its_line():
    fraction = tree(r"\binom{14}{k}").find(".//mfrac")
    assert fraction.get("linethickness") == "0"
    assert [each.tag for each in fraction] == ["mrow", "mrow"]


def test_a_matrix_has_its_rows_and_columns():
    table = tree(r"\begin{bmatrix} a & b \\ c & d \end{bmatrix}").find(".//mtable")
    cells = [["".join(cell.itertext()) for cell in row] for row in table]
    assert cells == [["a", "b"], ["c", "d"]]


def test_signs_of_html_are_kept_as_signs():
    assert "".join(tree("a < b & c").itertext()) == "a<b&c"
    assert tree('a < "b"').get("alttext") == 'a < "b"'


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (r"\unheard{x}", r"which has no \unheard"),
        (r"\frac{a", "must go on with }"),
        ("a}", "every brace"),
        (r"\text{never closed", "every brace closed"),
        (r"\begin{align} a \end{align}", "have one of matrix, bmatrix, pmatrix"),
        (r"\left\alpha x \right)", r"have a bracket in place of \alpha"),
        (r"\frac{a}", "must go on with a sign"),
    ],
)
def test_what_is_not_known_is_told(source, said):
    with pytest.raises(ValueError, match=r"`formula` must") as told:
        mathml(source)
    assert said in str(told.value)
