"""Neural networks by name, the same on every rank, and their cost in flops, bytes and memory."""

from dlguide.models.costs import Cost, LayerCost, count
from dlguide.models.memory import memory
from dlguide.models.nets import build, names, parameters, sample_shape, set_momentum

__all__ = [
    "Cost",
    "LayerCost",
    "build",
    "count",
    "memory",
    "names",
    "parameters",
    "sample_shape",
    "set_momentum",
]
