"""A cluster finds the nodes of its Slurm job, and looks only at the ranks it can see.

Tests dlguide.cluster.environment.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from dlguide.cluster import Cluster, RankError, environment, processes
from dlguide.cluster.environment import Allocation
from dlguide.errors import MissingComponentError

pytestmark = pytest.mark.ranks

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "4(x2)"}


@pytest.fixture
def slurm(monkeypatch):
    def inside(**more):
        for name, value in {**SLURM, **more}.items():
            monkeypatch.setenv(name, value)
        return environment.find_allocation("slurm")

    for name in SLURM:
        monkeypatch.delenv(name, raising=False)
    return inside


def test_nodes_and_ranks_are_those_of_the_job(slurm):
    assert environment.find_allocation(None) == Allocation("", 1, 0)
    found = slurm()
    assert (found, str(found)) == (Allocation("7", 2, 4), ", 2 nodes of Slurm job 7")
    assert [found.ranks_per_node(ranks) for ranks in (None, 2, 8)] == [4, 1, 4]
    with pytest.raises(ValueError, match="`ranks` must be a multiple of the 2 nodes"):
        found.ranks_per_node(3)
    assert slurm(SLURM_TASKS_PER_NODE="3", SLURM_JOB_NUM_NODES="1") == Allocation("7", 1, 3)
    with pytest.raises(ValueError, match=r"as many ranks on each node, got '4,2'"):
        slurm(SLURM_TASKS_PER_NODE="4,2")
    # without a job the number that was asked for is not touched
    assert [Allocation().ranks_per_node(ranks) for ranks in (None, 3)] == [None, 3]


def test_outside_a_job_it_is_said_how_to_get_into_one(slurm):
    with pytest.raises(ValueError, match=r"`inside` must be None outside a Slurm job.*--inside"):
        Cluster(inside="slurm")
    with pytest.raises(ValueError, match='`inside` must be None or "slurm"'):
        Cluster(inside="pbs")


def test_one_node_stays_on_loopback_and_several_do_not(slurm, monkeypatch, tmp_path):
    one = Allocation("7", 1, 2)
    assert one.listening() == ["--ip=127.0.0.1", "--location=127.0.0.1"]
    assert one.parent is None
    assert one.environment({"UCX_TLS": "sm,self"}) == {"UCX_TLS": "sm,self"}
    two = slurm()
    monkeypatch.setenv("DLGUIDE_ADDRESS", "10.1.2.3")
    assert two.listening() == ["--ip=10.1.2.3", "--location=10.1.2.3"]
    monkeypatch.chdir(tmp_path)
    assert two.parent == tmp_path
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert two.environment({"UCX_TLS": "sm,self", "A": "1"}) == {"A": "1"}
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert two.environment({"UCX_TLS": "tcp"}) == {"UCX_TLS": "tcp"}
    assert two.launcher(4)[1:] == ["-ppn", "4"]
    monkeypatch.setenv("DLGUIDE_MPIEXEC", str(tmp_path / "none"))
    with pytest.raises(MissingComponentError, match="There is no mpiexec"):
        two.launcher(4)


def test_address_is_one_that_others_can_reach(monkeypatch):
    monkeypatch.delenv("DLGUIDE_ADDRESS", raising=False)
    names = {"loopback first": ["127.0.1.1", "10.0.0.5"], "one": ["10.0.0.5"]}
    for found in names.values():
        monkeypatch.setattr("socket.gethostbyname_ex", lambda name, found=found: (name, [], found))
        assert environment.reachable_address() == "10.0.0.5"
    monkeypatch.setattr("socket.gethostbyname_ex", lambda name: (name, [], ["127.0.1.1"]))

    class NoWayOut:
        def __init__(self, *of_what): ...

        def __enter__(self): ...

        def __exit__(self, *why): ...

        def connect(self, address):
            raise OSError("unreachable")

    monkeypatch.setattr("socket.socket", NoWayOut)
    with pytest.raises(RuntimeError, match=r"by loopback only. Set DLGUIDE_ADDRESS"):
        environment.reachable_address()


def my_rank(wait_s=0.0):
    from mpi4py import MPI

    time.sleep(wait_s)
    return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)


@pytest.mark.timeout(240)
def test_ranks_of_another_machine_are_waited_for_and_their_end_is_noticed():
    with Cluster(ranks=2) as cluster:
        here = processes.machine_id()
        assert [each["machine"] for each in cluster.engines] == [here, here]
        far = dict(cluster.engines[1])
        cluster.engines[1] |= {"machine": "another", "pid": 2**22 + 1}  # no such pid here
        assert processes.local_pids(cluster.engines) == {0: cluster.engines[0]["pid"]}
        assert processes.living_ranks(cluster.engines) == [0]
        assert cluster.run(my_rank) == [3, 3]
        killer = threading.Timer(1.0, os.kill, (far["pid"], signal.SIGKILL))
        killer.start()
        # the launcher ends the ranks of this machine when one of another has died
        with pytest.raises(RankError) as caught:
            cluster.run(my_rank, wait_s=60.0)
        assert caught.value.ranks == (0,)
        assert cluster.run(my_rank) == [3, 3]
