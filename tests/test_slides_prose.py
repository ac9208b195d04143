"""dlguide.slides.prose and dlguide.slides.outputs: nothing is lost, cut in two or misread."""

from __future__ import annotations

import json
import re

import pytest

from dlguide import notebooks
from dlguide.slides import outputs, prose


def cells(kind="markdown"):
    for path in notebooks.find():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == kind:
                yield "".join(cell["source"])


def letters(text):
    return re.sub(r"\s+", "", text)


def test_blocks_hold_every_letter_of_every_notebook():
    for text in cells():
        joined = "".join("#" * each.level + each.source for each in prose.blocks(text))
        assert letters(joined) == letters(text)


def test_sentences_hold_every_letter_of_every_paragraph():
    for text in cells():
        for block in prose.blocks(text):
            if block.kind == "paragraph":
                assert " ".join(prose.sentences(block.source)) == " ".join(block.source.split())


def test_no_sentence_opens_what_another_one_closes():
    for text in cells():
        for block in prose.blocks(text):
            for each in prose.sentences(block.source) if block.kind == "paragraph" else ():
                plain = prose.FORMULA.sub("", each)
                assert plain.count("**") % 2 == 0, each
                assert plain.count("`") == each.count("$$") == 0, each


def test_every_kind_of_block_is_told_apart():
    text = (
        "# T\n\nWords\non two lines.\n\n- a\n- b\n\n1. one\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\nx = 1\n\ny = 2\n```\n\n$$a = b$$\n\n> said\n### Under it\nat once"
    )
    kinds = [(each.kind, each.level) for each in prose.blocks(text)]
    assert kinds == [
        ("heading", 1), ("paragraph", 0), ("list", 0), ("table", 0), ("fence", 0),
        ("formula", 0), ("quote", 0), ("heading", 3), ("paragraph", 0),
    ]  # fmt: skip
    assert prose.blocks(text)[4].source == "```python\nx = 1\n\ny = 2\n```"


@pytest.mark.parametrize(
    ("paragraph", "asked"),
    [
        ("Now. **Predict:** which one? And why? Run it.", "**Predict:** which one? And why?"),
        ("**Predict.** How many are there? More words.", "**Predict.** How many are there?"),
        ("Nothing is asked here.", ""),
        ("The predicted time is 3 s.", ""),
    ],
)
def test_question_begins_where_the_lesson_asks(paragraph, asked):
    assert prose.question(paragraph, 36) == asked


def test_shorten_takes_whole_sentences_and_one_in_any_case():
    assert prose.shorten("One two. Three four. Five.", 20) == "One two. Three four."
    assert prose.shorten("A sentence that is long. B.", 3) == "A sentence that is long."
    assert prose.shorten("", 3) == ""


def test_html_has_formulas_code_and_tables_and_no_link():
    html = prose.to_html("See [21](21_x.ipynb): `a_b * c_d` and $a_1 * b_1$ <b>x</b>.\n\n$$c = 1$$")
    assert "<a" not in html
    assert ">See 21:" in html
    assert "<code>a_b * c_d</code>" in html
    assert html.count("<math") == 2
    assert 'display="block"' in html
    assert "&lt;b&gt;" in html
    table = prose.to_html("| a | $b$ |\n|---|---|\n| 1 | `x` |")
    assert "<table>" in table
    assert "<math" in table
    assert "$" in prose.to_html("```sh\necho $HOME $PATH\n```")


def test_html_of_every_notebook_has_no_raw_table_formula_or_emphasis():
    for text in cells():
        html = prose.to_html(text)
        plain = re.sub(r"<pre>.*?</pre>|<code>.*?</code>|<math.*?</math>", "", html, flags=re.S)
        words = re.sub(r"<[^>]+>", "", plain)
        assert not re.search(r"^\s*\|.*\|\s*$", words, re.M), words
        assert "**" not in words
        assert "$" not in words.replace("\\$", ""), words


# --- outputs -----------------------------------------------------------------------------------


def ran(*left):
    return {"cell_type": "code", "source": "x", "outputs": list(left)}


def printed(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    kinds = {"html": "text/html", "plain": "text/plain", "png": "image/png", "svg": "image/svg+xml"}
    return {"output_type": "display_data", "data": {kinds[key]: data[key] for key in data}}


def test_text_is_what_a_person_saw():
    left = outputs.of(ran(printed("a \x1b[31mred\x1b[0m\n10 %\r50 %\r99 %\n"), printed("end\n\n")))
    assert left.text == "a red\n99 %\nend"
    assert outputs.of(ran(printed("warning", "stderr"))).text == ""
    assert outputs.of(ran(shown(plain="[1, 2]"))).text == "[1, 2]"


def test_pictures_keep_their_words_and_lose_their_size():
    html = '<img alt="a curve" width="650" src="data:image/png;base64,AAAA"/>'
    (picture,) = outputs.of(ran(shown(html=html, plain="<Figure>"))).pictures
    assert picture == '<img alt="a curve" src="data:image/png;base64,AAAA"/>'
    (png,) = outputs.of(ran(shown(png="AA\nAA", plain="<Figure>"))).pictures
    assert png == '<img alt="&lt;Figure&gt;" src="data:image/png;base64,AAAA"/>'
    (svg,) = outputs.of(ran(shown(svg="<svg/>", plain="drawn"))).pictures
    assert svg.startswith('<img alt="drawn" src="data:image/svg+xml;base64,')


@pytest.mark.parametrize(("width", "height"), [(300, 200), (1, 5000), (65536, 3)])
def test_aspect_is_read_from_the_picture_itself(width, height):
    import base64
    import io

    from PIL import Image

    data = io.BytesIO()
    Image.new("1", (width, height)).save(data, "PNG")
    text = base64.b64encode(data.getvalue()).decode()
    picture = f'<img alt="x" src="data:image/png;base64,{text}"/>'
    assert outputs.aspect(picture) == width / height
    assert outputs.aspect("<svg></svg>") == 0.0


def test_tables_and_errors_are_told_apart_and_scripts_dropped():
    left = outputs.of(ran(shown(html="<table><tr><td>1</td></tr></table><script>x</script>")))
    assert left.tables == ("<table><tr><td>1</td></tr></table>",)
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": []}
    assert outputs.of(ran(error)).error == "KeyError: 'a'"


def test_letters_of_a_block_fit_its_width_and_height():
    for text in ("x" * 104, "\n".join("ab" for _ in range(14)), "short"):
        html = outputs.block_html(text, "printed", 1160, 300)
        size = float(re.search(r"font-size:([\d.]+)px", html)[1])
        lines, columns = outputs.size_of(text)
        assert columns * 0.602 * size <= 1160
        assert lines * 1.3 * size <= 300
        assert size >= 14


def test_code_is_coloured_and_keeps_its_letters():
    source = 'def f(x):\n    return f"{x} < 3"  # why'
    html = outputs.code_html(source)
    assert 'class="k"' in html
    plain = re.sub(r"<[^>]+>", "", html)
    for sign, letter in (("&lt;", "<"), ("&quot;", '"'), ("&amp;", "&")):
        plain = plain.replace(sign, letter)
    assert plain == source
