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
from dlguide.scaling.costs.links import fitted, link, link_names

__all__ = [
    "ALLREDUCES",
    "Link",
    "allgather",
    "allreduce",
    "alltoall",
    "amdahl",
    "best_allreduce",
    "broadcast",
    "fitted",
    "gustafson",
    "hierarchical",
    "link",
    "link_names",
    "parameter_server",
    "reduce_scatter",
    "slowest",
]
