"""Training: one loop for one process and for many ranks, its checkpoints, and its audit."""

from dlguide.training import audit, checkpoint, optimizers, schedules
from dlguide.training.bottleneck import bottleneck
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.fit import fit

__all__ = [
    "DivergedError",
    "audit",
    "bottleneck",
    "checkpoint",
    "connect",
    "fit",
    "optimizers",
    "schedules",
]
