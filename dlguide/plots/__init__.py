"""Plots of measurements and predictions.

Every function returns a matplotlib Figure, which a notebook shows when a cell ends with it;
`figure.savefig(path)` writes it to a file.
"""

from dlguide.plots.bench import allreduce, allreduce_shares, tuning
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, short_bytes
from dlguide.plots.prediction import prediction
from dlguide.plots.training import scaling, training

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "allreduce",
    "allreduce_shares",
    "figure",
    "prediction",
    "scaling",
    "short_bytes",
    "training",
    "tuning",
]
