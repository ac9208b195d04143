"""What a cluster can do: messages, storages, throughput predicted, training simulated."""

from dlguide.scaling import (
    costs,
    demand,
    peers,
    placement,
    predict,
    reading,
    simulate,
    staging,
    step,
    storage,
)

__all__ = [
    "costs",
    "demand",
    "peers",
    "placement",
    "predict",
    "reading",
    "simulate",
    "staging",
    "step",
    "storage",
]
