"""Slides in a real browser: every page fits, nothing is missing, no request leaves the page."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys

import pytest
from lab_in_browser import SHOTS, chromium

from dlguide.slides import browser, lesson, page, stanzas
from dlguide.slides.outputs import block_html

pytest.importorskip("playwright", reason="Playwright drives the browser")
if not browser.find():
    pytest.skip("there is no Chromium: apt-get install chromium", allow_module_level=True)

# The pages on which something sticks out, or letters had to become smaller than half.
UNFIT = """() => [...document.querySelectorAll(".slide")].filter(page => {
    const hidden = !page.classList.contains("now");
    page.classList.add("now");
    const edge = page.getBoundingClientRect();
    const scale = edge.width / 1280;
    const foot = page.querySelector("footer").getBoundingClientRect().top;
    const out = [...page.querySelectorAll("h2, .question, .body, .body *, .finding")].some(part => {
        const box = part.getBoundingClientRect();
        const seen = box.width > 0 && box.height > 0 && !part.closest("mtext, mspace, mphantom");
        return seen && (box.right > edge.right + 1 || box.bottom > foot + 4 * scale + 1);
    });
    const over = page.querySelector(".body");
    const wide = over.scrollWidth > over.clientWidth + 1;
    const high = over.scrollHeight > over.clientHeight + 1;
    if (hidden) { page.classList.remove("now"); }
    return out || high || wide || parseFloat(page.dataset.shrunk || "1") < 0.6;
}).map(page => page.id + ": " + page.querySelector("h2").textContent)"""
MISSING = (
    """() => [...document.images].filter(each => each.complete && !each.naturalWidth).length"""
)


@pytest.fixture(scope="module")
def chrome():
    with chromium(browser.find()) as running:
        yield running


@pytest.fixture
def opened(chrome, tmp_path):
    """Give a function that opens a deck's text as a file; no request may leave it."""
    windows, outside, failed = [], [], []

    def open_deck(text, width=1280, height=720):
        path = tmp_path / "deck.html"
        path.write_text(text, encoding="utf-8")
        context = chrome.new_context(viewport={"width": width, "height": height}, offline=True)
        window = context.new_page()
        window.on("request", lambda request: outside.append(request.url))
        window.on("pageerror", lambda error: failed.append(str(error)))
        window.on("console", lambda said: failed.append(said.text) if said.type == "error" else "")
        window.goto(path.as_uri())
        window.wait_for_selector("html[data-ready]", state="attached")
        windows.append(context)
        return window

    yield open_deck
    for context in windows:
        context.close()
    assert [url for url in outside if not url.startswith(("data:", "file:"))] == []
    assert len([url for url in outside if url.startswith("file:")]) <= 2 * len(windows)
    assert failed == []


def picture(width, height):
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(data, "PNG")
    text = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="a red field" src="data:image/png;base64,{text}"/>'


def items(text, count):
    return f"<li>{text}</li>" * count


def trial():
    """A deck with the most that the rule lets onto each kind of page."""
    words = "Each of these sentences has about as many letters as it may. " * 4
    wide, high = picture(1600, 200), picture(300, 900)
    both = f'<div class="pictures"><div class="picture">{wide}</div>'
    both += f'<div class="picture">{high}</div></div>'
    tall = f'<div class="pictures"><div class="picture">{high}</div></div>'
    row = "".join(f"<td>{'cell ' * 5}</td>" for _ in range(3))
    table = f"<table>{f'<tr>{row}</tr>' * 10}</table>"
    printed = "\n".join("x" * 104 for _ in range(14))
    return [
        stanzas.Slide("figure", "A figure", "Section", words, both, words, "<p>note one</p>"),
        stanzas.Slide("figure tall", "Tall", "Section", words, tall, words, "<p>note</p>"),
        stanzas.Slide("numbers", "Numbers", "Section", words,
                      block_html(printed, "printed", 1160, 420), words, "<p>note two</p>"),
        stanzas.Slide("table", "A table", "", "", table, words, "<p>note three</p>"),
        stanzas.Slide("points", "Points " * 12, body=f"<ul>{items(words[:120], 5)}</ul>"),
        stanzas.Slide("summary", "Summary", body=f"<ul>{items(words[:150], 8)}</ul>"),
    ]  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080), (800, 800)])
def test_the_fullest_pages_fit_any_window(opened, width, height):
    window = opened(page.deck("Trial", [("20 Trial", trial())], []), width, height)
    assert window.evaluate(UNFIT) == []
    assert window.evaluate(MISSING) == 0
    box = window.locator("#page-1").bounding_box()
    assert box["width"] <= width + 1
    assert box["height"] <= height + 1


def test_the_check_of_fit_bites(opened):
    too_much = [
        stanzas.Slide("table", "T", body="<table>" + "<tr><td>x</td></tr>" * 60 + "</table>")
    ]
    wide = [stanzas.Slide("table", "W", body=f"<p style='white-space:nowrap'>{'word ' * 200}</p>")]
    for slides in (too_much, wide):
        window = opened(page.deck("Trial", [("20 Trial", slides)], []))
        assert len(window.evaluate(UNFIT)) == 1


def at(window):
    return window.locator(".slide.now footer span").last.inner_text()


def test_keys_turn_pages_and_the_answer_comes_second(opened):
    window = opened(page.deck("Trial", [("20 Trial", trial())], []))
    assert at(window) == "1 / 7"
    window.keyboard.press("ArrowRight")
    assert at(window) == "2 / 7"
    assert window.locator(".slide.now .question").is_visible()
    assert not window.locator(".slide.now img").first.is_visible()
    window.keyboard.press("Space")
    assert window.locator(".slide.now img").first.is_visible()
    assert not window.locator(".slide.now .finding").is_visible()
    window.keyboard.press("Space")
    assert window.locator(".slide.now .finding").is_visible()
    window.keyboard.press("Space")
    assert at(window) == "3 / 7"
    window.keyboard.press("ArrowLeft")
    assert at(window) == "2 / 7"
    assert window.locator(".slide.now .finding").is_visible()
    window.keyboard.press("End")
    assert at(window) == "7 / 7"
    window.keyboard.press("ArrowRight")
    assert at(window) == "7 / 7"
    window.keyboard.press("Home")
    window.locator("a", has_text="20 Trial").click()
    assert at(window) == "2 / 7"
    window.mouse.click(100, 400)
    assert at(window) == "1 / 7"


def test_notes_show_on_a_key_and_the_speaker_s_window_follows(opened):
    window = opened(page.deck("Trial", [("20 Trial", trial())], []))
    window.keyboard.press("ArrowRight")
    assert not window.get_by_text("note one").first.is_visible()
    window.keyboard.press("n")
    assert window.locator("#notes").get_by_text("note one").is_visible()
    with window.expect_popup() as popup:
        window.keyboard.press("s")
    speaker = popup.value
    speaker.wait_for_selector("html[data-ready]", state="attached")
    assert speaker.locator("#notes").get_by_text("note one").is_visible()
    for _ in range(6):
        window.keyboard.press("ArrowRight")
    speaker.locator("#notes").get_by_text("note two").wait_for()
    for _ in range(3):
        speaker.keyboard.press("ArrowRight")
    window.wait_for_selector("#page-5.now")
    assert window.locator("#notes").get_by_text("note three").is_visible()


def test_without_javascript_all_pages_stand_below_each_other(chrome, tmp_path):
    path = tmp_path / "deck.html"
    path.write_text(page.deck("Trial", [("20 Trial", trial())], []), encoding="utf-8")
    context = chrome.new_context(java_script_enabled=False)
    window = context.new_page()
    window.goto(path.as_uri())
    assert window.locator(".slide:visible").count() == 7
    assert window.locator(".finding:visible").count() == 4
    context.close()


def test_pdf_has_one_page_a_slide_in_the_slides_size(tmp_path):
    path = tmp_path / "deck.html"
    path.write_text(page.deck("Trial", [("20 Trial", trial())], []), encoding="utf-8")
    browser.print_pdf(path, tmp_path / "deck.pdf")
    data = (tmp_path / "deck.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) == 7
    sizes = {
        tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox\s*\[([^]]+)\]", data)
    }
    # 1280 x 720 px are 960 x 540 points of 1/72 inch
    assert all(abs(w - 960) < 1.5 and abs(h - 540) < 1.5 for _, _, w, h in sizes)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["deck.html", "deck.pdf"]


def test_decks_of_this_machine_s_runs_fit(opened):
    from dlguide import notebooks
    from dlguide.slides import decks, runs

    made = []
    for part in decks.PARTS:
        for path in decks.lessons(part):
            if not runs.lack(path):
                ran = runs.read(path)
                made.append((path, lesson.heading(ran.notebook), lesson.slides(ran.notebook, "")))
    if not made:
        pytest.skip(f"no notebook has a run in {notebooks.KEPT}: `dlguide notebooks`")
    SHOTS.mkdir(parents=True, exist_ok=True)
    for path, heading, slides in made:
        window = opened(page.deck(heading, [(heading, slides)], []))
        assert window.evaluate(UNFIT) == [], path.name
        assert window.evaluate(MISSING) == 0, path.name
        window.screenshot(path=SHOTS / f"slides-{path.stem}.png")


def test_the_module_of_slides_loads_nothing_heavy():
    heavy = ("nbformat", "mistune", "pygments", "playwright")
    code = f"import sys, dlguide.slides; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
