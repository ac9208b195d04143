"""Timings, the result of a training, utilisation of cores, progress, Horovod's timeline."""

from dlguide.measure import horovod_timeline
from dlguide.measure.progress import launched, report_progress
from dlguide.measure.run import Run, steady_images_per_s
from dlguide.measure.timing import Ratio, Timing, ratio, timing
from dlguide.measure.utilisation import Utilisation, utilisation

__all__ = [
    "Ratio",
    "Run",
    "Timing",
    "Utilisation",
    "horovod_timeline",
    "launched",
    "ratio",
    "report_progress",
    "steady_images_per_s",
    "timing",
    "utilisation",
]
