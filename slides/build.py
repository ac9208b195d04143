"""Build the decks of this folder with figures and numbers from the lessons' last run here.

    python slides/build.py [DECK ...] [--pdf | --no-pdf]

Writes build/slides/NAME.html, which needs no network, and NAME.pdf where Chromium is installed.
What a deck may contain: slides/README.md.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template

import mistune
from latex2mathml.converter import convert

HERE = Path(__file__).resolve().parent
LESSONS, RUNS = HERE.parent / "notebooks", HERE.parent / "build" / "notebooks"
OUTPUT = HERE.parent / "build" / "slides"
REFERENCE = re.compile(r"(\d\d)#([\w-]+)(?::(\d+)(?:-(\d+))?)?")
PRINTED = re.compile(r"(?P<alone><p>)?\ue000(?P<number>\d+)\ue001(?(alone)</p>)")


class DeckError(Exception):
    """A deck that cannot be built; one line for each fault."""


def code_cells(folder: Path, lesson: str) -> list[dict]:
    """Read the code cells of a lesson, or of its run; none where the file is not there."""
    for path in folder.glob(f"{lesson}_*.ipynb"):
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        except ValueError:
            raise DeckError(f"{path} is damaged: execute the lesson again") from None
        return [cell for cell in cells if cell["cell_type"] == "code"]
    return []


def look_up(lesson: str, name: str) -> tuple[dict, str]:
    """Find a cell of the last run, and why it cannot be shown; empty if it can."""
    written, ran = code_cells(LESSONS, lesson), code_cells(RUNS, lesson)
    names = [cell["id"] for cell in written]
    if not names:
        raise DeckError(f"there is no lesson {lesson}")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise DeckError(f"lesson {lesson} has no code cell `{name}`; the nearest id is `{near}`")
    until = names.index(name) + 1
    if not ran:
        return {}, f"Lesson {lesson} has not run on this machine."
    before, now = (["".join(c["source"]) for c in cells[:until]] for cells in (ran, written))
    if before != now:
        return {}, f"Lesson {lesson} has changed since it ran on this machine."
    cell = ran[until - 1]
    errors = any(each["output_type"] == "error" for each in cell["outputs"])
    if errors or cell["execution_count"] is None:
        return {}, f"Lesson {lesson} failed when it ran on this machine."
    return cell, ""


def pictures(cell: dict) -> list[str]:
    """Collect the pictures that a cell has shown, each as an address that holds its data."""
    found = []
    for data in (output.get("data", {}) for output in cell["outputs"]):
        in_page = re.findall(r'src="(data:image/[^"]+)"', "".join(data.get("text/html", "")))
        svg, png = "".join(data.get("image/svg+xml", "")), "".join(data.get("image/png", ""))
        if in_page:
            found += in_page
        elif svg:
            found.append(f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}")
        elif png:
            found.append("data:image/png;base64," + re.sub(r"\s", "", png))
    return found


def lines_of(cell: dict) -> list[str]:
    """Return the lines that a cell printed, as a terminal would show them; stderr is ignored."""
    streams = [each for each in cell["outputs"] if each.get("name") == "stdout"]
    text = re.sub(r"\x1b\[[\d;?]*\w", "", "".join("".join(each["text"]) for each in streams))
    return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.strip("\n").split("\n")]


class Page(mistune.HTMLRenderer):
    """One page; `used` and `missing` are the lessons that it takes results from."""

    def __init__(self) -> None:
        super().__init__(escape=False)
        self.used, self.missing, self.printed = {}, {}, []

    def take(self, lesson: str, name: str) -> tuple[dict, str]:
        cell, why = look_up(lesson, name)
        if why:
            self.missing[lesson] = why
        else:
            self.used[lesson] = cell["metadata"]["execution"]["iopub.execute_input"][:10]
        return cell, why

    def grey(self, lesson: str, why: str, alt: str = "") -> str:
        kind, alt = ("picture grey", f"<em>{alt}</em><br>") if alt else ("grey", "")
        command = f"<code>dlguide notebooks {lesson}</code>"
        return f'<span class="{kind}"><span>{alt}{why} {command}</span></span>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        match = REFERENCE.fullmatch(url)
        if not match or match[4]:
            raise DeckError(f"`![...]({url})` is not a figure: write LESSON#CELL or LESSON#CELL:2")
        cell, why = self.take(match[1], match[2])
        if why:
            return self.grey(match[1], why, text)
        shown, number = pictures(cell), int(match[3] or 1)
        if not 1 <= number <= len(shown):
            raise DeckError(f"`{url}`: the cell has shown {len(shown)} pictures")
        return f'<span class="picture"><img alt="{text}" src="{shown[number - 1]}"></span>'

    def hold(self, match: re.Match[str]) -> str:
        """Keep what a cell printed out of the Markdown, in which it has no meaning."""
        found = REFERENCE.fullmatch(match[1])
        if not found:
            raise DeckError(f"`{match[0]}` is not LESSON#CELL, LESSON#CELL:2 or LESSON#CELL:2-4")
        self.printed.append(found)
        return f"\ue000{len(self.printed) - 1}\ue001"

    def put(self, match: re.Match[str]) -> str:
        found = self.printed[int(match["number"])]
        cell, why = self.take(found[1], found[2])
        if why:
            return self.grey(found[1], why)
        markup = "".join("".join(o.get("data", {}).get("text/html", "")) for o in cell["outputs"])
        if match["alone"] and not found[3] and "<table" in markup:
            return re.sub(r"(?is)<script\b.*?</script>|<style\b.*?</style>", "", markup)
        lines = lines_of(cell)
        first, last = int(found[3] or 1), int(found[4] or found[3] or len(lines))
        if not 1 <= first <= last <= len(lines):
            raise DeckError(f"`{{{{{found[0]}}}}}`: the cell has printed {len(lines)} lines")
        text = html.escape("\n".join(lines[first - 1 : last]))
        return f"<pre>{text}</pre>" if match["alone"] else f'<span class="number">{text}</span>'

    def inline_math(self, text: str) -> str:
        return re.sub(r' xmlns="[^"]*"', "", convert(text))

    def block_math(self, text: str) -> str:
        return re.sub(r' xmlns="[^"]*"', "", convert(text, display="block"))

    def fill(self, text: str) -> str:
        """Turn Markdown into HTML, with figures, numbers and formulas in it."""
        markdown = mistune.create_markdown(renderer=self, plugins=["table", "math"])
        return PRINTED.sub(self.put, str(markdown(re.sub(r"\{\{(.*?)\}\}", self.hold, text))))


def page_html(page: Page, text: str, title: str, place: str) -> str:
    """Build one page: headline, body, question, answer, takeaway, notes."""
    head, *labelled = re.split(r"^(Question|Takeaway|Note):\s", text.strip(), flags=re.M)
    headline, _, rest = head.partition("\n")
    if not headline.startswith("# "):
        raise DeckError("the first line of a page is its headline, `# ...`")
    blocks, notes, later = [("body", rest)], "", ""
    for label, words in zip(labelled[::2], labelled[1::2], strict=True):
        if label == "Note":
            notes += page.fill(words)
            continue
        first, _, rest = words.partition("\n\n")
        blocks.append((f"{label.lower()}{later}", first))
        later = " later" if label == "Question" else later
        blocks.append((f"body{later}", rest))
    divisions = [f'<div class="{name}">{page.fill(part)}</div>' for name, part in blocks if part]
    kind = " beside" if headline.endswith(" {beside}") else ""
    headline = page.fill(headline[2:].removesuffix(" {beside}"))
    runs = [f"lesson {lesson}, run of {day}" for lesson, day in sorted(page.used.items())]
    return f"""<section class="slide{kind}" id="page-{place.partition(" ")[0]}">
<h2>{re.sub("</?p>", "", headline).strip()}</h2>
<div class="content">{"".join(divisions)}</div>
<footer><span>{title}</span><span>{"; ".join(runs)}</span><span>{place}</span></footer>
<aside class="notes">{notes}</aside>
</section>
"""


def deck_html(deck: Path) -> tuple[str, dict[str, str]]:
    """Build all pages of a deck; the error names every fault with its page."""
    texts = re.split(r"^---$", deck.read_text(encoding="utf-8"), flags=re.M)
    title = html.escape(texts[0].strip().partition("\n")[0].removeprefix("# "))
    pages, missing, faults = "", {}, []
    for number, text in enumerate(texts, 1):
        try:
            pages += page_html(page := Page(), text, title, f"{number} / {len(texts)}")
            missing |= page.missing
        except DeckError as error:
            faults.append(f"{deck.name}, page {number}: {error}")
    if faults:
        raise DeckError("\n".join(faults))
    frame, style, script = ((HERE / f"deck.{kind}").read_text() for kind in ("html", "css", "js"))
    filled = Template(frame).substitute(title=title, style=style, pages=pages, script=script)
    return filled, missing


def print_pdf(browser: str, page: Path, pdf: Path) -> None:
    """Print a deck with Chromium, one page of it on one page of the PDF."""
    pdf.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="slides-") as profile:
        command = [browser, "--headless=new", "--disable-gpu", "--no-pdf-header-footer"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # which refuses to work for root
        command += [f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if not pdf.is_file():
        raise DeckError(f"{browser} wrote no PDF:\n{done.stderr[-500:]}")


def main(arguments: list[str] | None = None) -> int:
    """Build decks and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("decks", nargs="*", metavar="DECK", help="a name or a file; default: all")
    parser.add_argument("--pdf", action=argparse.BooleanOptionalAction, help="default: if possible")
    options = parser.parse_args(arguments)
    known = {path.stem: path for path in sorted(HERE.glob("[0-9]*.md"))}
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), "")
    if options.pdf is not False and not browser:
        print("No PDF: there is no Chromium (`sudo apt-get install chromium`).", file=sys.stderr)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    status = int(bool(options.pdf and not browser))
    for name in options.decks or known:
        deck = known.get(name, Path(name))
        page = OUTPUT / f"{deck.stem}.html"
        try:
            if not deck.is_file():
                raise DeckError(f"there is no deck `{name}`; there are {', '.join(known)}")
            text, missing = deck_html(deck)
            page.write_text(text, encoding="utf-8")
            print(page, *missing.values(), sep="\n    ")
            if browser and options.pdf is not False:
                print_pdf(browser, page, page.with_suffix(".pdf"))
                print(page.with_suffix(".pdf"))
        except DeckError as error:
            print(error, file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
