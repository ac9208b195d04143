"""Optional components of the course: where one is missing, marked cells only say how to add it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dlguide.errors import require_known

# What a mark `# needs ...` may name -> package, and the command that adds it.
MARKS = {
    "Horovod": ("horovod", "dlguide install-horovod"),
    "Horovod with PyTorch": ("horovod.torch", "make horovod-pytorch"),
    "JAX": ("jax", "make jax"),
    "PyTorch": ("torch", "make pytorch"),
}


def installed(package: str) -> bool:
    """Return whether a package can be imported; "horovod.torch" asks for its compiled part."""
    if package == "horovod.torch":
        found = importlib.util.find_spec("horovod") if installed("torch") else None
        folders = found.submodule_search_locations or () if found else ()
        return any(any(Path(folder, "torch").glob("mpi_lib_v2.*.so")) for folder in folders)
    return importlib.util.find_spec(package) is not None


def skip_marked_cells(*names: str) -> None:
    """Let cells that begin with `# needs NAME` only say what is missing, where it is.

    Args:
        names: the components that this lesson can do without, of `MARKS`; a line is printed for
            each that is missing.
    """
    missing = {}
    for name in names:
        package, command = MARKS[require_known(name, MARKS, "names")]
        if not installed(package):
            missing[f"# needs {name}"] = f"{name} is not installed (`{command}`)"
            print(f"{name} is not installed (`{command}`): the cells that need it only say so.")
    if missing:
        from IPython import get_ipython

        def instead(lines: list[str]) -> list[str]:
            lacks = missing.get(lines[0].strip()) if lines else None
            return [f'print("Not shown: {lacks}.")\n'] if lacks else lines

        get_ipython().input_transformers_post.append(instead)
