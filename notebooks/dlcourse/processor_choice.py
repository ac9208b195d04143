"""Choosing a processor as the 2019 guide argues: model, data, what there is, how far one is.

The guide gives no formula ("there is no generic answer"). Its argument is done here with numbers
that can be checked; `OUTDATED` has what no longer holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

from dlguide.errors import require, require_count, require_known
from dlguide.machine.processors import Processor, find

STAGES = ("develop", "produce")
ADAM_BYTES = 16  # a parameter with Adam in float32: weight, gradient, two moments, 4 bytes each
IMAGE_BYTES = 224 * 224 * 3  # an ImageNet image as 8-bit colours

OUTDATED = {
    "4.3": (
        "no benefit from reduced precision on Xeon",
        "8-bit integers since 2019 (VNNI), bfloat16 since 2020, matrix units since 2023 (AMX)",
    ),
}


@dataclass(frozen=True)
class ProcessorChoice:
    """One way to train, with what speaks for it and against it."""

    name: str
    kind: str
    count: int
    parts: int
    fits: bool
    flops_per_s: float
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.count} x {self.name}: {self.flops_per_s:.3g} flop/s at most"
        return "\n".join([head, *(f"  - {reason}" for reason in self.reasons)])


def choose(
    parameters: int,
    samples: int,
    available: Mapping[str, int],
    kept_bytes: int = 0,
    stage: str = "produce",
) -> tuple[ProcessorChoice, ...]:
    """Rank the processors that are available for a training with Adam on ImageNet's images.

    The guide's four points. Model: what does not fit into one processor is split over several, so
    that fewer copies work side by side. Data: a set that does not stay in the memory of the devices
    must come through the host's link or from disk all the time. Availability: the peak of all
    copies together. Stage: while developing, one processor is used, the one with the highest peak
    that holds the model. The rank is by peak, an upper limit.

    Args:
        kept_bytes: activations and working memory of a worker's batch (`models.memory`).
    """
    require_known(stage, STAGES, "stage")
    require(bool(available), "available", "name at least one processor", dict(available))
    need = ADAM_BYTES * require_count(parameters, "parameters")
    need += require_count(kept_bytes, "kept_bytes", least=0)
    data_bytes = IMAGE_BYTES * require_count(samples, "samples")
    choices = [
        _choice(find(name), require_count(count, f"available[{name!r}]"), stage, need, data_bytes)
        for name, count in available.items()
    ]
    return _compared(
        sorted(choices, key=lambda each: (not each.fits, -each.flops_per_s, each.name))
    )


def _choice(
    each: Processor, count: int, stage: str, need: float, data_bytes: float
) -> ProcessorChoice:
    memory = each.memory_bytes or 0.0
    used = 1 if stage == "develop" else count
    parts = math.ceil(need / memory) if memory else 0
    # to develop is to try one copy: it may take several processors when it must
    used = max(used, min(parts, count)) if stage == "develop" else used
    fits = 0 < parts <= count
    dtype = each.training_format()
    peak = each.flops_per_s[dtype] if dtype else 0.0
    copies = used // parts if fits else 0
    reasons = [_model_reason(need, memory, parts, count)]
    if fits:
        reasons.append(_data_reason(each, data_bytes, used * memory - copies * need))
    reasons.append(_peak_reason(each, dtype, used))
    if each.kind == "cpu" and each.year > 2019 and "bfloat16" in each.flops_per_s:
        claim, today = OUTDATED["4.3"]
        reasons.append(f"The guide (4.3) saw {claim}; today there are {today}.")
    if stage == "develop":
        reasons.append("While developing, one copy is enough: short runs, quick answers.")
    speed = copies * parts * peak
    return ProcessorChoice(each.name, each.kind, used, max(parts, 1), fits, speed, tuple(reasons))


def _model_reason(need: float, memory: float, parts: int, count: int) -> str:
    sizes = f"{need:.3g} bytes; the memory of one holds {memory:.3g}"
    if not memory:
        return "Its memory is not stated, so it is unknown whether the model fits."
    if parts == 1:
        return f"The model fits: a worker needs {sizes}. Data parallelism will do."
    if parts <= count:
        return (
            f"A worker needs {sizes}: {parts} together hold one copy (model parallelism). Their "
            "messages come on top, or the net is made smaller."
        )
    return f"A worker needs {sizes}: even all {count} together cannot hold the model."


def _data_reason(each: Processor, data_bytes: float, memory: float) -> str:
    size = f"{data_bytes:.3g} bytes"
    if each.kind == "cpu":
        where = "fits into their memory" if data_bytes <= memory else "must be read from disk"
        return f"The data set ({size}) {where}; there is no second memory to copy it to."
    if data_bytes <= memory:
        return f"The data set ({size}) fits into what the model leaves of the devices' memory."
    if each.host_bytes_per_s is None:
        return f"The data set ({size}) does not fit; it must be copied from the host all the time."
    seconds = data_bytes / each.host_bytes_per_s
    return (
        f"The data set ({size}) does not fit; through one PCIe link an epoch's copy takes "
        f"{seconds:.3g} s at least. Does it overlap with computing?"
    )


def _peak_reason(each: Processor, dtype: str | None, used: int) -> str:
    if dtype is None:
        return "No peak for training is stated."
    many = f"{used} with {each.flops_per_s[dtype]:.3g} flop/s in {dtype} each"
    balance = each.balance(dtype)
    if balance is None:
        return f"{many}."
    return f"{many}; a kernel needs {balance:.3g} flop for each byte of memory to get there."


def _compared(ranked: list[ProcessorChoice]) -> tuple[ProcessorChoice, ...]:
    """Add to each the share of its peak at which it would fall behind the next one."""
    found = []
    for each, behind in zip_longest(ranked, ranked[1:]):
        if behind is not None and each.fits and behind.fits and each.flops_per_s:
            share = behind.flops_per_s / each.flops_per_s
            more = (
                f"It must reach {share:.2g} of its peak to beat the full peak of the next one, "
                f"{behind.name}."
            )
            each = replace(each, reasons=(*each.reasons, more))
        found.append(each)
    return tuple(found)
