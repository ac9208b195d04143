"""What a step on many workers costs: messages, collectives, servers, waiting for the slowest."""

from dlguide.scaling.costs.collectives import (
    ALLREDUCES,
    allgather,
    allreduce,
    alltoall,
    best_allreduce,
    broadcast,
    hierarchical,
    parameter_server,
    reduce_scatter,
)
from dlguide.scaling.costs.laws import amdahl, gustafson, slowest
from dlguide.scaling.costs.link import Link

__all__ = [
    "ALLREDUCES",
    "Link",
    "allgather",
    "allreduce",
    "alltoall",
    "amdahl",
    "best_allreduce",
    "broadcast",
    "gustafson",
    "hierarchical",
    "parameter_server",
    "reduce_scatter",
    "slowest",
]
