"""Frames of a road predicted by a GAN: six in, six out.

    outcomes = cluster.run(video.train, epochs=12)              # one Outcome per rank
    video.write(outcomes, "build/usecases/video")
    case.table(video.findings(outcomes))

Drawn drives of 32 pixels by default; `real=` takes KITTI tracking, `size=128` the guide's frames.
"""

from dlguide.usecases.video.finding import findings, guide
from dlguide.usecases.video.lending import lend
from dlguide.usecases.video.outcome import Outcome, Score, judge
from dlguide.usecases.video.settings import OPTIONS, check
from dlguide.usecases.video.stepping import step
from dlguide.usecases.video.training import train
from dlguide.usecases.video.writing import films, frame_scores, rows, write

__all__ = [
    "OPTIONS",
    "Outcome",
    "Score",
    "check",
    "films",
    "findings",
    "frame_scores",
    "guide",
    "judge",
    "lend",
    "rows",
    "step",
    "train",
    "write",
]
