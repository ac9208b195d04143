"""Pictures of what was measured.

Every function returns a matplotlib Figure, which a notebook shows when a cell ends with it, and
`path` writes it to a file.
"""

from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure
from dlguide.plots.training import scaling, training, utilisation

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "figure",
    "scaling",
    "training",
    "utilisation",
]
