"""Nets: built the same way on every rank, and what they cost in flops, bytes and memory."""

from dlguide.nets.building import build, imagenet_names, names, parameters
from dlguide.nets.costs import Cost, LayerCost
from dlguide.nets.counting import count

__all__ = ["Cost", "LayerCost", "build", "count", "imagenet_names", "names", "parameters"]
