"""Decks in a real browser: pages fit, keys reveal the answer, the speaker's window follows."""

import re

import pytest
from lab_in_browser import CHROMIUM, SHOTS, chromium
from test_slides import DECKS, ROOT, fabricate, load

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
