"""Nets: built the same way on every rank, and what they cost in flops, bytes and memory."""

from dlguide.models.averages import set_momentum
from dlguide.models.building import (
    build,
    classifier_names,
    further_names,
    imagenet_names,
    names,
    parameters,
    sample_shape,
)
from dlguide.models.compared import Footprint, architectures
from dlguide.models.costs import Cost, LayerCost
from dlguide.models.counting import count
from dlguide.models.memory import Memory, memory

__all__ = [
    "Cost",
    "Footprint",
    "LayerCost",
    "Memory",
    "architectures",
    "build",
    "classifier_names",
    "count",
    "further_names",
    "imagenet_names",
    "memory",
    "names",
    "parameters",
    "sample_shape",
    "set_momentum",
]
