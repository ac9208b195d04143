"""Nets: built the same way on every rank, and what they cost in flops, bytes and memory."""

from dlguide.nets.averages import set_momentum
from dlguide.nets.building import (
    build,
    classifier_names,
    further_names,
    imagenet_names,
    names,
    parameters,
    sample_shape,
)
from dlguide.nets.compared import Footprint, architectures
from dlguide.nets.costs import Cost, LayerCost
from dlguide.nets.counting import count
from dlguide.nets.memory import Memory, memory

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
