"""The API reference: complete, offline, without warnings, and its docstrings rendered as meant."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 500  # on a machine with nothing else to do half a minute
pytestmark = pytest.mark.timeout(600)
SPEC = importlib.util.spec_from_file_location("build_docs", ROOT / "docs" / "build.py")
build_docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(build_docs)
PUBLIC = build_docs.public_modules()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "docs/build.py", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    return folder


class Page(HTMLParser):
    """The ids, links and loaded things of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("script", "img", "link", "iframe", "source"):
            self.loaded += [given[name] for name in ("src", "href") if given.get(name)]


@pytest.fixture(scope="module")
def pages(site):
    return {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}


# --- complete ----------------------------------------------------------------------------------


def public_names(path):
    """Names that a module's text makes public: its `__all__`, or what it defines itself."""
    tree = ast.parse(path.read_text())
    listed = build_docs._all_of(path)
    if listed is not None:
        return set(listed)
    kinds = ast.FunctionDef | ast.ClassDef
    return {
        node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")
    }


def test_every_public_name_has_an_entry(site, pages):
    files = build_docs.module_files()
    missing = []
    for name in PUBLIC:
        page = pages[(site / f"{name.replace('.', '/')}.html").resolve()]
        for public in public_names(files[name]):
            if public not in page.ids and f"{name}.{public}" not in files:
                missing.append(f"{name}.{public}")
    assert missing == []


def test_what_lessons_and_pages_import_is_public():
    public = set(PUBLIC)
    for name in ("machine.threads", "training.schedules", "data.input_pipeline", "cluster.batch"):
        assert f"dlguide.{name}" in public
    assert not [name for name in public if build_docs.LEFT_OUT.match(name)]
    imported = set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            imported |= set(
                re.findall(r"^from (dlguide[\w.]*) import", "".join(cell["source"]), re.M)
            )
    left_out = {name for name in imported if build_docs.LEFT_OUT.match(name)}
    assert imported - left_out <= public


# --- offline -----------------------------------------------------------------------------------


def test_links_inside_lead_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_relative_to(site):
                # to a file of the repository, from build/docs
                target = (ROOT / "build" / "docs" / os.path.relpath(target, site)).resolve()
                found = target.exists()
            else:
                found = target.exists() and (
                    not parts.fragment or unquote(parts.fragment) in pages[target].ids
                )
            if not found:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        for address in page.loaded:
            parts = urlsplit(address)
            assert not parts.netloc, f"{path}: {address}"
            assert parts.scheme in ("", "data"), f"{path}: {address}"
            if not parts.scheme:
                assert (path.parent / parts.path).exists(), f"{path}: {address}"
        text = re.sub(r"<a [^>]*>", "", path.read_text())
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import|fetch\(['\"]https?:", text), path


def test_nothing_tells_where_it_was_built(site):
    place = str(ROOT)
    for path in site.rglob("*"):
        if path.is_file():
            assert place not in path.read_text(errors="replace"), path


def test_contents_lead_to_every_page_and_to_the_reference(site, pages):
    home = pages[(site / "index.html").resolve()]
    assert "dlguide.html" in home.links
    deep = pages[(site / "dlguide" / "machine" / "threads.html").resolve()]
    assert "../../index.html" in deep.links
    for page in (ROOT / "docs" / "research").glob("*.md"):
        assert f"research/{page.stem}.html" in home.links


# --- docstrings as Markdown --------------------------------------------------------------------


def test_arguments_become_a_list_and_continue():
    text = "Do it.\n\nArgs:\n    first: a thing\n        that is long.\n"
    text += "    *more, other: <b> and a*b*c."
    assert build_docs.markdown(text).strip().splitlines() == [
        "Do it.", "", "", "###### Args", "",
        "- `first`: a thing", "  that is long.", r"- `*more, other`: &lt;b> and a\*b\*c.",
    ]  # fmt: skip


def test_formulas_doctests_and_code_are_left_alone():
    text = "Sum `a*b`.\n\n    t = a * b <= c\n\n>>> f(2 * 3)\n'<6>'\n\nMore *stars*."
    assert build_docs.markdown(text).strip() == (
        "Sum `a*b`.\n\n    t = a * b <= c\n\n>>> f(2 * 3)\n'<6>'\n\nMore \\*stars\\*."
    )


def test_returned_type_stands_before_its_words():
    text = "Do it.\n\nReturns:\n    float: seconds\n    in all.\n\nSource:\n    A paper."
    written = [line for line in build_docs.markdown(text).splitlines() if line]
    assert written == [
        "Do it.", "###### Returns", "- `float`: seconds", "  in all.", "###### Source", "A paper."
    ]  # fmt: skip


def test_doctest_of_a_docstring_is_shown_as_code(site):
    shown = (site / "dlguide" / "training" / "schedules.html").read_text()
    text = re.sub(r"<[^>]+>", "", shown)
    assert "&gt;&gt;&gt;" in text
    assert "[0.2, 0.4, 0.6, 0.8, 1.0, 1.2]" in text
    assert "<blockquote>\n    <blockquote>" not in shown


SPOILT = """
import sys, types
sys.path.insert(0, "docs")
import build
from pathlib import Path

module = types.ModuleType("dlguide.errors", "A module.")
module.__all__ = ["nothing_here"]  # pdoc would warn and go on
build.public_modules = lambda: ["dlguide.errors"]
build.load = lambda name: module
build.build(Path(sys.argv[1]))
"""


def test_warning_is_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SPOILT, str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0
    assert "nothing_here" in done.stderr
    assert list(tmp_path.iterdir()) == []
