"""Timings, limits of the machine, results of trainings, utilisation, progress, timelines."""

from dlguide.measure import horovod_timeline, limits
from dlguide.measure.progress import launched, report_progress
from dlguide.measure.timing import Ratio, Timing, ratio, timing
from dlguide.measure.training_result import TrainingResult, digest_of, steady_images_per_s
from dlguide.measure.utilisation import Utilisation, utilisation

__all__ = [
    "Ratio",
    "Timing",
    "TrainingResult",
    "Utilisation",
    "digest_of",
    "horovod_timeline",
    "launched",
    "limits",
    "ratio",
    "report_progress",
    "steady_images_per_s",
    "timing",
    "utilisation",
]
