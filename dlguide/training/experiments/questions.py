"""The thesis' three research questions, answered in words that are computed from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require
from dlguide.training.experiments.against import one_row
from dlguide.training.experiments.differences import compare, grouped
from dlguide.training.experiments.record import Result
from dlguide.training.experiments.tables import table

_HOROVOD = {"study": "thesis", "framework": "Horovod 0.15.2 + PyTorch"}
_TENSORFLOW = {"study": "thesis", "framework": "Horovod 0.15.2 + TensorFlow"}
QUESTIONS = (
    "RQ1: What do small batches per worker do to scaling, time and use of the hardware?",
    "RQ2: Does Horovod speed training up when it is scaled out?",
    "RQ3: What do large global batches do to quality, with a scaled rate and a warmup?",
)


@dataclass(frozen=True)
class Answer:
    """A research question, our answer and the thesis' own, each in sentences."""

    question: str
    ours: str
    thesis: str

    def __str__(self) -> str:
        return f"{self.question}\n  Ours: {self.ours}\n  Thesis: {self.thesis}"


def small_batches(small: Sequence[Result], large: Sequence[Result]) -> Answer:
    """Answer RQ1: small against large batches per worker.

    Args:
        small: Results of the recipe with the small batch per worker.
        large: those with the large one; the same epochs and samples.

    Returns:
        Answer: throughput, seconds of training, accuracy.

    Raises:
        ValueError: when `small` has not the smaller batch.

    Source:
        The thesis, section 6.1; its Tables 1 and 7 and experiments 6 and 7.
    """
    less, more = small[0].setting.batch, large[0].setting.batch
    require(less < more, "small", f"have less than the {more} images of `large`", less)
    rows = table(small)[0], table(large)[0]
    if all(row.images_per_s for row in rows):
        times = rows[0].images_per_s / rows[1].images_per_s
        took = [
            _median([one.train_s[-1] for one in each if not one.diverged])
            for each in (small, large)
        ]
        ours = [
            f"With {less} images per worker in place of {more} there are {times:.2f} times as many "
            f"images/s, and training takes {took[0]:.2f} s, not {took[1]:.2f} s."
        ]
    else:
        ours = [f"With {less} or with {more} images per worker every run diverged."]
    ours.append(str(compare(small, large)))

    def efficiency(batch: int) -> float:
        one = one_row({**_TENSORFLOW, "batch_per_worker": batch, "workers": 1}, "throughput")
        many = one_row({**_TENSORFLOW, "batch_per_worker": batch, "workers": 32}, "throughput")
        return many["images_per_s"] / 32 / one["images_per_s"]

    sixth = one_row({**_HOROVOD, "experiment": 6, "workers": 32})
    seventh = one_row({**_HOROVOD, "experiment": 7})
    thesis = (
        f"With 32 images per worker in place of 128 the efficiency at 32 workers is "
        f"{100 * efficiency(32):.0f} %, not {100 * efficiency(128):.0f} %, and 90 epochs take "
        f"{seventh['wall_clock_hours']:g} h, not {sixth['wall_clock_hours']:g} h; the accuracy is "
        f"{seventh['top1_percent']:g} % against {sixth['top1_percent']:g} %, one run each. Small "
        "batches leave room for more workers before the global batch is too large."
    )
    return Answer(QUESTIONS[0], " ".join(ours), thesis)


def speed_up(results: Sequence[Result]) -> Answer:
    """Answer RQ2: throughput on more ranks than one.

    Args:
        results: that differ in `ranks` and seed only, 1 rank among them; with the same batch per
            worker as the thesis has it.

    Returns:
        Answer: speed-up and efficiency for each number of ranks.

    Raises:
        ValueError: when there is no run on 1 rank, or none on more.

    Source:
        The thesis, section 6.1; its Tables 2, 3, 8 and 9 and experiments 5 and 6.
    """
    rows = {row.name: row for row in table(results, by="ranks")}
    counts = sorted({one.setting.ranks for one in results if f"ranks {one.setting.ranks}" in rows})
    require(counts[0] == 1 and len(counts) > 1, "results", "be of 1 rank and of more", counts)
    base = rows["ranks 1"].images_per_s
    ours = ["Every run of 1 rank diverged: there is no speed to compare with."] * (base is None)
    for count in counts[1:] if base is not None else ():
        speed = rows[f"ranks {count}"].images_per_s
        if speed is None:
            ours.append(f"With {count} ranks every run diverged.")
            continue
        times = speed / base
        ours.append(
            f"{count} ranks are {times:.2f} times as fast as one, an efficiency of "
            f"{100 * times / count:.0f} %."
        )

    def times_of(framework: str) -> float:
        columns = {"study": "thesis", "framework": framework, "batch_per_worker": 128}
        one, many = (one_row({**columns, "workers": n}, "throughput") for n in (1, 32))
        return many["images_per_s"] / one["images_per_s"]

    hours = [
        one_row({**_HOROVOD, "experiment": 6, "workers": 32})["wall_clock_hours"],
        one_row({"experiment": 5, "workers": 1})["wall_clock_hours"],
    ]
    thesis = (
        f"32 workers make {times_of('Horovod 0.15.2 + PyTorch'):.1f} times the images/s of one, "
        f"with PyTorch alone {times_of('PyTorch'):.1f} times. The clock on the wall says "
        f"{hours[1] / hours[0]:.1f} times ({hours[1]:g} h to {hours[0]:g} h), where every worker "
        "also evaluated the whole test set."
    )
    return Answer(QUESTIONS[1], " ".join(ours), thesis)


def large_batches(
    baseline: Sequence[Result],
    naive: Sequence[Result],
    recipe: Sequence[Result],
    without_warmup: Sequence[Result] = (),
) -> Answer:
    """Answer RQ3: what a large global batch costs, and what the recipe gives back.

    Args:
        baseline: Results with the small global batch.
        naive: with the large one and the rate of the baseline.
        recipe: with the large one, the scaled rate and a warmup.
        without_warmup: with the large one and the scaled rate only; empty for none.

    Returns:
        Answer: differences to the baseline, and whether the recipe mends what the batch spoils.

    Raises:
        ValueError: when the recipes share no seeds.

    Source:
        The thesis, section 6.1 and experiments 4 to 6; the guide, section 6.2, for the upper
        bound.
    """
    times = grouped(naive)[0].setting.global_batch / grouped(baseline)[0].setting.global_batch
    spoilt, mended = compare(naive, baseline), compare(recipe, baseline)
    ours = [f"With a global batch {times:g} times as large {spoilt}", str(mended)]
    if without_warmup:
        ours.append(str(compare(without_warmup, baseline)))
    gained, plain = compare(recipe, naive), naive[0].setting.name
    if gained.diverged[0] > gained.diverged[1]:
        ours.append(f"The recipe does harm: it diverges with more seeds than {plain}.")
    elif gained.clear and gained.mean < 0:
        ours.append(f"The recipe does harm: it loses {-100 * gained.mean:.2f} points on {plain}.")
    elif gained.clear:
        rest = "what is left of the loss is clear" if mended.clear else "no loss is left to be seen"
        if mended.clear and mended.mean > 0:
            rest = "it is even better than the baseline"
        ours.append(f"The recipe gains {100 * gained.mean:.2f} points on {plain}: {rest}.")
    elif gained.diverged[0] == 0 and gained.diverged[1]:
        ours.append("Only the recipe comes through with every seed.")
    else:
        ours.append("That the recipe helps is not to be told from chance here.")

    first, wild = (one_row({"experiment": 4, "workers": n})["top1_percent"] for n in (1, 32))
    fifth = one_row({"experiment": 5, "workers": 1})["top1_percent"]
    hot = one_row({"experiment": 5, "workers": 32})["top1_percent"]
    good = one_row({**_HOROVOD, "experiment": 6, "workers": 32})["top1_percent"]
    guide = one_row({"study": "guide", "method": "collapsed decay"})
    thesis = (
        f"A global batch 32 times as large loses {first - wild:.2f} points when nothing else "
        f"changes, {fifth - hot:.2f} with the rate scaled alone, and {fifth - good:.2f} with a "
        "warmup too, one run each. It names 8192 as the upper bound for ImageNet; but that bounds "
        f"its recipe, not the data: the guide reaches {guide['top1_percent']:g} % with "
        f"{guide['global_batch']}."
    )
    return Answer(QUESTIONS[2], " ".join(ours), thesis)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
