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
from dlguide.scaling.step import StepTime

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


def test_speedup_and_limit_of_a_step_follow_from_its_times():
    step, together, alone = Timing((0.4,) * 5), Timing((0.3,) * 5), Timing((0.5,) * 5)
    predicted = StepTime(2, 0.3, 0.0, 0.02)
    row = scaling.Speedup("mlp", 2, 1, 16, 8, 0.0, 16, alone, together, step, predicted)
    assert row.samples_per_s == pytest.approx(80)
    assert row.speedup == pytest.approx(2 * 0.5 / 0.4)  # twice the samples of the one process
    assert row.predicted_speedup == pytest.approx(2 * 0.5 / 0.32)
    assert row.bound.share(0.4) == pytest.approx(0.75)
    assert " 0.75" in str(row)


@pytest.mark.parametrize(
    ("mode", "option", "counts"),
    [("strong", "--global-batch", [1, 2]), *long(("weak", "--batch-per-rank", [2]))],
)
def test_rows_have_the_mode_s_batches_and_fit_together(mode, option, counts, tmp_path):
    words = ["bench", "scaling", option, "16", "--ranks", ",".join(map(str, counts))]
    done = CliRunner().invoke(app, [*words, "--steps", "4", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.count("speed-up") == len(counts)
    rows = json.loads((tmp_path / f"scaling-{mode}.json").read_text())
    assert [row["ranks"] for row in rows] == counts
    for row in rows:
        assert row["batch"] == (16 // row["ranks"] if mode == "strong" else 16)
        assert row["alone_batch"] == 16
        for part in ("alone", "together", "step"):
            assert len(row[part]["seconds"]) == 6  # two rounds of three
