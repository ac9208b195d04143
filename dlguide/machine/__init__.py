"""The machine as this process may use it, and how ranks share it.

`machine.describe()` and `machine.threads.plan()` are the usual start. Other modules are imported
when their names are first used: `machine.accelerators`, `machine.libraries`, `machine.onednn`.
"""

from importlib import import_module
from typing import Any

from dlguide.machine.topology import Core, Machine, describe, imagine

__all__ = [
    "Core",
    "Machine",
    "accelerators",
    "describe",
    "imagine",
    "libraries",
    "onednn",
    "threads",
    "topology",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"dlguide.machine.{name}")
    raise AttributeError(f"dlguide.machine has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
