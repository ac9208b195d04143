"""Frames of a road predicted by a GAN: six in, six out.

    outcomes = cluster.run(video.train, epochs=12)              # one Outcome per rank
    video.write(outcomes, "build/usecases/video")
    case.table(video.findings(outcomes))

Drawn drives of 32 pixels by default; `real=` takes KITTI tracking, `size=128` the guide's frames.
"""

from dlcourse.usecases.video.finding import findings, guide
from dlcourse.usecases.video.lending import lend
from dlcourse.usecases.video.outcome import Outcome, Score, judge
from dlcourse.usecases.video.settings import OPTIONS, check
from dlcourse.usecases.video.stepping import step
from dlcourse.usecases.video.training import train
from dlcourse.usecases.video.writing import films, frame_scores, rows, write

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
