"""Results of the video case: scores, the outcome of a training, files, findings and the guide's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse import pictures, replicas
from dlcourse.usecases.report import Finding
from dlcourse.usecases.speedup import Speedup
from dlguide import files, models, published
from dlguide.errors import require
from dlguide.scaling import costs

WINDOW = 11  # pixels of SSIM's window
GAN = "GAN"
# Plain, so that a rank's answer is small: this many clips are kept as pictures.
EXAMPLES = 4


@dataclass(frozen=True)
class Score:
    """PSNR (dB) and SSIM of one predictor for each predicted frame, means over clips."""

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
    """The result on one rank; scores and pictures are the same on all ranks.

    Args:
        rank: its index.
        ranks: number of ranks.
        data: origin of the clips.
        size: height and width of a frame (pixels).
        drives: drives to learn from, and held out .
        clips: to learn from, and held out .
        epochs: passes over the clips, those of a checkpoint included .
        first_epoch: epochs that a checkpoint had done before .
        global_batch: clips of a step on all ranks.
        seed: of drives, first weights and order.
        sizes: of each epoch of this run the finest resolution that was trained (pixels).
        error: of each epoch of this run the mean error of those frames (0 to 1).
        adversarial_loss: of the generator, likewise.
        discriminator_loss: likewise.
        parameters: of generator and discriminator .
        nbytes: gradients that each rank exchanges in a step at full size (bytes).
        scores: of each predictor, "GAN" the last one.
        examples: some clips that are held out: "past" and "truth", then each predictor's frames:
            uint8, shape (clips, frames, size, size, 3).
        step_s: times of the steps at full size, without the first (s).
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
    global_batch: int
    seed: int
    sizes: tuple[int, ...]
    error: tuple[float, ...]
    adversarial_loss: tuple[float, ...]
    discriminator_loss: tuple[float, ...]
    parameters: tuple[int, int]
    nbytes: int
    scores: dict[str, Score]
    examples: dict[str, np.ndarray] = field(repr=False)
    step_s: tuple[float, ...] = field(repr=False)
    load_s: float
    train_s: float
    digest: str

    @property
    def best_baseline(self) -> dict[str, str]:
        """Name of the best baseline, by PSNR and by SSIM."""
        others = {name: score for name, score in self.scores.items() if name != GAN}
        return {
            "psnr": max(others, key=lambda name: others[name].mean_psnr),
            "ssim": max(others, key=lambda name: others[name].mean_ssim),
        }

    @property
    def gain(self) -> tuple[float, float]:
        """Gain of the GAN over the best baseline: PSNR (dB) and SSIM."""
        own, best = self.scores[GAN], self.best_baseline
        return (
            own.mean_psnr - self.scores[best["psnr"]].mean_psnr,
            own.mean_ssim - self.scores[best["ssim"]].mean_ssim,
        )

    @property
    def clips_per_s(self) -> float:
        """Clips of all ranks per second of steps at full size; 0.0 if none was made."""
        return self.global_batch / float(np.median(self.step_s)) if self.step_s else 0.0

    def summary(self) -> str:
        """Summarise the result in a few lines."""
        dB, similar = self.gain
        lines = [
            f"{self.data}: {self.clips[0]} clips of {self.drives[0]} drives, evaluated on "
            f"{self.clips[1]} clips of {self.drives[1]} others; {self.size} x {self.size} pixels",
            f"{'predictor':10} {'PSNR [dB]':>10} {'SSIM':>7}",
        ]
        for name, score in self.scores.items():
            lines.append(f"{name:10} {score.mean_psnr:10.2f} {score.mean_ssim:7.3f}")
        lines.append(f"The GAN against the best of the others: {dB:+.2f} dB, SSIM {similar:+.3f}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the pictures."""
        plain = {name: value for name, value in vars(self).items() if name != "examples"}
        return plain | {"scores": {name: vars(score) for name, score in self.scores.items()}}


def judge(truth: np.ndarray, predicted: np.ndarray) -> Score:
    """Compare predicted frames with the true ones by PSNR and SSIM, frame by frame.

    PSNR = 10 log10(255^2 / mean squared error): 20 dB are an error of a tenth of the range, 40 dB
    of a hundredth. SSIM compares means, variances and covariance in windows of 11 x 11 pixels; a
    darker picture costs much in PSNR and little in SSIM; blur and noise cost both.

    Args:
        truth: uint8, shape (clips, frames, rows, columns, 3).
        predicted: the same, rounded as `shown` does.

    Raises:
        ValueError: if the shapes differ, frames are smaller than SSIM's window of 11 pixels, or
            the predicted pixels are not uint8.

    Source:
        Wang, Bovik, Sheikh and Simoncelli, IEEE Transactions on Image Processing 13 (2004),
        600-612: SSIM.
    """
    true, whole = np.asarray(truth), np.asarray(predicted)
    require(whole.dtype == np.uint8, "predicted", "be uint8", whole.dtype.name, "Use `shown`.")
    must = "have the shape (clips, frames, rows, columns, channels)"
    require(true.ndim == 5 and true.size > 0, "truth", must, true.shape)
    require(true.shape == whole.shape, "predicted", f"have the shape {true.shape}", whole.shape)
    large = min(true.shape[-3:-1]) >= WINDOW
    require(large, "truth", f"have frames of at least {WINDOW} x {WINDOW} pixels", true.shape)
    a, b = true.astype(float), whole.astype(float)
    with np.errstate(divide="ignore"):
        decibels = 10 * np.log10(255**2 / np.mean((a - b) ** 2, axis=(-3, -2, -1)))
    return Score(*(tuple(map(float, each.mean(axis=0))) for each in (decibels, _ssim(a, b))))


def _ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equation 13 of Wang et al., mean over the windows inside the frame and over channels.

    With means m, variances v and covariance c in each Gaussian window,

        SSIM = (2 m_a m_b + C1) (2 c + C2) / ((m_a^2 + m_b^2 + C1) (v_a + v_b + C2))

    In float64: TensorFlow's in float32 is off by 2e-4 for flat frames.
    """
    from scipy.ndimage import gaussian_filter

    border = WINDOW // 2

    def local(frames: np.ndarray) -> np.ndarray:
        means = gaussian_filter(frames, 1.5, radius=border, axes=(-3, -2))
        return means[..., border:-border, border:-border, :]

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_a, mean_b = local(a), local(b)
    variances = local(a * a) - mean_a**2 + local(b * b) - mean_b**2
    covariance = local(a * b) - mean_a * mean_b
    bright = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return np.mean(bright * (2 * covariance + c2) / (variances + c2), axis=(-3, -2, -1))


def shown(frames: np.ndarray) -> np.ndarray:
    """Round pixels to the 256 levels of a screen."""
    return np.clip(np.rint(frames), 0, 255).astype(np.uint8)


def examples(
    past: np.ndarray, future: np.ndarray, predicted: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Choose the clips for pictures that change most from the first frame to the last."""
    moved = np.abs(future[:, -1].astype(float) - past[:, 0]).mean(axis=(1, 2, 3))
    chosen = np.argsort(-moved, kind="stable")[:EXAMPLES]
    every = {"past": past, "truth": future, **predicted}
    return {name: frames[chosen] for name, frames in every.items()}


# Rows of the pictures; the other predictors are in the numbers only.
ROWS = ("truth", "flow", "fitted", GAN)


def write(outcomes: Sequence[Outcome], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write numbers, pictures and a film of the ranks' outcomes; return the files.

    Raises:
        ValueError: if there is no outcome, or the folder cannot be written to.
    """
    require(len(outcomes) > 0, "outcomes", "hold what a rank returned", list(outcomes))
    files.require_writable(folder, "folder")
    folder, first = Path(folder), outcomes[0]
    written = [folder / "outcome.json"]
    record = {"ranks": [each.as_dict() for each in outcomes], "summary": first.summary()}
    written[0].write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def path(name: str) -> Path:
        written.append(folder / name)
        return written[-1]

    for clip in range(len(first.examples["truth"])):
        pictures.predicted_frames(rows(first), clip).savefig(path(f"frames-{clip}.png"))
    pictures.frame_scores(frame_scores(first)).savefig(path("scores.png"))
    if first.error:
        pictures.growth(first.error, first.sizes).savefig(path("growth.png"))
    path("film.gif").write_bytes(pictures.film(films(first)))
    return tuple(written)


def rows(outcome: Outcome) -> dict[str, np.ndarray]:
    """Return the rows of `pictures.predicted_frames`: past, truth and predictions."""
    return {"seen": outcome.examples["past"]} | {name: outcome.examples[name] for name in ROWS}


def films(outcome: Outcome) -> dict[str, np.ndarray]:
    """Return the clips of `pictures.film`: past frames, then predicted ones."""
    past = outcome.examples["past"]
    return {name: np.concatenate([past, outcome.examples[name]], axis=1) for name in ROWS}


def frame_scores(outcome: Outcome) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return PSNR (dB) and SSIM of each predictor by frame, for `pictures.frame_scores`."""
    return {name: (score.psnr, score.ssim) for name, score in outcome.scores.items()}


_FLOAT = 4  # bytes of a number in float32
_COPIES = 4  # weight, gradient and Adam's two moments
_D_CALLS = 4  # of the discriminator in a step: true, generated, between them, for the generator
_GUIDE = "guide 6.1"
_SINGLE_GB = 15.5  # guide 6.1, Table 3, third row: memory in use on a single P100


@dataclass(frozen=True)
class GuideCase:
    """The guide's video case: Tables 2, 3 and 4, and what follows from them."""

    generator: int
    discriminator: int
    sequences: int
    batch: int
    epochs: int
    one_h: float
    many_h: float
    gpus: int
    first_nbytes: float
    other_nbytes: float

    @property
    def parameters(self) -> int:
        """Weights of both nets (count)."""
        return self.generator + self.discriminator

    @property
    def nbytes(self) -> int:
        """Gradients of both nets in float32 (bytes)."""
        return _FLOAT * self.parameters

    @property
    def speedup(self) -> float:
        """Of all GPUs over one."""
        return self.one_h / self.many_h

    @property
    def steps(self) -> int:
        """Steps of the whole training (count), each of `batch` clips."""
        return self.sequences * self.epochs // self.batch

    @property
    def clip_s(self) -> float:
        """Time of one clip on one GPU (s)."""
        return 3600 * self.one_h / (self.sequences * self.epochs)

    @property
    def added_s(self) -> float:
        """Time of a step on all GPUs beyond that of one clip on one GPU (s): a lower bound."""
        return 3600 * self.many_h / self.steps - self.clip_s * self.batch / self.gpus

    @property
    def through_first_nbytes(self) -> int:
        """Bytes through GPU 0 in a step: weights to the others, their gradients back."""
        return 2 * (self.gpus - 1) * self.nbytes

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that GPU 0 sends and receives in a step, by how the nets are exchanged.

        NCCL's broadcast and reduction pass data from GPU to GPU, so that GPU 0 sends and receives
        each net once. FutureGAN's published code calls the generator once in a step and the
        discriminator four times, and each call copies its net anew.
        """
        calls = _FLOAT * (self.generator + _D_CALLS * self.discriminator)
        return {
            "NCCL, each net once": 2 * self.nbytes,
            "copies, each net once": self.through_first_nbytes,
            "copies, at each call": 2 * (self.gpus - 1) * calls,
        }


def guide() -> GuideCase:
    """Read the guide's case (section 6.1, Tables 2, 3 and 4) from the published tables."""
    rows = published.load("problem_sizes")
    said = {row["quantity"]: row["value"] for row in rows if row["use_case"] == "video GAN"}

    def number(quantity: str) -> float:
        return float(str(said[quantity]).split()[0])

    hours = [
        row for row in published.load("time_to_train")
        if row["use_case"] == "video frame prediction GAN"
    ]  # fmt: skip
    one, many = sorted(hours, key=lambda row: row["devices_or_nodes"])
    return GuideCase(
        generator=int(number("generator parameters")),
        discriminator=int(number("discriminator parameters")),
        sequences=int(number("training sequences")),
        batch=int(number("batch")),
        epochs=int(number("epochs")),
        one_h=float(one["hours"]),
        many_h=float(many["hours"]),
        gpus=int(many["devices_or_nodes"]),
        first_nbytes=1e9 * number("memory of first GPU"),
        other_nbytes=1e9 * number("memory of other GPUs"),
    )


def findings(outcomes: Sequence[Outcome], speedup: Speedup | None = None) -> list[Finding]:
    """Compare the guide's findings with ours, for `report.table`."""
    require(len(outcomes) > 0, "outcomes", "hold what a rank returned", list(outcomes))
    theirs, ours = guide(), outcomes[0]
    return [
        _speed(theirs, speedup),
        _cause(theirs, ours, speedup),
        _size(theirs, ours),
        _memory(theirs, ours),
        _work(theirs, ours),
        _quality(ours),
    ]


def _speed(theirs: GuideCase, speedup: Speedup | None) -> Finding:
    ours, why = "not measured in this run", "Measure the speed-up of a step on ranks first."
    if speedup is not None:
        ours = (
            f"{speedup.speedup:.2f} times on {speedup.ranks} ranks, {speedup.efficiency:.0%} of "
            f"them; predicted {speedup.predicted_speedup:.2f}"
        )
        why = (
            f"Our step exchanges {1e-6 * speedup.nbytes:.3g} MB by a reduction in which all ranks "
            f"share the work: {speedup.exchange_share:.0%} of the predicted step. Theirs sends "
            f"{1e-6 * theirs.nbytes:.0f} MB from and to one GPU, {theirs.gpus - 1} times each way."
        )
    said = (
        f"{theirs.one_h:.0f} h on one P100, {theirs.many_h:.0f} h on {theirs.gpus}: "
        f"{theirs.speedup:.1f} times, {theirs.speedup / theirs.gpus:.0%} of them"
    )
    return Finding("speed-up", said, f"{_GUIDE}, Table 4", ours, why)


def _cause(theirs: GuideCase, ours: Outcome, speedup: Speedup | None) -> Finding:
    share = theirs.added_s * theirs.steps / (3600 * theirs.many_h)
    link = costs.link("NVLink 1").bytes_per_s
    shown = f"{1e-6 * ours.nbytes:.3g} MB of gradients a step"
    if speedup is not None:
        shown += f", {1e3 * speedup.predicted.exposed_s:.1f} ms for their exchange"
    return Finding(
        "why no more",
        f'"a very large model", costly aggregation; {share:.0%} of the {theirs.many_h:.0f} h '
        "are no share of one GPU's work",
        f"{_GUIDE}.4, Tables 2 and 4",
        shown,
        f"{theirs.added_s:.2f} s were added to each step. Over one NVLink one way "
        f"({1e-9 * link:.0f} GB/s) the exchange through GPU 0 takes, depending on how it is made: "
        + "; ".join(
            f"{name}: {1e-9 * nbytes:.1f} GB, {nbytes / link:.2f} s"
            for name, nbytes in theirs.moved.items()
        )
        + ". So bytes alone do not decide; nothing of it was measured.",
    )


def _size(theirs: GuideCase, ours: Outcome) -> Finding:
    fixed = models.memory(theirs.generator, batch=1, optimizer="adam").fixed
    copies = fixed / (_FLOAT * theirs.generator)
    own = sum(ours.parameters)
    return Finding(
        "size of the nets",
        f"{1e-6 * theirs.generator:.0f} M (~2.1 GB) and {1e-6 * theirs.discriminator:.0f} M "
        "(~1.3 GB) parameters",
        f"{_GUIDE}, Table 2",
        f"{1e-3 * ours.parameters[0]:.0f} k and {1e-3 * ours.parameters[1]:.0f} k parameters, "
        f"{1e-6 * _COPIES * _FLOAT * own:.2g} MB with gradients and Adam",
        f"{1e-6 * theirs.generator:.0f} M in float32 are "
        f"{1e-9 * _FLOAT * theirs.generator:.2f} GB; {1e-9 * fixed:.2f} GB are {copies:.0f} "
        "numbers each: weight, gradient, two moments of Adam. Ours must learn on two cores in "
        f"half a minute, so they are {theirs.parameters / own:.0f} times smaller.",
    )


def _memory(theirs: GuideCase, ours: Outcome) -> Finding:
    first, other = replicas.memory(theirs.gpus, theirs.nbytes, 0, 0)
    more, found = first.total - other.total, theirs.first_nbytes - theirs.other_nbytes
    own_first, own_other = replicas.memory(theirs.gpus, ours.nbytes, 0, 0)
    return Finding(
        "memory of the first GPU",
        f"~{1e-9 * theirs.first_nbytes:.1f} GB, the others ~{1e-9 * theirs.other_nbytes:.0f} GB",
        f"{_GUIDE}, Table 3",
        f"with replicas our nets would hold {1e-6 * own_first.total:.1f} MB on rank 0 and "
        f"{1e-6 * own_other.total:.1f} MB on another; with a reduction all ranks hold as much",
        f"GPU 0 keeps Adam's moments ({1e-9 * first.state:.1f} GB) and gradients that arrive "
        f"({1e-9 * first.arriving:.1f} GB): {1e-9 * more:.1f} of the {1e-9 * found:.1f} GB. "
        "The rest (all clips, gathered frames, what the allocator keeps) is not stated. A single "
        f"P100 had ~{_SINGLE_GB} GB too, without anything that arrives: of 16 GB, so it may just "
        "have been full.",
    )


def _work(theirs: GuideCase, ours: Outcome) -> Finding:
    made = len(ours.sizes) * (ours.clips[0] // ours.global_batch) * ours.global_batch
    speed = f"{ours.clips_per_s:.1f} clips/s at full size" if ours.step_s else "nothing trained"
    pixels = (128 / ours.size) ** 2
    return Finding(
        "work until it is trained",
        f"{theirs.sequences} sequences, {theirs.epochs} epochs: {theirs.steps:,} steps of "
        f"{theirs.batch} clips, {theirs.steps * theirs.batch / (3600 * theirs.one_h):.1f} clips/s "
        f"on one P100 and {theirs.steps * theirs.batch / (3600 * theirs.many_h):.1f} on "
        f"{theirs.gpus}",
        f"{_GUIDE}, Tables 2 and 4",
        f"{made:,} clips in {ours.train_s:.0f} s on {ours.ranks} ranks; {speed}",
        f"Frames of {ours.size} pixels have {pixels:.0f} times fewer of them than 128, the nets "
        "are smaller as stated above, half of the epochs train coarser frames only, and the "
        "generator begins with a guess that the flow makes.",
    )


def _quality(ours: Outcome) -> Finding:
    gain_db, gain = ours.gain
    best = ours.best_baseline
    own = ours.scores[GAN]
    better = gain_db > 0 and gain > 0
    return Finding(
        "how good it is",
        "pictures in the paper; the guide prints no number",
        f"{_GUIDE}.4",
        f"PSNR {own.mean_psnr:.2f} dB ({gain_db:+.2f} against {best['psnr']}), SSIM "
        f"{own.mean_ssim:.3f} ({gain:+.3f} against {best['ssim']}), on drives held out",
        "A net is worth its training where it beats what needs no net: here it does."
        if better
        else "A net is worth its training where it beats what needs no net: here it does not yet. "
        "Train longer, on more drives.",
    )
