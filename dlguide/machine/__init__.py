"""The machine as this process may use it, and how ranks share it.

`machine.describe()` and `machine.threads.plan()` are the usual start; `machine.use_onednn()` lets
TensorFlow compute with oneDNN where it would not. `machine.accelerators` is imported when it is
first used.
"""

from importlib import import_module
from typing import Any

from dlguide.machine.onednn_switch import (
    OnednnState,
    onednn_default,
    onednn_state,
    use_onednn,
)
from dlguide.machine.topology import Core, Machine, describe, imagine

__all__ = [
    "Core",
    "Machine",
    "OnednnState",
    "accelerators",
    "describe",
    "imagine",
    "onednn_default",
    "onednn_state",
    "onednn_switch",
    "threads",
    "topology",
    "use_onednn",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"dlguide.machine.{name}")
    raise AttributeError(f"dlguide.machine has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
