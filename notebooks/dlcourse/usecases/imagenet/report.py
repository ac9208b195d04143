"""Results of the ImageNet case: branches, a picture, and findings compared with the guide's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlcourse import explained, pictures, storage
from dlcourse.usecases.imagenet.recipe import GUIDE, TrainingRecipe
from dlcourse.usecases.report import Finding
from dlguide import published
from dlguide.measure import TrainingResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Section 6.2.7: top-1 and top-5 after part 1 and after part 2 (percent).
PUBLISHED_TOP = ((75.6, 92.7), (76.1, 93.2))
FIRST_JPEG, REDUCED = 138e9 / 1.28e6, 42e9 / 1.28e6  # mean bytes of a picture, section 6.2.4


@dataclass(frozen=True)
class Branch:
    """One of the last parts of the recipe.

    Args:
        name: "line", "collapsed", or what alone it changes (`recipe.CHANGES`).
        run: its epochs, after the shared ones.
        top1: top-1 accuracy on the test pictures.
        top5: top-5 accuracy.
        won: test pictures that this net classifies correctly and the line's does not.
        lost: test pictures that only the line's classifies correctly.
        on_parts: top-1 of the net at its end on random parts of training pictures.
        on_whole: the same on whole training pictures.
    """

    name: str
    run: TrainingResult
    top1: float
    top5: float
    won: int
    lost: int
    on_parts: float
    on_whole: float

    @property
    def weights_digest(self) -> str:
        """SHA-256 of the weights at the end."""
        return self.run.weights_digest


@dataclass(frozen=True)
class Outcome:
    """The result on one rank.

    `why` is the reason for the device; `real` says that the pictures are ImageNet's.

    Args:
        shared_phase: the epochs before the branches, as far as this call trained them.
        line: the end of part 1: the rate falls on in its line.
        collapsed: part 2: plain pictures, twice the decay, the rate falls as a square.
        single: with `apart`, the endings that change one of these three alone.
    """

    rank: int
    ranks: int
    why: str
    data: str
    seed: int
    real: bool
    recipe: TrainingRecipe
    shared_phase: TrainingResult
    line: Branch
    collapsed: Branch
    single: tuple[Branch, ...] = ()

    @property
    def gain(self) -> float:
        """Gain of collapsed decay in top-1 (percentage points)."""
        return 100 * (self.collapsed.top1 - self.line.top1)

    def over_line(self, ending: Branch) -> tuple[float, float]:
        """Return the gain of an ending in top-1 and its standard error (percentage points).

        Both nets saw the same test pictures, so only those count on which they differ. The error
        is that of the test; it says nothing about how another training would end.

        Source:
            Q. McNemar, Psychometrika 12 (1947) 153-157.
        """
        pictures, net = self.recipe.test_samples, ending.won - ending.lost
        error = math.sqrt(ending.won + ending.lost - net**2 / pictures) / pictures
        return 100 * net / pictures, 100 * error

    def summary(self) -> str:
        """Summarise the result in a few lines."""
        recipe = self.recipe
        rows = {
            f"line to epoch {recipe.epochs:g}": self.line,
            f"collapsed from epoch {recipe.collapse_at:g}": self.collapsed,
            **{f"only {one.name} changed": one for one in self.single},
        }
        lines = [
            f"{recipe.net} on {self.data}: {recipe.samples} pictures, {recipe.classes} classes, "
            f"{recipe.workers} workers with {recipe.batch_per_worker} each, {self.ranks} ranks. "
            f"{self.why}"
        ]
        lines += [
            f"  {words:35} top-1 {100 * one.top1:.1f} %, top-5 {100 * one.top5:.1f} %"
            for words, one in rows.items()
        ]
        return "\n".join(lines) + (
            f"\n  collapsed decay: {self.gain:+.1f} points of top-1 (standard error of the test "
            f"{self.over_line(self.collapsed)[1]:.1f}); {recipe.paid:g} epochs were trained for "
            "both branches"
        )


def picture(outcome: Outcome) -> Figure:
    """Draw rate and accuracy of both branches with `pictures.recipe_curves`."""
    recipe = outcome.recipe
    steps = -(-recipe.samples // recipe.global_batch)
    rates, accuracies = {}, {}
    for name, schedule, branch in (
        ("line", recipe.part_1(), outcome.line),
        ("collapsed", recipe.part_2(), outcome.collapsed),
    ):
        rates[name] = schedule.rates.to_steps(steps).rates()
        runs = [run for run in (outcome.shared_phase, branch.run) if run.loss]  # trained here
        right = [accuracy for run in runs for accuracy in run.test_accuracy]
        epochs = [run.first_epoch + 1 + number for run in runs for number in range(len(run.loss))]
        accuracies[name] = (epochs, right)
    tested = recipe.tested or recipe.test_samples
    return pictures.recipe_curves(rates, accuracies, steps, recipe.collapse_at, tested)


def findings(outcomes: Sequence[Outcome]) -> list[Finding]:
    """Compare an outcome of the small version with section 6.2 of the guide, for `report.table`."""
    one, steps = outcomes[0], GUIDE.iterations()
    recipe, speed = one.recipe, one.shared_phase.images_per_s
    ours = recipe.iterations()
    (line, line5), (end, end5) = PUBLISHED_TOP
    hours = {row["configuration"]: row["hours"] for row in published.load("time_to_train")}
    node_h = hours["1x Xeon Platinum 8160 node"]
    row = next(each for each in explained.time_to_train().rows if each.workers == GUIDE.nodes)
    reduced, original = storage.demand(storage.GUIDE), storage.demand(storage.GUIDE_ORIGINAL_IMAGES)
    return [
        Finding(
            "collapsed decay",
            f"top-1 {line} -> {end} % ({end - line:+.1f} points), top-5 {line5} -> {end5} %",
            "guide 6.2.7",
            f"top-1 {100 * one.line.top1:.1f} -> {100 * one.collapsed.top1:.1f} % ({one.gain:+.1f} "
            f"points), top-5 {100 * one.line.top5:.1f} -> {100 * one.collapsed.top5:.1f} %",
            "One seed, as in the guide: the test alone makes a standard error of "
            f"{one.over_line(one.collapsed)[1]:.2g} points. Three things change at once in the "
            "last part; here the pictures also cease to be mirrored.",
        ),
        Finding(
            "global batch",
            f"{GUIDE.global_batch} = {GUIDE.nodes} nodes x {GUIDE.workers_per_node} x "
            f"{GUIDE.batch_per_worker}, rate up to {GUIDE.rate}",
            "guide 6.2.2, Table 5",
            f"{recipe.global_batch} = {recipe.nodes} x {recipe.workers_per_node} x "
            f"{recipe.batch_per_worker}, rate up to {recipe.rate:.3g}",
            "The batch of a worker is the guide's, so batch normalisation sees as many pictures. "
            "By the linear rule the rate would be "
            f"{GUIDE.rate * recipe.global_batch / GUIDE.global_batch:.2g}, too little for so few "
            "steps.",
        ),
        Finding(
            "epochs paid",
            f"{GUIDE.paid:g}: part 1 went to 90, part 2 began at {GUIDE.collapse_at:g} "
            f"(step {steps.snapshot} of {steps.warmup + steps.decay})",
            "guide 6.2.7 (says: epoch 85, 5 more)",
            f"{recipe.paid:g}, part 2 from {recipe.collapse_at:g} (step {ours.snapshot} of "
            f"{ours.warmup + ours.decay})",
            f"The file that part 2 loads is named after iteration {steps.snapshot}, and its result "
            f"after {steps.collapsed}: {GUIDE.collapse_at:g} and {GUIDE.collapse:g} epochs, not 85 "
            "and 5. It took 60 + 5 minutes: 76.1 % came after 65, not in an hour.",
        ),
        Finding(
            "time to train",
            f"~{node_h:.0f} h on one node, 1 h on {GUIDE.nodes}: {row.published:.0f} times",
            "guide 6.2.8, Table 6",
            f"{speed:.0f} pictures/s of {recipe.image} pixels on {one.ranks} ranks; the model "
            f"predicts {row.predicted:.0f} times for {GUIDE.nodes} nodes",
            f"One node of the guide makes {GUIDE.samples * GUIDE.epochs / node_h / 3600:.0f} "
            "pictures/s of 224 pixels with ResNet-50; another net and smaller pictures cannot be "
            "compared. The model describes the ring, not the whole machine; 400 and 1 h are "
            "rounded.",
        ),
        Finding(
            "input of a node",
            f"{1e-3 * REDUCED:.0f} kB a picture, {1e-6 * reduced.bytes_per_s_per_node:.1f} MB/s; "
            f"all nodes {1e-9 * reduced.bytes_per_s:.1f} GB/s, which typical shared file "
            "systems do not deliver",
            "guide 6.2.4",
            f"{speed:.0f} pictures/s would be {1e-6 * speed * FIRST_JPEG:.1f} MB/s of ImageNet's "
            "own files",
            f"33 kB are pictures made smaller for the LMDB; the published ones have "
            f"{1e-3 * FIRST_JPEG:.0f} kB, {1e-6 * original.bytes_per_s_per_node:.1f} MB/s a node. "
            f"A parallel file system gives the sum; what it may not give is "
            f"{original.opens_per_s:.0f} files opened in a second.",
        ),
    ]
