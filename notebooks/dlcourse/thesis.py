"""Our experiments beside Nyholm's thesis: its published rows and its research questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlguide import published
from dlguide.errors import require, require_count, require_known
from dlguide.training.experiments import (
    ExperimentResult,
    compare,
    table,
)
from dlguide.training.experiments.differences import require_one_recipe

HOROVOD = {"study": "thesis", "framework": "Horovod 0.15.2 + PyTorch"}
HOROVOD_TENSORFLOW = {"study": "thesis", "framework": "Horovod 0.15.2 + TensorFlow"}
QUESTIONS = (
    "RQ1: What do small batches per worker do to scaling, time and use of the hardware?",
    "RQ2: Does Horovod speed training up when it is scaled out?",
    "RQ3: What do large global batches do to quality, with a scaled rate and a warmup?",
)


# --- published rows ---


def published_row(columns: Mapping[str, Any], name: str = "accuracy") -> dict[str, Any]:
    """Find the one row of a published table with these values; texts may be their beginnings."""
    rows = published.load(name)
    for column in columns:
        require_known(column, rows[0], "columns")

    def matches(value: Any, wanted: Any) -> bool:
        both = isinstance(value, str) and isinstance(wanted, str)
        return value.startswith(wanted) if both else str(value) == str(wanted)

    found = [row for row in rows if all(matches(row[c], wanted) for c, wanted in columns.items())]
    then = "Name more columns." if found else "Look at `published.load`."
    must = f"match one row of {name}, {len(found)} match"
    require(len(found) == 1, "columns", must, dict(columns), then)
    return found[0]


def last_batch(samples: int, batch: int, workers: int) -> int:
    """Count the images of one worker in the last step of an epoch."""
    own = -(-require_count(samples, "samples") // require_count(workers, "workers"))
    return (own - 1) % require_count(batch, "batch") + 1


# --- research questions ---


@dataclass(frozen=True)
class Answer:
    """A research question of the thesis, our answer and its own."""

    question: str
    ours: str
    thesis: str

    def __str__(self) -> str:
        return f"{self.question}\n  Ours: {self.ours}\n  Thesis: {self.thesis}"


def small_batches(small: Sequence[ExperimentResult], large: Sequence[ExperimentResult]) -> Answer:
    """Answer RQ1: throughput, time and accuracy of a small and a large batch per worker."""
    less, more = small[0].config.batch_per_worker, large[0].config.batch_per_worker
    require(less < more, "small", f"have less than the {more} images of `large`", less)
    speeds = [table(each)[0].images_per_s for each in (small, large)]
    ours = f"With {less} or with {more} images per worker every run diverged."
    if all(speeds):
        took = [
            np.median([one.train_s[-1] for one in each if not one.diverged])
            for each in (small, large)
        ]
        ours = (
            f"With {less} images per worker instead of {more} the throughput is "
            f"{speeds[0] / speeds[1]:.2f} times as high, and training takes {took[0]:.2f} s "
            f"instead of {took[1]:.2f} s."
        )

    def efficiency(batch: int) -> float:
        columns = {**HOROVOD_TENSORFLOW, "batch_per_worker": batch}
        one, many = (published_row({**columns, "workers": n}, "throughput") for n in (1, 32))
        return many["images_per_s"] / 32 / one["images_per_s"]

    sixth = published_row({**HOROVOD, "experiment": 6, "workers": 32})
    seventh = published_row({**HOROVOD, "experiment": 7})
    thesis = (
        f"With 32 images per worker instead of 128 the efficiency at 32 workers is "
        f"{100 * efficiency(32):.0f} % instead of {100 * efficiency(128):.0f} %, and 90 epochs "
        f"take {seventh['wall_clock_hours']:g} h instead of {sixth['wall_clock_hours']:g} h; the "
        f"accuracy is {seventh['top1_percent']:g} % against {sixth['top1_percent']:g} %, one run "
        "each. Small batches allow more workers before the global batch is too large."
    )
    return Answer(QUESTIONS[0], f"{ours} {compare(small, large)}", thesis)


def speed_up(results: Sequence[ExperimentResult]) -> Answer:
    """Answer RQ2: speed-up and efficiency of several ranks."""
    speeds = {row.name: row.images_per_s for row in table(results, by="ranks")}
    counts = sorted({n for one in results if f"ranks {(n := one.config.ranks)}" in speeds})
    require(counts[0] == 1 and len(counts) > 1, "results", "be of 1 rank and of more", counts)
    base = speeds["ranks 1"]
    ours = ["Every run of 1 rank diverged: there is no speed to compare with."] * (base is None)
    for count in counts[1:] if base is not None else ():
        speed = speeds[f"ranks {count}"]
        if speed is None:
            ours.append(f"With {count} ranks every run diverged.")
            continue
        ours.append(
            f"{count} ranks are {speed / base:.2f} times as fast as one, an efficiency of "
            f"{100 * speed / base / count:.0f} %."
        )

    def times(framework: str) -> float:
        columns = {"study": "thesis", "framework": framework, "batch_per_worker": 128}
        one, many = (published_row({**columns, "workers": n}, "throughput") for n in (1, 32))
        return many["images_per_s"] / one["images_per_s"]

    many = published_row({**HOROVOD, "experiment": 6, "workers": 32})["wall_clock_hours"]
    one = published_row({"experiment": 5, "workers": 1})["wall_clock_hours"]
    thesis = (
        f"The throughput of 32 workers is {times('Horovod 0.15.2 + PyTorch'):.1f} times that of "
        f"one, with PyTorch alone {times('PyTorch'):.1f} times. The wall-clock time is "
        f"{one / many:.1f} times shorter ({one:g} h to {many:g} h), although every worker "
        "evaluated the whole test set."
    )
    return Answer(QUESTIONS[1], " ".join(ours), thesis)


def large_batches(
    baseline: Sequence[ExperimentResult],
    naive: Sequence[ExperimentResult],
    recipe: Sequence[ExperimentResult],
    without_warmup: Sequence[ExperimentResult] = (),
) -> Answer:
    """Answer RQ3: what a large global batch costs, and what the recipe recovers."""
    global_batches = [require_one_recipe(each)[0].config.global_batch for each in (naive, baseline)]
    loss, rest, gain = compare(naive, baseline), compare(recipe, baseline), compare(recipe, naive)
    times = global_batches[0] / global_batches[1]
    ours = [f"With a global batch {times:g} times as large {loss}", str(rest)]
    if without_warmup:
        ours.append(str(compare(without_warmup, baseline)))
    if gain.diverged[0] > gain.diverged[1]:
        ours.append(f"The recipe does harm: it diverges with more seeds than {gain.second}.")
    elif gain.clear and gain.mean < 0:
        ours.append(
            f"The recipe does harm: it loses {-100 * gain.mean:.2f} points on {gain.second}."
        )
    elif gain.clear:
        left = "no remaining loss is visible"
        if rest.clear:
            better = rest.mean > 0
            left = "it is even better than the baseline" if better else "a clear loss remains"
        ours.append(f"The recipe gains {100 * gain.mean:.2f} points on {gain.second}: {left}.")
    elif gain.diverged[0] == 0 and gain.diverged[1]:
        ours.append("Only the recipe does not diverge with any seed.")
    else:
        ours.append("Whether the recipe helps is not distinguishable from chance here.")

    def top1(experiment: int, workers: int, **columns: Any) -> float:
        wanted = {"experiment": experiment, "workers": workers, **columns}
        return published_row(wanted)["top1_percent"]

    guide = published_row({"study": "guide", "method": "collapsed decay"})
    one = top1(5, 1)
    thesis = (
        f"A global batch 32 times as large loses {top1(4, 1) - top1(4, 32):.2f} points when "
        f"nothing else changes, {one - top1(5, 32):.2f} with only the rate scaled, and "
        f"{one - top1(6, 32, **HOROVOD):.2f} with a warmup too, one run each. It names 8192 as the "
        "upper bound for ImageNet; but that bounds its recipe, not the data: the PRACE best "
        f"practice guide reaches {guide['top1_percent']:g} % with {guide['global_batch']}."
    )
    return Answer(QUESTIONS[2], " ".join(ours), thesis)
