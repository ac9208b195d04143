"""Pictures of the lessons: diagrams of how things work, and plots that one lesson draws.

A function returns a matplotlib Figure with an alternative text, or what a notebook shows as HTML.
A module is loaded when one of its pictures is drawn.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

# The functions that begin a line in the modules beside this one: each picture is there once.
_MODULES = {
    name: path.stem
    for path in Path(__file__).parent.glob("[a-z]*.py")
    for name in re.findall(r"^def ([a-z]\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if path.stem != "shapes"
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
