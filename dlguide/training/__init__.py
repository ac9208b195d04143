"""Training: one loop for one process and for many ranks, and its checkpoints."""

from dlguide.training import checkpoint
from dlguide.training.fit import fit

__all__ = ["checkpoint", "fit"]
