"""A mean throughput is taken apart exactly, and the load of a phase is the mean of its samples.

Tests dlcourse.phases and the tables first_batches and batch_log_p100.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dlcourse import phases
from dlcourse.phases import Utilisation
from dlguide import published

ROUNDING_S = 0.0005
PYTORCH, HOROVOD = "PyTorch 1.0.0", "Horovod 0.15.2 + PyTorch 1.0.0"
LOGS = published.load("first_batches")


def published_start(row):
    """The thesis' throughput, a mean over 200 batches, without the batch in its log."""
    (rate,) = (
        one["images_per_s"]
        for one in published.load("throughput")
        if one["study"] == "thesis"
        and all(one[k] == row[k] for k in ("framework", "workers", "batch_per_worker"))
    )
    images = row["workers"] * row["batch_per_worker"]
    return phases.from_mean(rate, images, 200, row["first_s"], ROUNDING_S)


@given(some.integers(2, 400), some.floats(0.01, 50), some.floats(0.01, 5), some.integers(1, 5000))
def test_first_and_others_add_up_to_all_steps(batches, first_s, others_s, images):
    whole = first_s + (batches - 1) * others_s
    start = phases.from_mean(images * batches / whole, images, batches, first_s)
    assert start.others_s == pytest.approx(others_s, rel=1e-6)
    assert start.seconds(batches) == pytest.approx(whole)
    assert start.images_per_s_with_first == pytest.approx(images * batches / whole)
    assert start.after(1) == pytest.approx(images / first_s)


def test_without_the_first_batch_the_lead_vanishes():
    found = {(row["framework"], row["workers"]): published_start(row) for row in LOGS}
    assert round(found[PYTORCH, 32].images_per_s) == 6688
    assert round(found[HOROVOD, 32].images_per_s) == 6560
    assert round(found[PYTORCH, 2].images_per_s) == 428
    assert round(found[HOROVOD, 2].images_per_s) == 419
    for workers in (2, 32):
        torch, horovod = found[PYTORCH, workers], found[HOROVOD, workers]
        assert torch.images_per_s_with_first < horovod.images_per_s_with_first
        # what is left is less than log and table of one program differ: 202 against 207 images/s
        assert 0.975 < horovod.images_per_s / torch.images_per_s < 1


def test_the_log_of_one_gpu_is_not_the_run_of_table_2():
    rows = published.load("batch_log_p100")
    (at_199,) = (row for row in rows if row["batch"] == 199)
    assert round(128 / at_199["mean_s"]) == 202  # Table 2 has 207.11
    # its running mean falls as it must: m(n + 1) = (n m(n) + t) / (n + 1), up to the rounding
    for before, after in pairwise(rows):
        count = before["batch"] + 1
        reckoned = (count * before["mean_s"] + after["seconds"]) / (count + 1)
        assert abs(reckoned - after["mean_s"]) < 2 * ROUNDING_S
    assert round(100 * rows[0]["data_s"] / rows[0]["seconds"]) == 47


# two cores, sampled from clock 100 on
RECORD = Utilisation(
    100.0,
    (0, 1),
    (1.0, 2.0, 4.0, 5.0, 6.0),
    ((0.0, 0.0), (100.0, 50.0), (100.0, 100.0), (20.0, 20.0), (4.0, 0.0)),
    ((0.0, "idle"), (1.0, "warm"), (4.5, "idle")),
)


def trained(started_unix_s, *phases):
    return SimpleNamespace(started_unix_s=started_unix_s, phases=phases)


def test_samples_count_for_the_phase_in_their_middle_and_by_their_length():
    run = trained(101.0, ("train", 0.0, 3.0), ("evaluate", 3.0, 4.0))
    assert phases.load_by_phase(RECORD, [run]) == pytest.approx(
        {"train": (75 + 2 * 100) / 3, "evaluate": 20.0, "idle": (0 + 2) / 2}
    )


def test_only_whole_samples_between_the_mark_idle_and_the_next_are_idle():
    marks = ((0.0, "cold"), (1.5, "idle"), (5.5, "warm"))
    record = replace(RECORD, marks=marks)
    assert phases.load_by_phase(record, []) == pytest.approx({"idle": (2 * 100 + 20) / 3})
    assert phases.load_by_phase(replace(RECORD, marks=()), []) == {}
