"""The form of a notebook, as functions from its cells to complaints."""

from __future__ import annotations

import ast
import itertools
import json
import re
import statistics
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import house_style
from IPython.core.inputtransformer2 import TransformerManager

NAME = re.compile(r"^(\d\d)_[a-z0-9]+(_[a-z0-9]+)*\.ipynb$")
CHECK = re.compile(r"""exercises\.check\(\s*["']([\w-]+)["']""")
STAMP = re.compile(r"\bmachine\.describe\(")


def complaints(name: str, notebook: dict[str, Any], answers: bool = False) -> list[str]:
    """All that is wrong with the form of a notebook; answers are shorter and freer."""
    cells = notebook["cells"]
    found = [*file_name(name), *stripped(notebook), *identifiers(cells), *prose(cells)]
    found += [*code_length(cells), *alternative_texts(cells), *title(name, cells)]
    found += [*duplicates(cells), *way_in(cells)]
    if answers:
        return [*found, *ends_in_a_check(cells)]
    return [*found, *count(cells), *order(cells), *goals(cells), *exercises(cells)]


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def checks(notebook: dict[str, Any]) -> set[str]:
    """The exercises that a notebook checks."""
    code = "\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code")
    return set(CHECK.findall(code))


def file_name(name: str) -> list[str]:
    """`NN_topic_in_words.ipynb`."""
    return [] if NAME.match(name) else [f"{name} is not NN_topic_in_words.ipynb"]


def title(name: str, cells: list[dict[str, Any]]) -> list[str]:
    """The first cell says what it is, what it needs, how long it takes, what is around it."""
    text = source(cells[0]) if cells and cells[0]["cell_type"] == "markdown" else ""
    if not re.match(rf"# {name[:2]} \S", text):
        return [f"the first cell does not begin with `# {name[:2]} Topic`"]
    if "answers" in text.lower():
        return []
    wanted = {"needs": r"\bneeds\b", "run time": r"\brun time\b"}
    wanted |= {"before": r"\bbefore\b", "next": r"\bnext\b"}
    return [
        f"the first cell does not say {word}"
        for word, pattern in wanted.items()
        if not re.search(pattern, text, re.I)
    ]


def headings(cells: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """(cell, text) of the headings of the second level."""
    return [
        (index, match.group(1).strip())
        for index, cell in enumerate(cells)
        if cell["cell_type"] == "markdown"
        for match in re.finditer(r"^## (.*)$", source(cell), re.M)
    ]


def order(cells: list[dict[str, Any]]) -> list[str]:
    """Goals, stamp, 3 to 6 sections, Summary, Exercises."""
    titles = [text for _, text in headings(cells)]
    if not titles or titles[0] != "Goals" or titles[-2:] != ["Summary", "Exercises"]:
        return [f"the sections are {titles}, not Goals, ..., Summary, Exercises"]
    found = []
    if not 3 <= len(titles) - 3 <= 6:
        found.append(f"has {len(titles) - 3} sections between Goals and Summary, not 3 to 6")
    goals_at, next_at = (index for index, _ in headings(cells)[:2])
    between = cells[goals_at:next_at]
    if not any(cell["cell_type"] == "code" and STAMP.search(source(cell)) for cell in between):
        found.append("has no machine.describe() between Goals and the first section")
    return found


def goals(cells: list[dict[str, Any]]) -> list[str]:
    """3 to 5 bullets, each `you can ...`."""
    text = next((source(cell) for cell in cells if "## Goals" in source(cell)), "")
    bullets = re.findall(r"^[-*] +(.*)$", text, re.M)
    found = [] if 3 <= len(bullets) <= 5 else [f"has {len(bullets)} goals, not 3 to 5"]
    return found + [
        f"the goal {bullet[:40]!r} does not begin with `you can`"
        for bullet in bullets
        if not bullet.lower().startswith("you can")
    ]


def exercises(cells: list[dict[str, Any]]) -> list[str]:
    """Every exercise has its stars."""
    begin = next((index for index, text in headings(cells) if text == "Exercises"), None)
    if begin is None:
        return ["has no exercises"]
    text = "\n".join(source(cell) for cell in cells[begin:] if cell["cell_type"] == "markdown")
    titles = re.findall(r"^### (.*)$", text, re.M)
    found = [f"the exercise {title!r} has no stars" for title in titles if "★" not in title]
    if "★" not in text or "★★★★" in text:
        found.append("the exercises have no ★, ★★ or ★★★")
    return found


def way_in(cells: list[dict[str, Any]]) -> list[str]:
    """Where the package is not found, the line that fails names the command."""
    code = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "code")
    first = re.search(r"^(import|from) dlguide\b.*$", code, re.M)
    helps = (
        first is not None and "import dlguide" in first[0] and "# not found? `make lab`" in first[0]
    )
    return [] if helps else ["the first import of dlguide does not name `make lab`"]


def ends_in_a_check(cells: list[dict[str, Any]]) -> list[str]:
    """The last code is the learner's own check."""
    code = [source(cell) for cell in cells if cell["cell_type"] == "code"]
    return [] if code and CHECK.search(code[-1]) else ["the last code cell checks no exercise"]


def count(cells: list[dict[str, Any]]) -> list[str]:
    """30 to 60 cells."""
    return [] if 30 <= len(cells) <= 60 else [f"has {len(cells)} cells, not 30 to 60"]


def prose(cells: list[dict[str, Any]]) -> list[str]:
    """No two code cells without prose between them."""
    return [
        f"cells {index} and {index + 1} are both code"
        for index, (cell, after) in enumerate(itertools.pairwise(cells))
        if cell["cell_type"] == after["cell_type"] == "code"
    ]


def code_length(cells: list[dict[str, Any]]) -> list[str]:
    """Code cells have at most 25 lines, 10 in the median."""
    lengths = [
        (len(source(cell).splitlines()), index)
        for index, cell in enumerate(cells)
        if cell["cell_type"] == "code"
    ]
    found = [f"cell {index} has {lines} lines of code" for lines, index in lengths if lines > 25]
    if lengths and statistics.median(lines for lines, _ in lengths) > 10:
        found.append("code cells have more than 10 lines in the median")
    return found


def stripped(notebook: dict[str, Any]) -> list[str]:
    """No outputs and no execution counts."""
    return [
        f"cell {index} has outputs or an execution count"
        for index, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code" and (cell["outputs"] or cell["execution_count"] is not None)
    ]


def identifiers(cells: list[dict[str, Any]]) -> list[str]:
    """Every cell has an id of its own."""
    ids = [cell.get("id") for cell in cells]
    found = ["a cell has no id"] if None in ids else []
    twice = sorted({one for one in ids if one is not None and ids.count(one) > 1})
    return found + [f"two cells are {one!r}" for one in twice]


def alternative_texts(cells: list[dict[str, Any]]) -> list[str]:
    """Every image in the prose can be read aloud."""
    found = []
    for index, cell in enumerate(cells):
        text = source(cell) if cell["cell_type"] == "markdown" else ""
        images = re.findall(r"!\[([^\]]*)\]\(", text)
        images += [
            (re.search(r"""\balt=["']([^"']*)""", tag) or ["", ""])[1]
            for tag in re.findall(r"<img\b[^>]*>", text)
        ]
        found += [f"an image in cell {index} has no alt text"] * sum(
            not alt.strip() for alt in images
        )
    return found


# --- definitions that the package has already --------------------------------------------------


def duplicates(cells: list[dict[str, Any]]) -> list[str]:
    """What is in the package is imported, not written again."""
    found = []
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        for node in ast.walk(ast.parse(python(source(cell)))):
            if not isinstance(node, ast.FunctionDef):
                continue
            own_shape, own_text = _shape(node), _text(node)
            for name, shape, text in package_functions():
                alike = name.rsplit(".", 1)[1] == node.name and (
                    SequenceMatcher(None, text, own_text, autojunk=False).ratio() > 0.75
                )
                if alike or (len(node.body) > 2 and shape == own_shape):
                    found.append(f"cell {index} defines {node.name}, which is {name}")
    return found


def python(text: str) -> str:
    """The Python in a cell, that below `%%px` included."""
    head, _, body = text.partition("\n")
    if head.startswith("%%"):
        text = body if head.startswith("%%px") else ""
    return TransformerManager().transform_cell(text)


@cache
def package_functions() -> tuple[tuple[str, str, str], ...]:
    """(dotted name, shape, text) of every function of the package."""
    return tuple(
        (f"{module.name}.{node.name}", _shape(node), _text(node))
        for module in house_style.modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef)
    )


def _body(node: ast.FunctionDef) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def _text(node: ast.FunctionDef) -> str:
    return "\n".join(ast.unparse(statement) for statement in _body(node))


def _shape(node: ast.FunctionDef) -> str:
    """The body with names replaced in the order of their appearance."""
    seen: dict[str, str] = {}
    dumped = " ".join(ast.dump(statement) for statement in _body(node))
    return re.sub(
        r"(id|arg|attr)='(\w+)'", lambda match: seen.setdefault(match[2], f"n{len(seen)}"), dumped
    )


def load(path: Path) -> dict[str, Any]:
    """Read a notebook as plain JSON, every cell as one text."""
    return json.loads(path.read_text())
