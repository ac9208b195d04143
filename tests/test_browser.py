"""JupyterLab in a real browser: what a learner sees, clicks and waits for.

A page that draws nothing passes every other test. Screenshots are kept under build/browser.
"""

from __future__ import annotations

import json
import re
import shutil
import time

import nbformat
import pytest
from lab_in_browser import (
    CHROMIUM,
    PANEL,
    RED,
    SHOTS,
    chromium,
    idle,
    lab,
    menu,
    open_notebook,
    prompts,
    wait_until_run,
    words,
)
from lanes import long

from dlcourse import NOTEBOOKS, execution

pytest.importorskip("playwright", reason="Playwright drives the browser")
if not CHROMIUM:
    pytest.skip("there is no Chromium: apt-get install chromium", allow_module_level=True)

LESSONS = [path for path in execution.find() if path.parent.name != "answers"]
# One with many formulas, and one with tables and figures.
SAMPLE = ("20", "83")
OUTPUT = f"{PANEL} .jp-OutputArea-output"
# A progress line of a training, which is drawn over until the next cell.
PROGRESS = re.compile(r"epoch \d+ of \d+")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """(lab, browser) on a copy of all notebooks, so that nothing can change those of the course."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    shutil.copytree(NOTEBOOKS, folder)
    nbformat.write(deadlock(), folder / "deadlock.ipynb")
    SHOTS.mkdir(parents=True, exist_ok=True)
    with lab(folder, home) as server, chromium(CHROMIUM) as chrome:
        yield server, chrome


@pytest.fixture
def page(running):
    """A window, and afterwards: no request has left the machine, no script has failed."""
    _, chrome = running
    window = chrome.new_page(viewport={"width": 1280, "height": 900})
    outside, failed = [], []
    window.on("request", lambda request: outside.append(request.url))
    window.on("pageerror", lambda error: failed.append(str(error)))
    yield window
    window.close()
    local = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
    assert [url for url in outside if not url.startswith(local)] == []
    assert failed == []


def deadlock():
    """Notebook 01 up to its own cluster, and ranks that wait for each other and look busy.

    The deadlock of the lesson itself ends after three seconds, and a person must be quick to
    interrupt it. This one asks again and again, which the course's watchdog takes for work.
    """
    lesson = nbformat.read(NOTEBOOKS / "01_hello_ranks.ipynb", 4)
    first = lesson.cells[:5]
    waits = """def both_wait():
    import time

    from mpi4py import MPI

    comm, other = MPI.COMM_WORLD, 1 - MPI.COMM_WORLD.rank
    print("waiting")
    while not comm.iprobe(source=other):
        time.sleep(0.05)


cluster.run(both_wait)"""
    after = 'cluster.run(lambda: "again")'
    more = [nbformat.v4.new_code_cell(source) for source in (waits, after)]
    return nbformat.v4.new_notebook(cells=[*first, *more], metadata=lesson.metadata)


def cells_of(path):
    return len(json.loads(path.read_text(encoding="utf-8"))["cells"])


def gone(server, pattern, timeout_s=20.0):
    """What is left after a while of the lab's processes whose command has the pattern."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [line for line in words(server.processes()) if re.search(pattern, line)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def accept(page):
    """Click the dialog's own proposal."""
    page.locator(".jp-Dialog button.jp-mod-accept").click()


def run_cell(page, index):
    """Click into a code cell and press the keys that run it."""
    page.locator(f"{PANEL} .jp-Cell").nth(index).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")


RANKS = r"ipyparallel|mpiexec|hydra|watchdog"
KERNELS = r"ipykernel_launcher"


@pytest.mark.timeout(400)
def test_start_here_runs_from_the_menu_with_progress_and_figure_and_leaves_nothing(running, page):
    server, _ = running
    path = LESSONS[0]
    open_notebook(page, server, path.name, cells_of(path))
    # The line of progress is drawn over within a second: the page itself remembers it.
    page.evaluate(
        """() => {
            window.seen = new Set();
            new MutationObserver(() => {
                for (const each of document.querySelectorAll(".jp-OutputArea-output pre")) {
                    for (const line of each.textContent.split("\\n")) { window.seen.add(line); }
                }
            }).observe(document.body, {childList: true, subtree: true, characterData: true});
        }"""
    )
    menu(page, "Run", "Run All Cells")
    wait_until_run(page, 240)
    page.screenshot(path=SHOTS / "00_run.png")
    assert page.locator(RED).count() == 0, page.locator(RED).all_inner_texts()
    assert sum(bool(re.match(r"\[\d+\]", each)) for each in prompts(page)) >= 21
    seen = page.evaluate("() => [...window.seen]")
    assert [line for line in seen if PROGRESS.search(line)], seen[-40:]
    assert {f"[{rank}] hello from process" for rank in (0, 1)} <= {line[:22] for line in seen}
    figures = page.locator(f"{OUTPUT} img")
    assert figures.count() >= 1
    assert page.evaluate(BROKEN) == []
    assert gone(server, RANKS) == []  # its last cell stops them
    menu(page, "File", "Close and Shut Down Notebook…")
    accept(page)
    assert gone(server, KERNELS) == []


@pytest.mark.timeout(300)
def test_a_deadlock_is_interrupted_from_the_toolbar_and_ranks_come_back(running, page):
    server, _ = running
    open_notebook(page, server, "deadlock.ipynb", 7)
    page.locator(f"{PANEL} .jp-Cell").nth(5).click()
    menu(page, "Run", "Run All Above Selected Cell")
    page.wait_for_function("() => document.body.innerText.includes('Cluster of 2 ranks')",
                           timeout=90_000)  # fmt: skip
    idle(page)
    run_cell(page, 5)
    for rank in (0, 1):
        page.get_by_text(f"[{rank}] waiting").wait_for(timeout=30_000)
    page.locator(f'{PANEL} [data-command="notebook:interrupt-kernel"]').first.click()
    page.wait_for_selector(RED, timeout=30_000)
    page.screenshot(path=SHOTS / "01_interrupted.png")
    assert "KeyboardInterrupt: The ranks are free again." in page.locator(RED).inner_text()
    idle(page)
    run_cell(page, 6)
    page.get_by_text("['again', 'again']").wait_for(timeout=90_000)
    assert gone(server, "ipyparallel.engine", 0) != []  # new ranks are at work
    menu(page, "Kernel", "Restart Kernel…")
    accept(page)
    assert gone(server, RANKS) == []
    idle(page)
    assert gone(server, KERNELS, 0) != []
    menu(page, "File", "Close and Shut Down Notebook…")
    accept(page)
    assert gone(server, KERNELS) == []


BROKEN = f"""() => [...document.querySelectorAll("{PANEL} img")]
    .filter(each => each.complete && each.naturalWidth === 0).map(each => each.outerHTML)"""
# What a reader must never see in prose: Markdown and formulas that were not understood.
RAW = f"""() => [...document.querySelectorAll("{PANEL} .jp-MarkdownOutput")].map(each => {{
    const copy = each.cloneNode(true);
    copy.querySelectorAll("pre, code, mjx-container").forEach(part => part.remove());
    return copy.textContent;
}}).filter(text => /^\\s*\\|.*\\|\\s*$/m.test(text) || /\\*\\*|\\$|\\\\[a-z]{{3}}/.test(text))"""
# Where prose, a table or a formula goes beyond its cell; formulas for screen readers are unseen.
WIDE = f"""() => [...document.querySelectorAll("{PANEL} .jp-MarkdownOutput")].filter(each => {{
    const edge = each.getBoundingClientRect().right + 2;
    const parts = each.querySelectorAll("p, li, table, pre, img, mjx-math");
    return [...parts].some(part => part.getBoundingClientRect().right > edge);
}}).map(each => each.textContent)"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [each for path in LESSONS for each in ([path] if path.name[:2] in SAMPLE else long(path))],
    ids=lambda path: path.stem,
)
def test_notebook_is_drawn_without_errors(running, page, path):
    server, _ = running
    open_notebook(page, server, path.name, cells_of(path))
    page.wait_for_function(
        f"""() => ![...document.querySelectorAll("{PANEL} .jp-MarkdownCell")]
            .some(each => !each.querySelector(".jp-MarkdownOutput")?.textContent.trim())"""
    )
    formulas = "$" in path.read_text(encoding="utf-8")
    if formulas and page.evaluate("() => /\\$[^$]+\\$/.test(document.body.innerText)"):
        page.wait_for_selector(f"{PANEL} mjx-container", timeout=30_000)
        page.wait_for_timeout(500)
    for number in range(3):
        page.evaluate(SCROLL, number / 2)
        page.wait_for_timeout(150)
        page.screenshot(path=SHOTS / f"{path.stem}-{number + 1}.png")
    assert page.locator(f"{PANEL} mjx-merror, {PANEL} [data-mjx-error]").count() == 0
    assert page.evaluate(RAW) == []
    assert page.evaluate(BROKEN) == []
    assert page.evaluate(WIDE) == []
    menu(page, "File", "Close and Shut Down Notebook…")
    accept(page)


SCROLL = f"""share => {{
    const window = document.querySelector("{PANEL} .jp-WindowedPanel-outer");
    window.scrollTop = share * (window.scrollHeight - window.clientHeight);
}}"""
