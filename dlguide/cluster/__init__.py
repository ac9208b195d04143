"""MPI ranks on this machine: started from a cell or a script, watched, and cleaned up after."""

from dlguide.cluster import batch
from dlguide.cluster.errors import RankError
from dlguide.cluster.explain import explain
from dlguide.cluster.launch import Cluster

__all__ = ["Cluster", "RankError", "batch", "explain"]
