"""Training: one loop for one process and for many ranks, its checkpoints, and its audit."""

from dlguide.collectives.communicator import SingleProcess
from dlguide.training import audit, checkpoint, optimizers, schedules
from dlguide.training.bottleneck import bottleneck
from dlguide.training.config import CheckpointConfig, FitConfig
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.step import train_step
from dlguide.training.trainer import fit

__all__ = [
    "CheckpointConfig",
    "DivergedError",
    "FitConfig",
    "SingleProcess",
    "audit",
    "bottleneck",
    "checkpoint",
    "connect",
    "fit",
    "optimizers",
    "schedules",
    "train_step",
]
