"""Answers on ranks and in a notebook's kernel: what does not end is stopped, and both live on.

Tests dlguide.exercises.on_ranks, and `check` where it runs on ranks, as below `%%px`.
"""

from __future__ import annotations

import queue
import sys
import time
from types import ModuleType

import cloudpickle
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.exercises import on_ranks, record
from dlguide.exercises.frames import Stopped


@pytest.fixture(scope="module")
def cluster():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        yield cluster
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DLGUIDE_STRICT_EXERCISES", raising=False)


def all_loop(comm):
    while True:
        time.sleep(0.001)


def all_loop_in_collectives(comm):
    while True:
        comm.allreduce(1)


def one_loops_and_one_waits(comm):
    while comm.rank == 0:
        time.sleep(0.001)
    comm.Barrier()


def one_prints(comm):
    while comm.rank == 1:
        print("x" * 1000)
    comm.Barrier()


def one_leaves(comm):
    if comm.rank == 1:
        sys.exit(3)
    comm.Barrier()


BAD = {
    all_loop: "did not end within 1 s",
    all_loop_in_collectives: "did not end within 1 s",
    one_loops_and_one_waits: r"did not end within 1 s \(line 3 of `one_loops_and_one_waits`\) on",
    one_prints: r"printed more than 100000 characters \(line 3 of `one_prints`\) on rank 1",
    one_leaves: r"called sys.exit\(3\).* on rank 1",
}


@pytest.mark.parametrize("answer", BAD, ids=lambda each: each.__name__)
def test_bad_answer_on_ranks_is_stopped_and_the_cluster_lives_on(answer, cluster, capsys):
    with pytest.raises(Stopped, match=BAD[answer]):
        on_ranks.run(cluster, on_ranks._call, answer, [(), ()], limit_s=1.0)
    assert len(capsys.readouterr().out) < 300_000
    assert on_ranks.results(cluster, lambda comm, own: comm.allreduce(own), [(1,), (2,)]) == [3, 3]


def waits_long(comm):
    if comm.rank == 1:
        for _ in range(150):
            time.sleep(0.01)
    comm.Barrier()
    return comm.rank


def test_a_rank_that_waits_for_another_is_not_stopped(cluster):
    # rank 1 has no more time than it needs, rank 0 waits as long; none of that counts for rank 0
    came = on_ranks.run(cluster, on_ranks._call, waits_long, [(), ()], limit_s=30.0)
    assert came == [0, 1]


def test_the_verdict_names_the_rank_and_the_notebook_goes_on(cluster, capsys, monkeypatch):
    module = ModuleType("dlguide.exercises.nb99")
    module.exercise_99_1 = lambda answer, ranks: on_ranks.run(
        ranks, on_ranks._call, answer, [(), ()], limit_s=1.0
    )
    monkeypatch.setattr(exercises, "_module", {"99": module}.__getitem__)
    assert not exercises.check("99-1", one_loops_and_one_waits, cluster)
    shown = capsys.readouterr().out
    assert "✘ Exercise 99-1: your answer did not end within 1 s (line 3 of" in shown
    assert "on rank 0." in shown


def check_here(rank_right):
    """What a cell below `%%px` does: check on this rank an answer that is right on some."""
    import contextlib
    import io
    from types import ModuleType

    from mpi4py import MPI

    from dlguide import exercises

    module = ModuleType("dlguide.exercises.nb99")
    module.exercise_99_1 = lambda answer: exercises.expect(answer, "yes", answer, "Look again.")
    exercises._module = {"99": module}.__getitem__
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        right = exercises.check("99.1", rank_right[MPI.COMM_WORLD.rank])
    return right, shown.getvalue()


def test_below_px_each_rank_checks_its_own_and_rank_0_is_kept(cluster):
    kept = record.load()
    (first, shown), (second, another) = cluster.run(check_here, [True, False])
    assert (first, second) == (True, False)
    assert shown == "✔ Exercise 99-1 is right on rank 0.\n"
    assert another == "✘ Exercise 99-1: Expected: yes. Came: False. Look again.\n"
    assert kept == {}


def test_below_px_one_rank_alone_checks_without_waiting(cluster):
    ((right, shown),) = cluster.run_on([1], check_here, [False, True])
    assert right
    assert "right on rank 1" in shown


# --- in a notebook's kernel ----------------------------------------------------------------------

PREPARE = """
import itertools, os, sys, time
from types import ModuleType
from dlguide import exercises

module = ModuleType("dlguide.exercises.nb99")
module.exercise_99_1 = exercises.limit(1.0)(lambda answer: exercises.expect(answer() == 3, "3", 0))
exercises._module = {"99": module}.__getitem__

def loop():
    while True:
        pass

def flood():
    while True:
        print("x" * 1000)

def past():
    while True:
        os.write(1, b"x" * 1000)
"""
CELLS = {
    "loop": "did not end within 1 s (line ",
    "flood": "printed more than 100000 characters",
    "past": "printed more than 100000 characters",
    "lambda: time.sleep(1000)": "did not end within 1 s (line 1 of a lambda)",
    "lambda: sys.exit(1)": "called sys.exit(1)",
    "lambda: exit()": "which would end the notebook",
    "lambda: os._exit(1)": "called os._exit(1)",
    "lambda: [0] * 10**12": "MB of memory",
    "lambda: 3": "✔ Exercise 99-1 is right",
}


@pytest.fixture(scope="module")
def kernel():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(client, code):
    """Run a cell; return what it printed and whether it went well."""
    asked = client.execute(code)
    printed = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=120)
        except queue.Empty:
            pytest.fail(f"the kernel does not answer to {code}")
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    reply = client.get_shell_msg(timeout=120)
    return "".join(printed), reply["content"]["status"]


@pytest.mark.parametrize("answer", CELLS)
def test_whatever_an_answer_does_the_kernel_lives_on(answer, kernel):
    manager, client = kernel
    assert execute(client, f"kept = 42{PREPARE}")[1] == "ok"
    shown, status = execute(client, f'exercises.check("99-1", {answer});')
    assert status == "ok"
    assert CELLS[answer] in shown
    assert len(shown) < 300_000
    assert execute(client, "import threading; print(kept, threading.active_count())")[1] == "ok"
    assert manager.is_alive()
