"""What came out of the road, on each rank: curves, two endings, and what they took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dlcourse.usecases.imagenet.road import Road


@dataclass(frozen=True)
class Curve:
    """Some epochs of a training, as far as this call or an earlier one saw them end.

    Args:
        first_epoch: epochs before them (count).
        loss: mean over each epoch.
        train_accuracy: fraction of right answers while training, on pictures as they were then.
        test_accuracy: after each epoch, on plain pictures (fraction).
        step_s: median of the steps' seconds on this rank; 0.0 where none was made (s).
        images_per_s: of all ranks while training (1/s).
        seconds: of training, without evaluation (s).
    """

    first_epoch: int
    loss: tuple[float, ...]
    train_accuracy: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    step_s: float
    images_per_s: float
    seconds: float

    @property
    def epochs(self) -> tuple[int, ...]:
        """Number of each epoch that ended, from 1."""
        return tuple(range(self.first_epoch + 1, self.first_epoch + len(self.loss) + 1))


@dataclass(frozen=True)
class Ending:
    """One way to end the road.

    Args:
        name: "line" or "collapsed".
        curve: its own epochs, after those that both have in common.
        top1: fraction of test pictures whose class was the net's first guess.
        top5: fraction whose class was among the first five.
        weights_digest: SHA-256 of the weights at the end.
    """

    name: str
    curve: Curve
    top1: float
    top5: float
    weights_digest: str


@dataclass(frozen=True)
class Outcome:
    """The road as this rank went it.

    Args:
        rank: this rank.
        ranks: of the training (count).
        threads: of this rank (count).
        device: "cpu" or "gpu".
        why: how it came to that device, a sentence.
        data: name of the pictures.
        seed: of pictures, weights and order.
        real: whether the pictures are ImageNet's.
        road: its numbers.
        trunk: the epochs that both endings have in common.
        line: the end of part 1: the rate falls on in its line.
        collapsed: part 2: plain pictures, twice the decay, the rate falls as a square.
    """

    rank: int
    ranks: int
    threads: int
    device: str
    why: str
    data: str
    seed: int
    real: bool
    road: Road
    trunk: Curve
    line: Ending
    collapsed: Ending

    @property
    def gain(self) -> float:
        """What collapsed decay adds to top-1 (percentage points)."""
        return 100 * (self.collapsed.top1 - self.line.top1)

    @property
    def images_per_s(self) -> float:
        """Of all ranks in the common epochs, in the call that trained them (1/s)."""
        return self.trunk.images_per_s

    def as_dict(self) -> dict[str, Any]:
        """Give plain numbers, ready for JSON."""
        return {**asdict(self), "gain": self.gain}

    def summary(self) -> str:
        """Say in a few lines what came out.

        Returns:
            str: for a person at a terminal.
        """
        road, count = self.road, self.road.workers
        lines = [
            f"{road.net} on {self.data}: {road.samples} pictures, {road.classes} classes, "
            f"{count} worker{'s' * (count != 1)} with {road.batch} each on {self.ranks} "
            f"rank{'s' * (self.ranks != 1)}. {self.why}",
            *(
                f"  {words:35} top-1 {100 * one.top1:.1f} %, top-5 {100 * one.top5:.1f} %"
                for words, one in (
                    (f"line to epoch {road.epochs:g}", self.line),
                    (f"collapsed from epoch {road.collapse_at:g}", self.collapsed),
                )
            ),
            f"  collapsed decay: {self.gain:+.1f} points of top-1; {road.paid:g} epochs were "
            f"trained for both endings",
        ]
        return "\n".join(lines)
