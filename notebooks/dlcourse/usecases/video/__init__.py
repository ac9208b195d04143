"""Frames of a road predicted by a GAN: six in, six out.

    outcomes = cluster.run(video.train, epochs=12)              # one Outcome per rank
    video.write(outcomes, "build/usecases/video")
    report.table(video.findings(outcomes))

Drawn drives of 32 pixels by default; `real=` takes KITTI tracking, `size=128` the guide's frames.
"""

from dlcourse.usecases.video.replication import replicate
from dlcourse.usecases.video.report import (
    Outcome,
    Score,
    films,
    findings,
    frame_scores,
    guide,
    judge,
    rows,
    shown,
    write,
)
from dlcourse.usecases.video.training import OPTIONS, check, rehearse, stages, step, train

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
    "rehearse",
    "replicate",
    "rows",
    "shown",
    "stages",
    "step",
    "train",
    "write",
]
