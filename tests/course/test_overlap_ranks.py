"""Every schedule trains as one process does, on any number of ranks, and nobody hangs.

Tests dlcourse.parallel.overlap.
"""

import numpy as np
import pytest
from lanes import RANKS, long
from on_ranks import on_ranks

SIZES, STEPS, RATE = [3, 1, 50, 7], 3, 0.3
SCHEDULES = ["end", "layerwise", "overlapped", "priority"]


def trained(sizes, steps, rate):
    """Ranks with batches of different size and layers that take different times."""
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel.overlap import SCHEDULES, BucketedOverlap
    from dlcourse.waiting_ranks import SleepingLayers

    comm, found = MPI.COMM_WORLD, {}
    for dtype in ("float64", "float32"):
        for schedule in SCHEDULES:
            times = np.random.default_rng(comm.rank).random((2, len(sizes))) / 500
            net = SleepingLayers(*times.tolist(), sizes, rate, dtype)
            losses, orders = [], []
            with BucketedOverlap(net, comm, schedule) as trainer:
                for step in range(steps):
                    samples = np.arange(2 + comm.rank) + 10.0 * comm.rank + step
                    losses.append(trainer.step(samples, None))
            for step in trainer.steps:
                orders.append([e.layer for e in step.intervals if e.kind == "exchange"])
            found[f"{dtype} {schedule}"] = {
                "weights": [weights.tolist() for weights in net.weights],
                "losses": losses,
                "orders": orders,
                "kinds": [sorted({e.kind for e in step.intervals}) for step in trainer.steps],
                "sums": [[s.step_s, s.computing_s, s.exchange_s] for s in trainer.steps],
            }
    return found


def serial(ranks):
    weight, losses = 0.0, []
    for step in range(STEPS):
        each = [np.arange(2 + rank) + 10.0 * rank + step for rank in range(ranks)]
        losses.append([len(SIZES) * ((weight - own) ** 2).mean() / 2 for own in each])
        weight -= RATE * (weight - np.concatenate(each).mean())
    return weight, np.array(losses).T


@pytest.mark.parametrize("ranks", RANKS)
def test_every_schedule_is_the_serial_run(tmp_path, ranks):
    everyone = on_ranks(ranks, trained, tmp_path, sizes=SIZES, steps=STEPS, rate=RATE)
    weight, losses = serial(ranks)
    for name, first in everyone[0].items():
        dtype, schedule = name.split()
        limit = 1e-12 if dtype == "float64" else 1e-5
        for rank, one in enumerate(everyone):
            mine = one[name]
            assert mine["weights"] == first["weights"], "bit by bit the same on all ranks"
            assert [len(row) for row in mine["weights"]] == SIZES
            assert np.allclose(np.concatenate(mine["weights"]), weight, rtol=limit, atol=0), name
            assert np.allclose(mine["losses"], losses[rank], rtol=limit, atol=0), name
            assert mine["orders"] == first["orders"], "the same order of messages on all ranks"
            assert len(mine["orders"]) == STEPS - 1
            kinds = [["backward", "exchange", "forward", "update"]] * (STEPS - 1)
            assert mine["kinds"] == kinds
            for step_s, computing_s, exchange_s in mine["sums"]:
                hidden = schedule in ("overlapped", "priority")
                assert step_s >= computing_s + (0 if hidden else exchange_s) - 1e-9
        for order in first["orders"]:
            if schedule == "end":
                assert order == [None]
            elif schedule in ("layerwise", "overlapped"):
                assert list(dict.fromkeys(order)) == [3, 2, 1, 0]
            else:
                assert sorted(set(order)) == [0, 1, 2, 3]


def urgent_layers():
    """Rank 0 has all layers ready while the first is on its way; others have them later."""
    import threading
    from time import perf_counter

    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel.overlap import BackgroundAllreduce

    comm, layers, chosen = MPI.COMM_WORLD, [5, 4, 3, 0], threading.Event()

    def now():
        chosen.set()
        return perf_counter()

    arrays = {layer: np.full(5, 10.0 * layer + comm.rank) for layer in layers}
    thread = BackgroundAllreduce(comm, arrays, priority=True, now=now)
    if comm.rank == 0:
        thread.submit(5)
        chosen.wait()
        for layer in (4, 3, 0):
            thread.submit(layer)
    comm.Barrier()
    if comm.rank:
        for place in np.random.default_rng(comm.rank).permutation(4):
            thread.submit(layers[place])
    for layer in layers:
        thread.wait_for(layer)
    thread.close()
    sums = [[float(v) for v in set(arrays[layer])] for layer in layers]
    return {"order": [each.layer for each in thread.intervals], "sums": sums}


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_most_urgent_layer_goes_first_on_all_ranks(tmp_path, ranks):
    for one in on_ranks(ranks, urgent_layers, tmp_path, timeout_s=60):
        assert one["order"] == [5, 0, 3, 4]
        rest = sum(range(ranks))
        assert one["sums"] == [[10.0 * layer * ranks + rest] for layer in (5, 4, 3, 0)]


def measured():
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import overlap

    comm = MPI.COMM_WORLD
    found = {}
    for computes in ("host", "device"):
        rows = overlap.measure_ways(comm, 4096, 0.002, computes=computes, repeats=3)
        found[computes] = [
            [one.way, one.computes, one.ranks, one.nbytes, *one.together.seconds,
             *one.allreduce.seconds, *one.compute.seconds]
            for one in rows
        ]  # fmt: skip

    class Wrong(MPI.Intracomm):
        """Does not add."""

        def Allreduce(self, send, receive, *rest):
            if isinstance(send, np.ndarray):
                receive[...] = send

    try:
        overlap.measure_ways(Wrong(comm), 4096, 0.001, ways=["blocking"], repeats=1)
        found["wrong"] = "nothing"
    except RuntimeError as error:
        found["wrong"] = str(error)
    return found


@pytest.mark.parametrize("ranks", [2, 3, *long(1)])
def test_overlap_is_measured_alike_on_all_ranks(tmp_path, ranks):
    from dlcourse.parallel.overlap import WAYS

    everyone = on_ranks(ranks, measured, tmp_path, timeout_s=60)
    assert all(one == everyone[0] for one in everyone)
    for computes in ("host", "device"):
        rows = everyone[0][computes]
        assert [row[0] for row in rows] == list(WAYS)
        assert all(row[1:4] == [computes, ranks, 4096] and len(row) == 13 for row in rows)
    assert min(everyone[0]["device"][0][-3:]) >= 0.002, "the device computes as long as told"
    if ranks > 1:
        assert everyone[0]["wrong"] == (
            "The allreduce gave a wrong sum, so its time means nothing."
        )


def threads_refused():
    from mpi4py import MPI

    from dlcourse.parallel import overlap
    from dlcourse.parallel.overlap import BucketedOverlap
    from dlcourse.waiting_ranks import SleepingLayers

    comm, found = MPI.COMM_WORLD, []
    net = SleepingLayers([0.0], [0.0], [2])
    for call in (
        lambda: BucketedOverlap(net, comm, "overlapped"),
        lambda: overlap.measure_ways(comm, 64, 0.001, ways=["progress_thread"]),
    ):
        try:
            call()
        except ValueError as error:
            found.append(str(error))
    with BucketedOverlap(net, comm, "layerwise") as trainer:
        trainer.step([1.0, 3.0], None)
    overlap.measure_ways(comm, 64, 0.001, ways=["iallreduce"], repeats=1)
    return [*found, net.weights[0].tolist()]


def test_without_threads_in_mpi_those_who_need_them_say_so(tmp_path):
    funneled = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}
    for one in on_ranks(2, threads_refused, tmp_path, timeout_s=60, env=funneled):
        assert len(one) == 3
        for text in one[:2]:
            assert "must be MPI_THREAD_MULTIPLE for a thread that exchanges, got" in text
            assert "MPI_THREAD_FUNNELED" in text
        assert np.allclose(one[2], 0.2)


def failing_thread():
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel.overlap import BackgroundAllreduce

    thread = BackgroundAllreduce(MPI.COMM_WORLD, [np.zeros(2), None], priority=False)
    thread.submit(0)
    thread.wait_for(0)
    thread.submit(1)
    try:
        thread.wait_for(1)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def test_an_error_in_the_thread_reaches_the_main_thread(tmp_path):
    (text,) = on_ranks(1, failing_thread, tmp_path, timeout_s=60)
    assert text.startswith("The exchange of gradients failed: ")
