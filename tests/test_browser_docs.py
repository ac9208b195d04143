"""The documentation in a real browser, from a file and offline: pages, reference, search."""

from __future__ import annotations

import importlib

import pytest
from lab_in_browser import CHROMIUM, SHOTS, chromium

pytest.importorskip("playwright", reason="Playwright drives the browser")
if not CHROMIUM:
    pytest.skip("there is no Chromium: apt-get install chromium", allow_module_level=True)

FEW = ["dlguide", "dlguide.errors", "dlguide.training", "dlguide.training.schedules"]
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All pages, and of the reference a few modules, which shows the same."""
    from test_docs_reference import build_docs

    importlib.import_module("dlguide.horovod")  # TensorFlow's warnings are not ours
    folder = tmp_path_factory.mktemp("docs") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_docs, "public_modules", lambda: FEW)
        build_docs.build(folder)
    return folder


@pytest.fixture(scope="module")
def window(site):
    outside, failed = [], []
    with chromium(CHROMIUM) as running:
        context = running.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        page = context.new_page()
        page.on("request", lambda request: outside.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        yield page
        context.close()
    assert [address for address in outside if not address.startswith("file:")] == []
    assert failed == []


def test_every_page_fits_and_shows_its_pictures(site, window):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(FEW) + 5
    for path in pages:
        window.goto(path.as_uri())
        assert window.evaluate(WIDE) <= 1, path
        missing = "() => [...document.images].filter(one => !one.naturalWidth).length"
        assert window.evaluate(missing) == 0, path
        assert window.locator("h1").count() >= 1, path


def test_search_finds_a_function_and_leads_to_it(site, window):
    window.goto((site / "dlguide.html").as_uri())
    window.get_by_role("searchbox").fill("warmup")
    found = window.locator("main a", has_text="warmup").first
    found.wait_for(timeout=20_000)
    SHOTS.mkdir(parents=True, exist_ok=True)
    window.screenshot(path=SHOTS / "docs_search.png")
    found.click()
    window.wait_for_url("**/training/schedules.html#warmup**")
    assert window.locator("#warmup").is_visible()


def test_contents_lead_from_page_to_reference_and_back(site, window):
    window.goto((site / "index.html").as_uri())
    window.get_by_role("link", name="API reference").first.click()
    window.wait_for_url("**/dlguide.html")
    inside = window.locator("section.inside a", has_text="training")
    inside.click()
    window.wait_for_url("**/dlguide/training.html")
    window.get_by_role("link", name="dlguide: pages").click()
    window.wait_for_url("**/index.html")
    assert window.get_by_role("link", name="Horovod for Keras 3").is_visible()
