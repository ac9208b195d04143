"""One training step from its parts, and a whole training from its steps."""

from dlguide.scaling.step.overlapping import exposed, exposed_equal
from dlguide.scaling.step.parts import Step, predict, roofline_s
from dlguide.scaling.step.whole import Training, not_divided, training

__all__ = [
    "Step",
    "Training",
    "exposed",
    "exposed_equal",
    "not_divided",
    "predict",
    "roofline_s",
    "training",
]
