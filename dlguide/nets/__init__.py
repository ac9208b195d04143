"""Nets: built the same way on every rank, and what they cost in flops, bytes and memory."""

from dlguide.nets.building import build, imagenet_names, names, parameters
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
    "count",
    "imagenet_names",
    "memory",
    "names",
    "parameters",
]
