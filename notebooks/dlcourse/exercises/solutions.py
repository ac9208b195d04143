"""The worked answer of an exercise, out of the notebook of answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dlcourse import execution
from dlguide.errors import MissingComponentError


def find(number: str, folder: Path | None = None) -> str:
    """The section of the answers that solves an exercise, with code as Markdown.

    Raises:
        MissingComponentError: when there is no notebook of answers here, or no such section in it.
    """
    lesson = number.partition("-")[0]
    answers = [path for path in execution.find(folder) if execution.is_answers(path)]
    for path in answers:
        if path.name.startswith(f"{lesson}_") and (section := _section(path, number)):
            return section
    where = folder or "The notebooks' folder"
    raise MissingComponentError(
        f"{where} has no answer to exercise {number}: the answers are in a clone of the repository."
    )


def _section(path: Path, number: str) -> str:
    """From the heading that names the exercise to the next heading of its level."""
    heading = re.compile(rf"^(#+) {re.escape(number)}\b.*", re.MULTILINE)
    found: list[str] = []
    level = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "markdown":
            if found:
                found.append(f"```python\n{text}\n```")
        elif begin := heading.search(text):
            level = len(begin[1])
            found.append(text[begin.start() :])
        elif found and re.match(rf"#{{1,{level}}} ", text):
            break
        elif found:
            found.append(text)
    return "\n\n".join(found)
