"""The form of a notebook, from its cells to complaints: ids, order, alt texts, no outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

CHECK = re.compile(r"""dlcourse\.check\(\s*["']([\w-]+)["']""")


def complaints(notebook: dict[str, Any], answers: bool = False) -> list[str]:
    """List what is wrong with the form of a notebook; answers have no fixed order."""
    cells = notebook["cells"]
    found = [*stripped(notebook), *identifiers(cells), *alternative_texts(cells)]
    return found if answers else [*found, *order(cells)]


def load(path: Path) -> dict[str, Any]:
    """Read a notebook as plain JSON."""
    return json.loads(path.read_text())


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def checks(notebook: dict[str, Any]) -> set[str]:
    """The exercises that a notebook checks."""
    code = "\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code")
    return set(CHECK.findall(code))


def python(text: str) -> str:
    """The Python in a cell, that below `%%px` included."""
    head, _, body = text.partition("\n")
    if head.startswith("%%"):
        text = body if head.startswith("%%px") else ""
    return TransformerManager().transform_cell(text)


def order(cells: list[dict[str, Any]]) -> list[str]:
    """Goals first, Summary and Exercises last."""
    markdown = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
    titles = [text.strip() for text in re.findall(r"^## (.*)$", markdown, re.M)]
    if not titles or titles[0] != "Goals" or titles[-2:] != ["Summary", "Exercises"]:
        return [f"the sections are {titles}, not Goals, ..., Summary, Exercises"]
    return []


def stripped(notebook: dict[str, Any]) -> list[str]:
    """No outputs and no execution counts."""
    return [
        f"cell {index} has outputs or an execution count"
        for index, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code" and (cell["outputs"] or cell["execution_count"] is not None)
    ]


def identifiers(cells: list[dict[str, Any]]) -> list[str]:
    """Every cell has an id, used once."""
    ids = [cell.get("id") for cell in cells]
    found = ["a cell has no id"] if None in ids else []
    twice = sorted({one for one in ids if one is not None and ids.count(one) > 1})
    return found + [f"two cells are {one!r}" for one in twice]


def alternative_texts(cells: list[dict[str, Any]]) -> list[str]:
    """Every image in the prose has an alternative text."""
    found = []
    for index, cell in enumerate(cells):
        text = source(cell) if cell["cell_type"] == "markdown" else ""
        images = re.findall(r"!\[([^\]]*)\]\(", text)
        for tag in re.findall(r"<img\b[^>]*>", text):
            images += re.findall(r"""\balt=["']([^"']*)""", tag) or [""]
        missing = sum(not alt.strip() for alt in images)
        found += [f"an image in cell {index} has no alt text"] * missing
    return found
