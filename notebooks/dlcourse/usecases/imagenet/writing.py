"""What the road leaves in a folder: the numbers of all ranks, and its picture."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlcourse import pictures
from dlcourse.usecases.imagenet.outcome import Outcome
from dlguide.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(outcomes: Sequence[Outcome], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write numbers and picture.

    Args:
        outcomes: one for each rank, in their order.
        folder: made when it is missing.

    Returns:
        tuple: `outcome.json` (a list, one entry for each rank) and `road.png`.

    Raises:
        ValueError: when there is no outcome.
    """
    require(len(outcomes) > 0, "outcomes", "hold one for each rank", list(outcomes))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "outcome.json"
    text = json.dumps([each.as_dict() for each in outcomes], indent=1)
    numbers.write_text(text + "\n", encoding="utf-8")
    picture(outcomes[0]).savefig(folder / "road.png")
    return numbers, folder / "road.png"


def picture(outcome: Outcome) -> Figure:
    """Draw rate, weight decay and accuracy of both endings.

    Args:
        outcome: of any rank; all have the same.

    Returns:
        Figure: see `pictures.recipe_curves`.
    """
    road = outcome.road
    steps = -(-road.samples // road.global_batch)
    rates, decays, accuracies = {}, {}, {}
    for name, schedule, ending in (
        ("line", road.part_1(), outcome.line),
        ("collapsed", road.part_2(), outcome.collapsed),
    ):
        rates[name] = schedule.rates.at(steps).rates()
        decays[name] = schedule.weight_decay.at(steps).rates()
        epochs = (*outcome.trunk.epochs, *ending.curve.epochs)
        right = (*outcome.trunk.test_accuracy, *ending.curve.test_accuracy)
        accuracies[name] = (epochs, right)
    return pictures.recipe_curves(rates, decays, accuracies, steps, road.collapse_at)
