"""Strong and weak scaling: equal work, the right batches, predictions from the parts alone.

Tests dlcourse.bench.scaling with its command. No speed is tested, only that the numbers fit
together.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from lanes import long
from on_ranks import on_ranks
from typer.testing import CliRunner

from dlcourse.bench import scaling
from dlguide.cli import add_commands
from dlguide.cli.app import app
from dlguide.measure import Timing

add_commands()


def patient_messages():
    """Exchange in a ring through receivers that sleep; return what came and how long it took."""
    from time import perf_counter, process_time, sleep

    import numpy as np
    from mpi4py import MPI

    from dlcourse.bench.scaling import sleeping

    comm = sleeping(MPI.COMM_WORLD)
    came = np.empty(3)
    comm.Barrier()  # a rank that starts late would wait less for the others
    start, busy = perf_counter(), process_time()
    if comm.rank == 0:
        sleep(0.5)
    if comm.size > 1:
        request = comm.Isend(np.full(3, float(comm.rank)), (comm.rank + 1) % comm.size, 7)
        status = MPI.Status()
        comm.Recv(came, MPI.ANY_SOURCE, 7, status)
        request.Wait()
        source = status.Get_source()
    else:
        came[:], source = 0, 0
    comm.Barrier()
    return [source, came.tolist(), perf_counter() - start, process_time() - busy]


@pytest.mark.parametrize("ranks", [2, 3, *long(1)])
def test_patient_ranks_get_every_message_and_do_not_compute_meanwhile(ranks, tmp_path):
    for rank, (source, came, seconds, busy) in enumerate(
        on_ranks(ranks, patient_messages, tmp_path)
    ):
        assert source == (rank - 1) % ranks
        assert came == [source] * 3
        assert seconds >= 0.45
        assert busy < 0.5 * seconds


def test_prediction_is_the_slower_rank_and_the_exchange():
    found = [
        {"together": [0.10], "update": [0.001], "exchange": [0.005]},
        {"together": [0.12], "update": [0.001], "exchange": [0.007]},
    ]
    predicted = scaling.from_parts(found)
    assert predicted.compute_s == pytest.approx(0.11)
    assert predicted.straggler_s == pytest.approx(0.01)
    assert predicted.exposed_s == pytest.approx(0.006)
    assert predicted.seconds == pytest.approx(0.126)
    # two independent uniform times: the median of the larger one is sqrt(1/2)
    times = np.random.default_rng(0).uniform(1, 2, (2, 2001))
    ranks = [{"together": each.tolist(), "update": [0.0], "exchange": [0.0]} for each in times]
    assert scaling.from_parts(ranks).seconds == pytest.approx(1 + 0.5**0.5, abs=0.03)


def test_limit_of_a_step_is_the_slowest_rank_without_exchange():
    step, independent = Timing((0.4,) * 5), Timing((0.3,) * 5)
    row = scaling.ScalingRow(2, 16, step, 80.0, 1.6, None, None, 0.25, independent)
    assert row.bound.share(0.4) == pytest.approx(0.75)
    found = scaling.ScalingComparison("weak", "synchronous", "mlp", (row,), ())
    assert " 0.75" in str(found)


@pytest.mark.parametrize(
    ("mode", "option", "counts"),
    [("strong", "--global-batch", [1, 2]), *long(("weak", "--batch-per-rank", [2]))],
)
def test_synchronous_rows_have_the_mode_s_batches_and_fit_together(mode, option, counts, tmp_path):
    words = ["bench", "scaling", option, "16", "--ranks", ",".join(map(str, counts))]
    words += ["--steps", "4", "--rounds", "2", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / f"scaling-{mode}-synchronous.json").read_text())
    assert [row["ranks"] for row in record["rows"]] == counts
    for row in record["rows"]:
        p, median = row["ranks"], float(np.median(row["step"]["seconds"]))
        assert row["batch_per_rank"] == (16 // p if mode == "strong" else 16)
        assert len(row["step"]["seconds"]) == 4
        assert row["images_per_s"] == pytest.approx(p * row["batch_per_rank"] / median)
        assert row["speedup"] == pytest.approx(row["images_per_s"] * row["alone_s"] / 16)
        if p == 1:
            assert row["speedup"] == pytest.approx(1)
            assert row["predicted_s"] is row["independent"] is None
        else:
            parts = ("compute_s", "straggler_s", "exposed_s")
            summed = sum(row["predicted"][part] for part in parts)
            assert row["predicted_s"] == pytest.approx(summed)
            assert len(row["independent"]["seconds"]) == 4


def test_asynchronous_workers_count_every_update_and_their_staleness():
    found = scaling.measure((1, 2), "asynchronous", batch_per_rank=16, steps=6, rounds=1)
    one, two = found.rows
    assert (one.ranks, two.ranks) == (1, 2)
    assert one.speedup == 1
    assert one.staleness == one.predicted_staleness == 0  # no other worker changes the weights
    assert 0 < two.staleness <= 6
    assert two.predicted_staleness == pytest.approx(1, abs=0.3)
    assert two.ratio == pytest.approx(two.predicted_s / two.step.median)
    assert "staleness of 2 workers" in str(found)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ranks": (1, 4096)}, "`ranks` must be at most the .* cores"),
        ({"global_batch": 101}, "`global_batch` must be divisible by 1, 2, got 101"),
        (
            {"global_batch": 8, "batch_per_rank": 4},
            "`global_batch` must be None with .*one of the two",
        ),
        ({"steps": 2, "rounds": 3}, "`rounds` must be at most the 2 steps, got 3"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_ranks_start(asked, words, monkeypatch):
    monkeypatch.setattr(scaling, "Cluster", None)
    with pytest.raises(ValueError, match=words):
        scaling.measure(**asked)
