"""The glossary: each term is in the lesson that it names."""

import json
import re

import pytest

from dlcourse import NOTEBOOKS, ROOT

LINES = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
ROWS = [re.split(r"\s*\|\s*", line)[1:4] for line in LINES if re.search(r"\| \d\d \|$", line)]


def plain(text):
    return re.sub(r"[\s_*-]+", " ", text).lower()


@pytest.mark.parametrize(("term", "lesson"), [(term, lesson) for term, _, lesson in ROWS])
def test_the_lesson_has_the_term(term, lesson):
    (path,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = plain(" ".join("".join(cell["source"]) for cell in cells))
    assert plain(term) in text
