"""The device of each rank, chosen by all ranks together before anything is computed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from dlguide.errors import require_known
from dlguide.machine import accelerators
from dlguide.machine.accelerators import WISHES, Place, Seen

if TYPE_CHECKING:
    from dlguide.training.ranks import Alone


def choose(device: str, ranks: Alone) -> Place:
    """Find this rank's device and let TensorFlow use no other; all ranks call.

    Args:
        device: "auto" for a GPU of its own for every rank where there are so many, else the
            CPU; "gpu" and "cpu" ask for one of them.
        ranks: from `training.ranks.connect`.

    Returns:
        Place: of this rank; `.device` is what `fit` takes, `.why` says how it came to that.

    Raises:
        ValueError: the same on all ranks, when "gpu" is asked for and a node has fewer than ranks.
        MissingComponentError: the same on all ranks, when "gpu" is asked for and there is none.
        RuntimeError: when TensorFlow has already started with other devices.
    """
    require_known(device, WISHES, "device")
    mine = json.dumps(asdict(accelerators.seen()))
    answers = [json.loads(one) for one in ranks.gather(mine)]
    everyone = [Seen(one["host"], tuple(one["gpus"])) for one in answers]
    place = accelerators.assign(everyone, device)[ranks.rank]
    with ranks.together():
        accelerators.take(place)
    return place
