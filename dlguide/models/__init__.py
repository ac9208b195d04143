"""Neural networks by name, the same on every rank, and their cost in flops, bytes and memory."""

from dlguide.models import gpt, images, sequences  # noqa: F401  they register their nets
from dlguide.models.costs import Cost, LayerCost, architectures, count
from dlguide.models.gpt import GPTShape
from dlguide.models.memory import memory
from dlguide.models.registry import (
    build,
    names,
    parameters,
    sample_shape,
    set_momentum,
    spec,
)

__all__ = [
    "Cost",
    "GPTShape",
    "LayerCost",
    "architectures",
    "build",
    "count",
    "memory",
    "names",
    "parameters",
    "sample_shape",
    "set_momentum",
    "spec",
]
