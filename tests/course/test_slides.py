"""Decks: figures and numbers by cell id, grey boxes, faults that are named, pages that fit.

In a real browser keys reveal the answer, and the speaker's window follows.
"""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
from lab_in_browser import CHROMIUM, SHOTS, chromium

ROOT = Path(__file__).resolve().parents[2]
DECKS = sorted((ROOT / "slides").glob("[0-9]*.md"))
DECK = """# Trial
---
# Numbers\nTake {{07#numbers:2}} or $a_1 < b$.\n\n{{07#numbers}}\n\n{{07#table}}
---
# A curve
Question: Up or down?\n\n![a curve](07#curve) ![as SVG](07#curve:2)

Takeaway: It falls.

Note: Ask why.
"""


def code(name, *outputs, source="f()", **more):
    when = {"execution": {"iopub.execute_input": "2026-11-23T05:00:00.000000Z"}}
    cell = {"cell_type": "code", "id": name, "source": source, "outputs": outputs}
    return cell | {"metadata": when, "execution_count": 1} | more


def shown(kind, data):
    return {"output_type": "display_data", "data": {kind: data}}


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


PNG = shown("image/png", "AAAA\n")
FIGURE = shown("text/html", '<img alt="x" width="9" src="data:image/png;base64,BBBB"/>')
CURVE = code("curve", FIGURE, shown("image/svg+xml", "<svg/>"), PNG)
TABLE = code("table", shown("text/html", "<table><tr><td>7</td></tr></table>"))
NUMBERS = code("numbers", printed("step 1\rstep 2 of 2\nloss 0.5 < 1\n"))


def load(folder):
    """Load the builder, with lessons, runs and output in a folder of the test."""
    spec = importlib.util.spec_from_file_location("slides_build", ROOT / "slides" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LESSONS, module.RUNS = folder / "lessons", folder / "runs"
    module.OUTPUT = folder / "output"
    return module


@pytest.fixture
def build(tmp_path):
    module = load(tmp_path)
    for folder in (module.LESSONS, module.RUNS):
        write(folder, [NUMBERS, TABLE, CURVE])
    return module


def write(folder, cells, name="07_trial.ipynb"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"cells": cells}))


def made(build, tmp_path, deck=DECK, status=0):
    (tmp_path / "trial.md").write_text(deck)
    assert build.main([str(tmp_path / "trial.md"), "--no-pdf"]) == status
    page = build.OUTPUT / "trial.html"
    return page.read_text() if page.is_file() else None


def test_figures_and_numbers_are_those_of_the_named_cells(build, tmp_path):
    text = made(build, tmp_path)
    assert 'Take <span class="number">loss 0.5 &lt; 1</span> or <math' in text
    assert "<pre>step 2 of 2\nloss 0.5 &lt; 1</pre>" in text
    assert "<table><tr><td>7</td></tr></table>" in text
    assert '<img alt="a curve" src="data:image/png;base64,BBBB">' in text
    assert "data:image/svg+xml;base64,PHN2Zy8+" in text
    assert text.count("lesson 07, run of 2026-11-23") == 2
    parts = ("Up or", '<div class="body later">', "a curve", "It falls", "Ask why")
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)


GREY = {
    "has not run on this machine": None,
    "has changed since it ran": [code("numbers", source="g()"), TABLE, CURVE],
    "failed when it ran": [NUMBERS, TABLE, code("curve", {"output_type": "error"})],
    "failed when it ran on this machine": [NUMBERS, TABLE, code("curve", execution_count=None)],
}


@pytest.mark.parametrize(("why", "ran"), GREY.items())
def test_without_a_run_of_this_text_a_grey_box_has_the_command(build, tmp_path, capsys, why, ran):
    shutil.rmtree(build.RUNS)
    if ran:
        write(build.RUNS, ran)
    box = made(build, tmp_path).partition("Up or down?")[2]
    assert re.search(f'class="picture grey".*a curve.*{why}.*dlguide notebooks 07', box)
    assert "<img" not in box
    assert f"Lesson 07 {why}" in capsys.readouterr().out


def test_a_change_behind_the_cell_leaves_its_numbers(build, tmp_path):
    write(build.RUNS, [NUMBERS, code("table", source="g()"), CURVE])
    assert "<pre>step 2" in made(build, tmp_path)


FAULTS = {
    ("curve:2", "curv"): "3: lesson 07 has no code cell `curv`; the nearest id is `curve`",
    ("07#curve:2", "08#curve"): "3: there is no lesson 08",
    ("curve:2", "curve:4"): "3: `07#curve:4`: the cell has shown 3 pictures",
    ("numbers:2", "numbers:3"): "2: `{{07#numbers:3}}`: the cell has printed 2 lines",
    ("{{07#table}}", "{{table}}"): "2: `{{table}}` is not LESSON#CELL",
    ("# A curve", "A curve"): "3: the first line of a page is its headline",
}


@pytest.mark.parametrize(("change", "fault"), FAULTS.items())
def test_a_fault_is_named_and_nothing_is_written(build, tmp_path, capsys, change, fault):
    assert made(build, tmp_path, DECK.replace(*change), status=1) is None
    assert f"trial.md, page {fault}" in capsys.readouterr().err


def fabricate(build):
    """Make a run of our lessons, in which each cell printed nine lines and showed two pictures."""
    build.LESSONS = ROOT / "notebooks"
    left = (
        printed("some words and 3.14 numbers, as long as lines usually are there\n" * 9),
        PNG,
        PNG,
    )
    for path in build.LESSONS.glob("[0-9]*.ipynb"):
        cells = build.code_cells(build.LESSONS, path.name[:2])
        ran = [code(cell["id"], *left, source=cell["source"]) for cell in cells]
        write(build.RUNS, ran, path.name)


@pytest.mark.parametrize("deck", DECKS, ids=lambda deck: deck.stem)
def test_our_decks_name_cells_that_exist_and_need_no_network(tmp_path, deck):
    build = load(tmp_path)
    fabricate(build)
    text, missing = build.deck_html(deck)
    assert not missing
    assert not re.search(r"https?:|url\(|@import|(?:src|href)=\"(?!data:)", text)
    assert text.count('<section class="slide') == deck.read_text().count("\n---\n") + 1


# --- in a browser --------------------------------------------------------------------------------

# Whether the page that is shown is too full, or a part of it is outside or on the footer.
TOO_FULL = """() => {
    const page = document.querySelector(".slide.now"), content = page.querySelector(".content");
    const foot = page.querySelector("footer").getBoundingClientRect().top + 1;
    const boxes = [...content.querySelectorAll("*")].map((part) => part.getBoundingClientRect());
    return content.scrollHeight > content.clientHeight + 1 || page.scrollWidth > page.clientWidth
        || boxes.some((box) => box.bottom > foot || box.right > page.getBoundingClientRect().right);
}"""


@pytest.mark.long
@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: apt-get install chromium")
@pytest.mark.parametrize("runs", ["fabricated", "kept here"])
@pytest.mark.parametrize("deck", DECKS, ids=lambda deck: deck.stem)
def test_every_page_fits_and_the_speaker_follows(tmp_path, deck, runs):
    build = load(tmp_path)
    fabricate(build)
    if runs == "kept here":
        build.RUNS = ROOT / "build" / "notebooks"
    assert build.main([str(deck), "--pdf"]) == 0
    file = build.OUTPUT / f"{deck.stem}.html"
    pages = file.read_text().count("<section")
    assert len(re.findall(rb"/Type\s*/Page\b", file.with_suffix(".pdf").read_bytes())) == pages
    SHOTS.mkdir(parents=True, exist_ok=True)
    with chromium(CHROMIUM) as chrome:
        window = chrome.new_context(viewport={"width": 1280, "height": 720}).new_page()
        failed = []
        window.on("console", lambda message: failed.append(message.text))
        window.goto(file.as_uri())
        with window.expect_popup() as popup:
            window.keyboard.press("s")
        for number in range(1, pages + 1):
            popup.value.wait_for_selector(f"#page-{number}.now")
            while hidden := window.locator(".now .later.hidden").count():
                assert not window.locator(".now .later").last.is_visible()
                window.keyboard.press("ArrowRight")
                assert window.locator(".now .later.hidden").count() == hidden - 1
            assert not window.evaluate(TOO_FULL), f"page {number}"
            window.screenshot(path=SHOTS / f"{deck.stem}-{number:02}.png")
            window.keyboard.press("ArrowRight")
        assert popup.value.locator("#notes").inner_text().strip()
    assert failed == []
