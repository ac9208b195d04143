"""Schemes of parallel training beside synchronous data parallelism, one module each.

    from dlguide.parallel import compression, pipeline

Each runs on real ranks, over a communicator that is an argument.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = (
    "codecs",
    "compression",
    "hybrid",
    "layout_planner",
    "local_sgd",
    "mesh",
    "overlap",
    "parameter_server",
    "pipeline",
    "pipeline_schedule",
    "tensor",
    "zero",
)
_NAMES = {
    "LocalSGD": "local_sgd",
    "MeshLayout": "mesh",
    "PipelineParallel": "pipeline",
    "TensorParallelModel": "tensor",
    "ZeroOptimizer": "zero",
    "plan_layout": "layout_planner",
}
__all__ = [*_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
