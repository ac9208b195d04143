"""MPI ranks on this machine: started from a notebook or script, supervised, and cleaned up."""

from importlib import import_module
from typing import Any

# Resolved when first used: the watchdog, `python -m dlguide.cluster.processes`, must start at once.
_PLACES = {
    "Cluster": "launch",
    "RankError": "errors",
    "TaskResult": "tasks",
    "batch": "",
    "run_script": "script",
}
__all__ = ["Cluster", "RankError", "TaskResult", "batch", "run_script"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES[name]
    if not place:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.{place}"), name)


def __dir__() -> list[str]:
    return __all__
