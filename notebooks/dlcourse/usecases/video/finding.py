"""What the guide found, what was found here, and why the two differ: with computed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlcourse import replicas
from dlcourse.usecases.case import Finding
from dlcourse.usecases.speedup import Speedup
from dlcourse.usecases.video.outcome import GAN, Outcome
from dlguide import models, published
from dlguide.errors import require
from dlguide.scaling import costs

_FLOAT = 4  # bytes of a number in float32
_COPIES = 4  # weight, gradient and Adam's two moments
_GUIDE = "guide 6.1"
_SINGLE_GB = 15.5  # guide 6.1, Table 3, third row: memory in use on a single P100


@dataclass(frozen=True)
class Published:
    """The guide's video case: what Tables 2, 3 and 4 print, and what follows from it."""

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
        """Time of one clip on one GPU, in whatever batches it took them (s)."""
        return 3600 * self.one_h / (self.sequences * self.epochs)

    @property
    def added_s(self) -> float:
        """Time of a step on all GPUs beyond that of one clip on one GPU (s).

        At least so much was added: one GPU alone made more updates for the same clips.
        """
        return 3600 * self.many_h / self.steps - self.clip_s * self.batch / self.gpus

    @property
    def through_first_nbytes(self) -> int:
        """What passes GPU 0 in a step: weights to the others, their gradients back (bytes)."""
        return 2 * (self.gpus - 1) * self.nbytes


def guide() -> Published:
    """Read the guide's case from the published tables.

    Returns:
        Published: Tables 2, 3 and 4 of section 6.1.
    """
    rows = published.load("problem_sizes")
    said = {row["quantity"]: row["value"] for row in rows if row["use_case"] == "video GAN"}

    def number(quantity: str) -> float:
        return float(str(said[quantity]).split()[0])

    hours = [
        row for row in published.load("time_to_train")
        if row["use_case"] == "video frame prediction GAN"
    ]  # fmt: skip
    one, many = sorted(hours, key=lambda row: row["devices_or_nodes"])
    return Published(
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
    """Put the guide's findings beside ours.

    Args:
        outcomes: what `cluster.run(video.train, ...)` returned, one of each rank.
        speedup: of `speedup.measure(video.step(...))`; None when it was not measured.

    Returns:
        list: of `case.Finding`, for `case.table`.

    Raises:
        ValueError: when there is no outcome.
    """
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


def _speed(theirs: Published, speedup: Speedup | None) -> Finding:
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


def _cause(theirs: Published, ours: Outcome, speedup: Speedup | None) -> Finding:
    share = theirs.added_s * theirs.steps / (3600 * theirs.many_h)
    speed = theirs.through_first_nbytes / theirs.added_s
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
        f"At least {1e-9 * theirs.through_first_nbytes:.1f} GB pass GPU 0 in a step, more where a "
        f"net is called more than once. In the {theirs.added_s:.2f} s a step that were added that "
        f"is {1e-9 * speed:.0f} GB/s; one NVLink one way has {1e-9 * link:.0f}, and would take "
        f"{theirs.through_first_nbytes / link / theirs.added_s:.0%} of that time. So copies one "
        "after the other are consistent with it; nobody measured them.",
    )


def _size(theirs: Published, ours: Outcome) -> Finding:
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


def _memory(theirs: Published, ours: Outcome) -> Finding:
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
        "The rest (all clips, gathered frames, what the allocator keeps) is not told. A single "
        f"P100 had ~{_SINGLE_GB} GB too, without anything that arrives: its batch is not told.",
    )


def _work(theirs: Published, ours: Outcome) -> Finding:
    made = len(ours.sizes) * (ours.clips[0] // ours.batch) * ours.batch
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
        "are smaller as told above, half of the epochs train coarser frames only, and the "
        "generator begins with a guess that the flow makes.",
    )


def _quality(ours: Outcome) -> Finding:
    gain_db, gain = ours.gain
    best = ours.best_trivial
    own = ours.scores[GAN]
    better = gain_db > 0 and gain > 0
    return Finding(
        "how good it is",
        "pictures in the paper; the guide prints no number",
        f"{_GUIDE}.4",
        f"PSNR {own.mean_psnr:.2f} dB ({gain_db:+.2f} against {best['psnr']}), SSIM "
        f"{own.mean_ssim:.3f} ({gain:+.3f} against {best['ssim']}), on drives held out",
        "A net has learnt something only where it beats what needs no learning: here it does."
        if better
        else "A net has learnt something only where it beats what needs no learning: here it does "
        "not yet. Train longer, on more drives.",
    )
