"""Timings, limits of the machine, results of trainings, progress."""

from dlguide.measure import limits
from dlguide.measure.progress import launched, report_progress
from dlguide.measure.timing import Ratio, Timing, ratio, timing, timings
from dlguide.measure.training_result import TrainingResult, digest_of, steady_images_per_s

__all__ = [
    "Ratio",
    "Timing",
    "TrainingResult",
    "digest_of",
    "launched",
    "limits",
    "ratio",
    "report_progress",
    "steady_images_per_s",
    "timing",
    "timings",
]
