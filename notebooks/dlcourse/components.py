"""Optional components of the course: where one is missing, marked cells only say how to add it."""

from __future__ import annotations

import importlib.util
import platform
from contextlib import suppress
from pathlib import Path

from dlguide.errors import require_known

# What a mark `# needs ...` may name -> package, and the command that adds it.
MARKS = {
    "Horovod": ("horovod", "dlguide install-horovod"),
    "Horovod with PyTorch": ("horovod.torch", "make horovod-pytorch"),
    "JAX": ("jax", "make jax"),
    "PyTorch": ("torch", "make pytorch"),
    "daal4py": ("daal4py", "pip install scikit-learn-intelex"),
}
X86_ONLY = ("daal4py",)


def installed(package: str) -> bool:
    """Return whether a package can be imported; "horovod.torch" asks for its compiled part."""
    if package == "horovod.torch":
        found = importlib.util.find_spec("horovod") if installed("torch") else None
        folders = found.submodule_search_locations or () if found else ()
        return any(any(Path(folder, "torch").glob("mpi_lib_v2.*.so")) for folder in folders)
    with suppress(ModuleNotFoundError):  # its parent package is not installed
        return importlib.util.find_spec(package) is not None
    return False


def lack(package: str) -> str:
    """Return why a package cannot be imported, with the command that adds it; "" where it can."""
    if installed(package):
        return ""
    here = platform.machine()
    if package in X86_ONLY and here != "x86_64":
        return f"has no wheel for {here}, only for x86_64"
    return f"is not installed (`{dict(MARKS.values()).get(package, f'pip install {package}')}`)"


def skip_marked_cells(*names: str) -> None:
    """Let cells that begin with `# needs NAME` only say what is missing, where it is.

    Args:
        names: the components that this lesson can do without, of `MARKS`; a line is printed for
            each that is missing.
    """
    missing = {}
    for name in names:
        if why := lack(MARKS[require_known(name, MARKS, "names")][0]):
            missing[f"# needs {name}"] = f"{name} {why}"
            print(f"{name} {why}: the cells that need it only say so.")
    if missing:
        from IPython import get_ipython

        def instead(lines: list[str]) -> list[str]:
            lacks = missing.get(lines[0].strip()) if lines else None
            return [f'print("Not shown: {lacks}.")\n'] if lacks else lines

        get_ipython().input_transformers_post.append(instead)
