"""Which road is asked for, and whether it can be gone: decided before any rank starts."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from dlcourse.usecases.imagenet import data as pictures_of
from dlcourse.usecases.imagenet.road import GUIDE, SMALL, Road
from dlguide import models
from dlguide.errors import require, require_count, require_known


def check(
    real: str | os.PathLike | None = None,
    subset: bool = False,
    workers: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    net: str | None = None,
    batch: int | None = None,
    **others: Any,
) -> None:
    """Refuse what `train` would refuse, before any rank is started and without TensorFlow.

    Args:
        real: as in `train`, like all the others.
        subset: whether a part of ImageNet will do.
        workers: in all (count).
        epochs: of part 1 (epochs).
        samples: made-up pictures (count).
        net: name of the net.
        batch: pictures of a worker (count).
        others: what `train` checks itself.

    Raises:
        ValueError: when a setting is not what it must be.
        MissingComponentError: when ImageNet is not there.
        DataError: when it is damaged, or not all of it is there.
    """
    ranks = workers if isinstance(workers, int) and workers > 0 else SMALL.workers
    planned(real, subset, workers, epochs, samples, net, batch, ranks)


def planned(
    real: str | os.PathLike | None, subset: bool, workers: int | None, epochs: float | None,
    samples: int | None, net: str | None, batch: int | None, ranks: int,
) -> tuple[Road, pictures_of.Found | None]:  # fmt: skip
    """Make the road that was asked for."""
    if workers is None:
        two = SMALL.workers
        workers = two if two % ranks == 0 else ranks
    require_count(workers, "workers")
    then = f"Use {ranks * max(1, round(workers / ranks))}, or other ranks."
    must = f"be a multiple of the {ranks} ranks that play them"
    require(workers % ranks == 0, "workers", must, workers, then)
    require(real is not None or not subset, "subset", "be False without `real`", subset)
    found = None if real is None else pictures_of.find(real, subset)
    road = (SMALL if found is None else pictures_of.road_of(GUIDE, found)).on(workers)
    if batch is not None:
        road = road.each(batch)
    if epochs is not None:
        must, then = "be a number of at least 2", "One to begin, and one to end in two ways."
        fits = isinstance(epochs, int | float) and not isinstance(epochs, bool) and epochs >= 2
        require(fits and epochs == int(epochs), "epochs", f"{must}, whole", epochs, then)
        road = road.stretched(epochs / road.epochs)
    if samples is not None:
        must = "be None with `real`, all of which is used"
        require(found is None, "samples", must, samples)
        least = 2 * road.global_batch
        road = replace(road, samples=require_count(samples, "samples", least))
    if net is not None:
        small = [name for name in models.names("classifier") if "resnet" in name]
        known = [*models.names("imagenet"), *small]
        road = replace(road, net=require_known(net, known, "net"))
    steps = -(-road.samples // road.global_batch)
    short = min(road.warmup, road.collapse)
    must = f"have a step for the {short:g} epochs of warmup or last part, {steps} steps each"
    then = "Ask for more epochs, or for more pictures."
    require(round(short * steps) >= 1, "epochs", must, round(road.epochs), then)
    return road, found
