"""Build the pages for researchers and the API reference as HTML that works from a file.

    python docs/build.py [FOLDER]

`make docs` calls it with build/docs. The reference comes from the docstrings, through pdoc. A
module has its place in it when its package's own names lead to it, or when a lesson or a page
imports it; the rest is the inside of the package. Whatever pdoc warns of is an error.
"""

from __future__ import annotations

import ast
import html
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs"
THEME = PAGES / "theme"
# Commands explain themselves by `--help`; answers to exercises are asked for, not read.
LEFT_OUT = re.compile(r"dlguide\.(cli\b|exercises\.nb|.*\b__main__$)")
_FENCE = re.compile(r"^```python\b.*?\n(.*?)^```", re.M | re.S)
_LINK = re.compile(r'(href=")([^"#:]+)(#[^"]*)?"')


# --- what is public ----------------------------------------------------------------------------


def module_files() -> dict[str, Path]:
    """Find all modules of the package: dotted name and file."""
    found = {}
    for path in sorted((ROOT / "dlguide").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not LEFT_OUT.match(name) and not any(part.startswith("_") for part in name.split(".")):
            found[name] = path
    return found


def public_modules() -> list[str]:
    """List the modules that the reference is about, sorted."""
    files = module_files()
    shown = set()

    def lead(name: str) -> None:
        shown.add(name)
        named = _all_of(files[name])
        for other in files:
            parent, _, last = other.rpartition(".")
            if parent == name and (named is None or last in named):
                lead(other)

    lead("dlguide")
    for source in _sources():
        for name in _imported(source, files):
            # with the packages it is in, so that the way to it exists
            parts = name.split(".")
            shown.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return sorted(shown)


def _all_of(path: Path) -> list[str] | None:
    """Return a module's `__all__`, which may be put together from constants above it."""
    constants: dict[str, object] = {"__builtins__": {"dict": dict, "sorted": sorted}}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                value = eval(compile(ast.Expression(node.value), str(path), "eval"), constants)
            except (NameError, TypeError, AttributeError, KeyError):
                continue  # no constant
            constants[node.targets[0].id] = value
    return list(constants["__all__"]) if "__all__" in constants else None


def _sources() -> Iterator[str]:
    """Give the Python code of all lessons and pages."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                yield re.sub(r"^\s*[%!].*$", "", "".join(cell["source"]), flags=re.M)
    for path in [ROOT / "README.md", *sorted(PAGES.rglob("*.md"))]:
        yield from _FENCE.findall(path.read_text())


def _imported(source: str, known: dict[str, Path]) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # a cell that shows what does not work
        return
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        yield from (name for name in names if name in known)


# --- docstrings --------------------------------------------------------------------------------

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Source|Example|Note)s?:[ ]*$")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*)(?: \([^)]*\))?:(?:\s|$)")
_NAMED = ("Args", "Attributes", "Raises")


def markdown(docstring: str) -> str:
    """Turn a docstring of the house into Markdown: sections, lists of names, formulas, doctests."""
    written, section, body = [], "", []
    for line in [*docstring.strip("\n").split("\n"), "Note:"]:
        found = _SECTION.match(line)
        if found is None and (not section or not line or line.startswith(" ")):
            body.append(line)
            continue
        written += _section(section, body)
        section, body = (found[1], []) if found else ("", [line])
    return "\n".join(written)


def _section(title: str, body: list[str]) -> list[str]:
    if not title:
        return _prose(body)
    heading = ["", f"###### {title}", ""]
    lines = [line.removeprefix("    ") for line in body]
    if title not in _NAMED and title not in ("Returns", "Yields"):
        return heading + _prose(lines)
    written = []
    for line in lines:
        entry = _ENTRY.match(line) if title in _NAMED else re.match(r"^([^:`]{1,60}?): ", line)
        first = not any(line.strip() for line in written)
        if entry and (title in _NAMED or first):
            rest = _escaped(line[entry.end() :])
            written.append(f"- `{entry[0].strip().removesuffix(':')}`: {rest}")
        elif title in _NAMED:
            written.append(f"  {_escaped(line.strip())}".rstrip())
        else:
            written.append(f"{'- ' if first and line else '  '}{_escaped(line.strip())}".rstrip())
    return heading + written + [""]


def _prose(lines: list[str]) -> list[str]:
    """Leave formulas and doctests as they are, and escape signs in sentences."""
    written, shell = [], False
    for line in lines:
        shell = line.startswith(">>>") or (shell and bool(line))
        if shell or line.startswith("    "):
            written.append(line)
        else:
            written.append(_escaped(line))
    return written


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    for index in range(0, len(parts), 2):
        part = re.sub(r"([*\[\]~|\\])", r"\\\1", parts[index])
        parts[index] = part.replace("<", "&lt;")
    return "".join(parts)


# --- pages -------------------------------------------------------------------------------------


def build(folder: Path) -> list[str]:
    """Write everything into a folder, which is replaced as a whole.

    Returns:
        list: the modules of the reference.
    """
    import pdoc.doc
    import pdoc.render

    names = public_modules()
    # Loaded before warnings are errors: those of TensorFlow are not ours. What pdoc loads itself
    # may start processes, as TensorFlow does to know its platform.
    os.environ["PDOC_ALLOW_EXEC"] = "1"
    loaded = {name: load(name) for name in names}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".docs-") as place, \
            warnings.catch_warnings():  # fmt: skip
        warnings.simplefilter("error")
        pdoc.render.configure(
            docformat="google", show_source=False, template_directory=THEME, search=True
        )
        pdoc.render.env.filters["to_markdown"] = markdown
        pdoc.render.env.tests["in_package"] = lambda name, package: (
            name.rpartition(".")[0] == package
        )
        modules = {name: pdoc.doc.Module(module) for name, module in loaded.items()}
        for name, module in modules.items():
            _write(Path(place), _reference(name), pdoc.render.html_module(module, modules))
        _write(Path(place), "search.js", pdoc.render.search_index(modules))
        for path in sorted(PAGES.rglob("*.md")):
            written = _page(path, modules)
            _write(Path(place), _address(path), written)
        for path in sorted([*PAGES.rglob("*.png"), *PAGES.rglob("*.svg")]):
            shutil.copy(path, Path(place) / path.relative_to(PAGES))
        _unlink(Path(place))
        if folder.exists():
            shutil.rmtree(folder)
        os.chmod(place, 0o755)
        shutil.copytree(place, folder)
    return names


def load(name: str) -> ModuleType:
    """Import a module."""
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):  # pdoc does not see what is imported on demand
        value = getattr(module, public)
        if not isinstance(value, ModuleType):
            setattr(module, public, value)
    return module


def _write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # where this clone lies is nobody's business, but some constants are paths
    path.write_text(text.replace(str(ROOT), "…"), encoding="utf-8")


def _unlink(folder: Path) -> None:
    """Take links away that lead to no entry: pdoc links attributes that it does not show."""
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    for path, text in texts.items():

        def kept(link: re.Match, path: Path = path) -> str:
            target = (path.parent / link[1]).resolve() if link[1] else path
            return link[0] if link[2] in ids.get(target, ()) else link[3]

        changed = re.sub(r'<a href="([^"#:]*)#([^"]+)">(.*?)</a>', kept, text)
        if changed != text:
            path.write_text(changed, encoding="utf-8")


def _reference(name: str) -> str:
    return f"{name.replace('.', '/')}.html"


def _address(page: Path) -> str:
    name = page.relative_to(PAGES).with_suffix(".html")
    return str(name.with_name("index.html") if page.name == "README.md" else name)


def _page(path: Path, modules: dict) -> str:
    """Turn a page into HTML whose links lead to other pages, the reference, or the repository."""
    import pdoc.render
    import pdoc.render_helpers

    text = path.read_text()
    # what stands behind the language names the file or the command's folder, for readers and tests
    text = re.sub(r"^```(\w+)[ ].*$", r"```\1", text, flags=re.M)
    body = str(pdoc.render_helpers.to_html(text))
    here = Path(_address(path)).parent

    def turned(link: re.Match) -> str:
        target = (path.parent / html.unescape(link[2])).resolve()
        if target.is_relative_to(PAGES) and target.suffix == ".md":
            where = _address(target)
        elif (name := _module_of(target)) in modules:
            where = _reference(name)
        elif target.is_relative_to(PAGES) and target.suffix == ".png":
            where = str(target.relative_to(PAGES))
        else:
            where = os.path.relpath(target, ROOT / "build" / "docs")
        return f'{link[1]}{os.path.relpath(where, here)}{link[3] or ""}"'

    title = re.search(r"^# (.*)$", text, re.M)
    return pdoc.render.env.get_template("page.html.jinja2").render(
        title=title[1] if title else path.stem,
        body=_LINK.sub(turned, body),
        home=os.path.relpath("index.html", here),
        reference=os.path.relpath("dlguide.html", here),
    )


def _module_of(path: Path) -> str:
    if not path.is_relative_to(ROOT / "dlguide"):
        return ""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> None:
    """Build into the folder that is named, or build/docs."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()
    names = build(folder)
    print(f"{len(names)} modules and the pages are in {folder}: open {folder / 'index.html'}")


if __name__ == "__main__":
    main()
