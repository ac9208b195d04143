"""The load of each phase is the mean of the samples in it, weighted by their lengths.

Tests dlguide.measure.busy.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dlguide.measure import busy
from dlguide.measure.utilisation import Utilisation

# two cores, sampled from clock 100 on
RECORD = Utilisation(
    100.0,
    (0, 1),
    (1.0, 2.0, 4.0, 5.0, 6.0),
    ((0.0, 0.0), (100.0, 50.0), (100.0, 100.0), (20.0, 20.0), (4.0, 0.0)),
)


def trained(started_unix_s, *phases):
    return SimpleNamespace(started_unix_s=started_unix_s, phases=phases)


def test_samples_count_for_the_phase_in_their_middle_and_by_their_length():
    run = trained(101.0, ("train", 0.0, 3.0), ("evaluate", 3.0, 4.0))
    assert busy.by_phase(RECORD, [run]) == pytest.approx(
        {"train": (75 + 2 * 100) / 3, "evaluate": 20.0, "idle": (0 + 2) / 2}
    )


def test_two_trainings_share_their_phases_and_no_time_is_idle_when_there_is_none():
    first, second = trained(100.0, ("train", 0.0, 2.0)), trained(102.0, ("train", 0.0, 9.0))
    expected = (0 + 75 + 2 * 100 + 20 + 2) / 6
    assert busy.by_phase(RECORD, [first, second]) == pytest.approx({"train": expected})


def test_nothing_sampled_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        busy.by_phase(Utilisation(0.0, (0,), (), ()), [])
