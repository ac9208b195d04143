"""A Python in which some installed packages are missing, for it and for all that it starts."""

from __future__ import annotations

import os
from pathlib import Path

# Run by each Python at its start, which imports `sitecustomize`.
HIDING = """
from importlib import metadata
from importlib.machinery import PathFinder

hidden, found, known = {packages!r}, PathFinder.find_spec, metadata.Distribution.from_name

def find_spec(cls, name, path=None, target=None):
    if not any(f"{{name}}.".startswith(f"{{each}}.") for each in hidden):
        return found(name, path, target)

def from_name(cls, name):
    if name.removesuffix("-cpu") in hidden:
        raise metadata.PackageNotFoundError(name)
    return known(name)

PathFinder.find_spec = classmethod(find_spec)
metadata.Distribution.from_name = classmethod(from_name)
"""


def hide(folder: Path, *packages: str) -> dict[str, str]:
    """Write what hides packages into a folder; return the variables of processes without them."""
    (folder / "sitecustomize.py").write_text(HIDING.format(packages=packages))
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}
