"""The roof of this machine, measured, and what is placed under it.

`measure` finds peaks and bandwidth, `place` says what limits a kernel, `predict` computes a peak
from clock, width and units.
"""

from dlguide.machine.roofline.measured import Roof, measure
from dlguide.machine.roofline.placed import Placed, place
from dlguide.machine.roofline.predicted import predict

__all__ = ["Placed", "Roof", "measure", "place", "predict"]
