"""Benchmarks with equal work on both sides: every sample is kept."""

from importlib import import_module
from typing import Any

__all__ = ["allreduce"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
