"""Nets: built the same way on every rank, and what they cost in flops, bytes and memory."""

from dlguide.nets.building import build, imagenet_names, names, parameters

__all__ = ["build", "imagenet_names", "names", "parameters"]
