"""The solved exercise, out of the notebook of answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dlguide import notebooks
from dlguide.checks import MissingComponentError


def find(number: str, folder: Path | None = None) -> str:
    """Find the section of the answers that solves an exercise.

    It begins with the heading that names the exercise and ends before the next one of the same
    rank. Code stands in it as code of Markdown.

    Args:
        number: of the exercise, such as "20-1".
        folder: of the notebooks; None for those of the repository.

    Returns:
        str: its text.

    Raises:
        MissingComponentError: when there is no notebook of answers here, or none for it.
    """
    lesson = number.partition("-")[0]
    for path in notebooks.find(folder):
        if path.parent.name == "answers" and path.name.startswith(f"{lesson}_"):
            section = _section(path, number)
            if section:
                return section
            where = f"{path} has no section {number}"
            break
    else:
        where = f"{folder or notebooks.ROOT / 'notebooks'} has no answers to notebook {lesson}"
    raise MissingComponentError(f"{where}. The answers stand in a clone of this repository.")


def _section(path: Path, number: str) -> str:
    """Cut the section of one exercise out of a notebook."""
    heading = re.compile(rf"^(#+) {re.escape(number)}\b.*", re.MULTILINE)
    found: list[str] = []
    rank = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "markdown":
            if found:
                found.append(f"```python\n{text}\n```")
            continue
        begin = heading.search(text)
        if begin:
            rank = len(begin[1])
            found.append(text[begin.start() :])
        elif found and re.match(rf"#{{1,{rank}}} ", text):
            break
        elif found:
            found.append(text)
    return "\n\n".join(found)
