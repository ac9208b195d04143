"""Deep learning at scale: what the notebooks and your own code import.

Importing `dlguide` loads nothing heavy: a subpackage is imported when its name is first used, and
TensorFlow, MPI or matplotlib only inside the functions that need them. Threads must be planned
before TensorFlow starts, and MPI must never start in the notebook's own kernel.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_SUBPACKAGES = (
    "bench",
    "errors",
    "cluster",
    "collectives",
    "commands",
    "data",
    "doctor",
    "files",
    "horovod",
    "machine",
    "measure",
    "models",
    "parallel",
    "plots",
    "published",
    "scaling",
    "search",
    "training",
    "tuning",
)


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES or name == "exercises":  # the last only says where they are now
        return import_module(f"dlguide.{name}")
    raise AttributeError(f"dlguide has no {name!r}; it has {', '.join(_SUBPACKAGES)}")


def __dir__() -> list[str]:
    return sorted([*_SUBPACKAGES, "__version__"])
