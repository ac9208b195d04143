"""Schemes of parallel training beside synchronous data parallelism, one module each.

    from dlguide.parallel import compression, pipeline

Each runs on real ranks, over a communicator that is an argument.
"""

from __future__ import annotations

import importlib
from typing import Any

# Where each name is; modules stand for themselves.
_PLACES = {
    **dict.fromkeys(("compression", "context", "experts", "layout_planner", "local_sgd", "mesh")),
    **dict.fromkeys(("overlap", "parameter_server", "pipeline", "pipeline_schedule")),
    **dict.fromkeys(("tensor", "zero")),
    "DiLoCo": "local_sgd",
    "LocalSGD": "local_sgd",
    "MeshLayout": "mesh",
    "MixtureOfExperts": "experts",
    "PipelineParallel": "pipeline",
    "TensorParallelModel": "tensor",
    "ZeroOptimizer": "zero",
    "ZeroTrainer": "zero",
    "choose_layout": "layout_planner",
    "plan_layout": "layout_planner",
    "ring_attention": "context",
    "ulysses_attention": "context",
}
__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_PLACES[name] or name}")
    return getattr(module, name) if _PLACES[name] else module


def __dir__() -> list[str]:
    return __all__
