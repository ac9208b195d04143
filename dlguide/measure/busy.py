"""How busy the cores were while ranks trained, evaluated, or did nothing."""

from __future__ import annotations

from collections.abc import Sequence

from dlguide.errors import require
from dlguide.measure.run import Run
from dlguide.measure.utilisation import Utilisation

IDLE = "idle"


def by_phase(record: Utilisation, runs: Sequence[Run]) -> dict[str, float]:
    """Give the mean load of all cores in each phase of a training.

    A sample belongs to the phase of the first rank at its middle, and counts as long as it
    lasted; what lies outside of all phases is idle.
    """
    require(len(record.time_s) > 0, "record", "hold at least one sample", 0, "Wait longer.")
    spans = sorted(
        (run.started_unix_s - record.started_unix_s + begin,
         run.started_unix_s - record.started_unix_s + end, name)
        for run in runs
        for name, begin, end in run.phases
    )  # fmt: skip
    spent: dict[str, list[float]] = {name: [0.0, 0.0] for _, _, name in spans}
    spent[IDLE] = [0.0, 0.0]
    before = 0.0
    for end, busy in zip(record.time_s, record.busy, strict=True):
        middle, length, before = (before + end) / 2, end - before, end
        phase = next((name for begin, stop, name in spans if begin <= middle < stop), IDLE)
        spent[phase][0] += length * sum(busy) / len(busy)
        spent[phase][1] += length
    return {name: load / length for name, (load, length) in spent.items() if length > 0}
