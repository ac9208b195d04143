"""What the guide found on the road, what came out here, and why the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlcourse import explained
from dlcourse.usecases.case import Finding
from dlcourse.usecases.imagenet.outcome import Outcome
from dlcourse.usecases.imagenet.road import GUIDE
from dlguide import published
from dlguide.errors import require
from dlguide.scaling import storage

# Section 6.2.7: top-1 and top-5 after part 1 and after part 2 (percent).
PUBLISHED_TOP = ((75.6, 92.7), (76.1, 93.2))
FIRST_JPEG, REDUCED = 138e9 / 1.28e6, 42e9 / 1.28e6  # mean bytes of a picture, section 6.2.4


def findings(outcomes: Sequence[Outcome], speedup: Any = None) -> list[Finding]:
    """Compare an outcome with section 6.2 of the guide.

    Args:
        outcomes: one for each rank.
        speedup: of the ranks over one process, from `usecases.speedup.measure`; None when it was
            not measured.

    Returns:
        list: of `case.Finding`.

    Raises:
        ValueError: when there is no outcome.
    """
    require(len(outcomes) > 0, "outcomes", "hold one for each rank", list(outcomes))
    first = outcomes[0]
    found = [_accuracy(first), _batch(first), _epochs(first), _time(first), _input(first)]
    return [*found, _speedup(speedup)] if speedup is not None else found


def _accuracy(one: Outcome) -> Finding:
    (line, line5), (end, end5) = PUBLISHED_TOP
    ours = (
        f"top-1 {100 * one.line.top1:.1f} -> {100 * one.collapsed.top1:.1f} % ({one.gain:+.1f} "
        f"points), top-5 {100 * one.line.top5:.1f} -> {100 * one.collapsed.top5:.1f} %"
    )
    what = "ImageNet" if one.real else f"{one.road.test_samples} made-up test pictures"
    return Finding(
        "collapsed decay",
        f"top-1 {line} -> {end} % ({end - line:+.1f} points), top-5 {line5} -> {end5} %",
        "guide 6.2.7",
        ours,
        f"{one.road.net} on {what}, one seed: one picture more or less is "
        f"{100 / one.road.test_samples:.2g} points. The guide's is one run too. Three things "
        "change at once in the last part; here the pictures also cease to be mirrored.",
    )


def _batch(one: Outcome) -> Finding:
    road = one.road
    return Finding(
        "global batch",
        f"{GUIDE.global_batch} = {GUIDE.nodes} nodes x {GUIDE.workers_per_node} x {GUIDE.batch}, "
        f"rate up to {GUIDE.rate}",
        "guide 6.2.2, Table 5",
        f"{road.global_batch} = {road.nodes} x {road.workers_per_node} x {road.batch}, rate up to "
        f"{road.rate:.3g}",
        "The batch of a worker is the guide's, so batch normalisation sees as many pictures. The "
        "number of workers is this machine's; by the linear rule the rate would be "
        f"{GUIDE.rate * road.global_batch / GUIDE.global_batch:.2g}"
        + (", as it is." if one.real else ", too little for so few steps."),
    )


def _epochs(one: Outcome) -> Finding:
    steps, ours = GUIDE.iterations(), one.road.iterations()
    return Finding(
        "epochs paid",
        f"{GUIDE.paid:g}: part 1 went to 90, part 2 began at {GUIDE.collapse_at:g} "
        f"(step {steps.snapshot} of {steps.warmup + steps.decay})",
        "guide 6.2.7 (says: epoch 85, 5 more)",
        f"{one.road.paid:g}, part 2 from {one.road.collapse_at:g} (step {ours.snapshot} of "
        f"{ours.warmup + ours.decay})",
        f"The file that part 2 loads is named after iteration {steps.snapshot}, and its result "
        f"after {steps.collapsed}: {GUIDE.collapse_at:g} and {GUIDE.collapse:g} epochs, not 85 "
        "and 5. It took 60 + 5 minutes: 76.1 % came after 65, not in an hour.",
    )


def _time(one: Outcome) -> Finding:
    hours = {row["configuration"]: row["hours"] for row in published.load("time_to_train")}
    node_h = hours["1x Xeon Platinum 8160 node"]
    node = GUIDE.samples * GUIDE.epochs / node_h / 3600
    row = next(each for each in explained.time_to_train().rows if each.workers == GUIDE.nodes)
    if one.images_per_s:
        where = f"{one.ranks} rank{'s' * (one.ranks != 1)}"
        ours = f"{one.images_per_s:.0f} pictures/s of {one.road.image} pixels on {where}"
    else:
        ours = "nothing was trained in this call"
    return Finding(
        "time to train",
        f"~{node_h:.0f} h on one node, 1 h on {GUIDE.nodes}: {row.published:.0f} times",
        "guide 6.2.8, Table 6",
        f"{ours}; the model predicts {row.predicted:.0f} times for {GUIDE.nodes} nodes",
        f"One node of the guide makes {node:.0f} pictures/s of 224 pixels with ResNet-50. "
        + ("The net is the same." if one.real else "Another net and smaller pictures: the two "
           "speeds say nothing of each other.")
        + " The model knows the ring, not the whole machine; 400 and 1 h are rounded.",
    )  # fmt: skip


def _input(one: Outcome) -> Finding:
    reduced, original = storage.demand(storage.GUIDE), storage.demand(storage.GUIDE_ORIGINAL_IMAGES)
    speed = one.images_per_s or 0.0
    return Finding(
        "input of a node",
        f"{1e-3 * REDUCED:.0f} kB a picture, {1e-6 * reduced.bytes_per_s_per_node:.1f} MB/s; "
        f"all nodes {1e-9 * reduced.bytes_per_s:.1f} GB/s, which typical shared file "
        "systems do not deliver",
        "guide 6.2.4",
        f"{speed:.0f} pictures/s would be {1e-6 * speed * FIRST_JPEG:.1f} MB/s of ImageNet's own "
        "files",
        f"33 kB are pictures made smaller for the LMDB; the published ones have "
        f"{1e-3 * FIRST_JPEG:.0f} kB, {1e-6 * original.bytes_per_s_per_node:.1f} MB/s a node. "
        f"A parallel file system gives the sum; what it may not give is "
        f"{original.opens_per_s:.0f} files opened in a second.",
    )


def _speedup(speedup: Any) -> Finding:
    return Finding(
        f"speed-up of {speedup.ranks} ranks",
        f"400 times on {GUIDE.nodes} nodes: {400 / GUIDE.nodes:.0%} efficiency",
        "guide 6.2.8, Table 6",
        f"{speedup.speedup:.2f} times ({speedup.efficiency:.0%}), predicted "
        f"{speedup.predicted_speedup:.2f} from its parts",
        "Ranks of one machine share memory, caches and clock; nodes do not, but their gradients "
        f"go over a network. Here the exchange of {1e-6 * speedup.nbytes:.2g} MB takes "
        f"{speedup.exchange_share:.0%} of a step.",
    )
