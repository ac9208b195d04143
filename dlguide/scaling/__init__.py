"""What a cluster can do: messages, storages, throughput predicted, training simulated."""

from dlguide.scaling import (
    costs,
    demand,
    explained,
    peers,
    placement,
    predict,
    reading,
    simulate,
    staging,
    step,
    storage,
    strong,
)

__all__ = [
    "costs",
    "demand",
    "explained",
    "peers",
    "placement",
    "predict",
    "reading",
    "simulate",
    "staging",
    "step",
    "storage",
    "strong",
]
