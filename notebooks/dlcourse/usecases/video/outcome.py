"""What a training of the video case leaves behind, and how predictions are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dlcourse.usecases.video.metrics import psnr, ssim
from dlguide.errors import require

GAN = "GAN"
# Plain, so that a rank's answer is small: this many clips are kept as pictures.
EXAMPLES = 4


@dataclass(frozen=True)
class Score:
    """How near the frames of one predictor are, for each of the frames that come next.

    Args:
        psnr: mean over clips (dB), one number a frame.
        ssim: mean over clips, one number a frame.
    """

    psnr: tuple[float, ...]
    ssim: tuple[float, ...]

    @property
    def mean_psnr(self) -> float:
        """Mean over frames (dB)."""
        return float(np.mean(self.psnr))

    @property
    def mean_ssim(self) -> float:
        """Mean over frames."""
        return float(np.mean(self.ssim))


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came out, as one rank saw it; scores and pictures are the same on all ranks.

    Args:
        rank: which one (index).
        ranks: how many trained (count).
        data: where the clips are from.
        size: height and width of a frame (pixels).
        drives: drives to learn from, and held out (counts).
        clips: to learn from, and held out (counts).
        epochs: passes over the clips, those of a checkpoint included (count).
        first_epoch: epochs that a checkpoint had done before (count).
        batch: clips of a step over all ranks (count).
        seed: of drives, first weights and order.
        sizes: of each epoch of this run the finest resolution that was trained (pixels).
        error: of each epoch of this run the mean error of those frames (0 to 1).
        fooled: the generator's loss in the game, likewise.
        judged: the discriminator's loss, likewise.
        parameters: of generator and discriminator (counts).
        nbytes: of gradients that each rank hands over in a step at full size (bytes).
        scores: of each predictor, "GAN" the last one.
        examples: some clips that are held out: "past" and "truth", then each predictor's frames:
            uint8, shape (clips, frames, size, size, 3).
        step_s: times of the steps at full size, the first of the run left out (s).
        load_s: time to make or read and to share the clips (s).
        train_s: time of all steps, compiling included (s).
        digest: of the weights, in hexadecimal.
    """

    rank: int
    ranks: int
    data: str
    size: int
    drives: tuple[int, int]
    clips: tuple[int, int]
    epochs: int
    first_epoch: int
    batch: int
    seed: int
    sizes: tuple[int, ...]
    error: tuple[float, ...]
    fooled: tuple[float, ...]
    judged: tuple[float, ...]
    parameters: tuple[int, int]
    nbytes: int
    scores: dict[str, Score]
    examples: dict[str, np.ndarray] = field(repr=False)
    step_s: tuple[float, ...] = field(repr=False)
    load_s: float
    train_s: float
    digest: str

    @property
    def best_trivial(self) -> dict[str, str]:
        """Name the best predictor that learns nothing, by PSNR and by SSIM."""
        others = {name: score for name, score in self.scores.items() if name != GAN}
        return {
            "psnr": max(others, key=lambda name: others[name].mean_psnr),
            "ssim": max(others, key=lambda name: others[name].mean_ssim),
        }

    @property
    def gain(self) -> tuple[float, float]:
        """What the GAN is better by than the best of the others: PSNR (dB) and SSIM."""
        own, best = self.scores[GAN], self.best_trivial
        return (
            own.mean_psnr - self.scores[best["psnr"]].mean_psnr,
            own.mean_ssim - self.scores[best["ssim"]].mean_ssim,
        )

    @property
    def clips_per_s(self) -> float:
        """Clips of all ranks in a second of steps at full size, 0.0 where none was made."""
        return self.batch / float(np.median(self.step_s)) if self.step_s else 0.0

    def summary(self) -> str:
        """Say in a few lines what came out.

        Returns:
            str: lines.
        """
        dB, similar = self.gain
        lines = [
            f"{self.data}: {self.clips[0]} clips of {self.drives[0]} drives, judged by "
            f"{self.clips[1]} clips of {self.drives[1]} others; {self.size} x {self.size} pixels",
            f"{'predictor':10} {'PSNR [dB]':>10} {'SSIM':>7}",
        ]
        for name, score in self.scores.items():
            lines.append(f"{name:10} {score.mean_psnr:10.2f} {score.mean_ssim:7.3f}")
        lines.append(f"The GAN against the best of the others: {dB:+.2f} dB, SSIM {similar:+.3f}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Give plain numbers and texts, ready for JSON, without the pictures."""
        plain = {name: value for name, value in vars(self).items() if name != "examples"}
        return plain | {"scores": {name: vars(score) for name, score in self.scores.items()}}


def judge(truth: np.ndarray, predicted: np.ndarray) -> Score:
    """Compare predicted frames with those that came.

    Args:
        truth: uint8, shape (clips, frames, rows, columns, 3).
        predicted: in the same form, as a screen would show them: whole numbers.

    Returns:
        Score: by frame.

    Raises:
        ValueError: when the shapes differ, or the predicted pixels are no whole numbers.
    """
    whole = np.asarray(predicted)
    require(whole.dtype == np.uint8, "predicted", "be uint8", whole.dtype.name, "Use `shown`.")
    return Score(
        tuple(map(float, psnr(truth, whole).mean(axis=0))),
        tuple(map(float, ssim(truth, whole).mean(axis=0))),
    )


def shown(frames: np.ndarray) -> np.ndarray:
    """Round pixels to what a screen can show."""
    return np.clip(np.rint(frames), 0, 255).astype(np.uint8)


def examples(
    past: np.ndarray, future: np.ndarray, predicted: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Take some clips for pictures, those in which most happens from the first frame to the
    last.
    """
    moved = np.abs(future[:, -1].astype(float) - past[:, 0]).mean(axis=(1, 2, 3))
    chosen = np.argsort(-moved, kind="stable")[:EXAMPLES]
    every = {"past": past, "truth": future, **predicted}
    return {name: frames[chosen] for name, frames in every.items()}
