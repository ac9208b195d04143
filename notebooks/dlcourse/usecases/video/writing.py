"""What is written of a training: its numbers, pictures and a film."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dlcourse import pictures
from dlcourse.usecases.video.outcome import GAN, Outcome
from dlguide import files
from dlguide.errors import require

# Rows of the pictures, from the truth to the net; the mean of the past is in the numbers only.
ROWS = ("truth", "repeat", "flow", GAN)


def write(outcomes: Sequence[Outcome], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write numbers, pictures and a film of what the ranks returned.

    Args:
        outcomes: what `cluster.run(video.train, ...)` returned, one of each rank.
        folder: where to; made when it is missing.

    Returns:
        tuple: the files: `outcome.json`, `frames-0.png` and further clips, `scores.png`,
            `growth.png` where anything was trained, `film.gif`.

    Raises:
        ValueError: when there is no outcome, or the folder cannot be written to.
    """
    require(len(outcomes) > 0, "outcomes", "hold what a rank returned", list(outcomes))
    files.require_writable(folder, "folder")
    folder, first = Path(folder), outcomes[0]
    written = [folder / "outcome.json"]
    told = {"ranks": [each.as_dict() for each in outcomes], "summary": first.summary()}
    written[0].write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    def path(name: str) -> Path:
        written.append(folder / name)
        return written[-1]

    for clip in range(len(first.examples["truth"])):
        pictures.predicted_frames(rows(first), clip).savefig(path(f"frames-{clip}.png"))
    pictures.frame_scores(frame_scores(first)).savefig(path("scores.png"))
    if first.error:
        pictures.growth(first.error, first.sizes).savefig(path("growth.png"))
    path("film.gif").write_bytes(pictures.film(films(first), 0))
    return tuple(written)


def rows(outcome: Outcome) -> dict[str, np.ndarray]:
    """Give the rows of a picture: what was seen, what came, and what was predicted.

    Args:
        outcome: of any rank.

    Returns:
        dict: clips by name, for `pictures.predicted_frames`.
    """
    return {"seen": outcome.examples["past"]} | {name: outcome.examples[name] for name in ROWS}


def films(outcome: Outcome) -> dict[str, np.ndarray]:
    """Give the pictures of a film: the frames that were seen, then those that were predicted.

    Args:
        outcome: of any rank.

    Returns:
        dict: clips by name, for `pictures.film`.
    """
    past = outcome.examples["past"]
    return {name: np.concatenate([past, outcome.examples[name]], axis=1) for name in ROWS}


def frame_scores(outcome: Outcome) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Give PSNR and SSIM of each predictor, for `pictures.frame_scores`.

    Args:
        outcome: of any rank.

    Returns:
        dict: PSNR (dB) and SSIM by frame.
    """
    return {name: (score.psnr, score.ssim) for name, score in outcome.scores.items()}
