"""A notebook's kernel that is killed leaves nothing, at whatever moment it dies.

Half of the kernels have ranks on two hosts in a box, half on this machine. Two of five are killed
while they start, three while all ranks are in an allreduce. Processes are found by a variable that
they inherit, and in the networks they were in.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from jupyter_client import KernelManager
from lanes import long

from dlcourse import box
from dlguide.cluster import processes

pytestmark = pytest.mark.timeout(600)
MARKED = "DLGUIDE_KILL_TEST"
START = {
    "machine": "cluster = Cluster(ranks=2, oversubscribe=True)",
    "box": "hosts = box.hosts(2); cluster = Cluster(ranks=2, allocation=hosts.allocation())",
}
CELL = """
import os, pathlib
from dlcourse import box
from dlguide.cluster import Cluster
{start}
cluster.run(lambda comm: comm.Barrier())
(pathlib.Path(os.environ["DLGUIDE_KILL_TEST"]) / "ready").touch()
cluster.run(lambda comm: [comm.allreduce(1) for _ in range(10**9)])
"""
LONGEST_START_S, GONE_S = 60.0, 20.0


def marked(folder):
    """The living processes that inherited this folder from the kernel, and their networks."""
    pids, spaces = set(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARKED}={folder}\0".encode() in (entry / "environ").read_bytes():
                spaces.add(os.readlink(entry / "ns/net"))
                pids.add(int(entry.name))
        except OSError:
            continue
    return {pid for pid in pids if processes.identity(pid)}, spaces


def inside(spaces):
    """The living processes in some networks."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns/net") in spaces and processes.identity(int(entry.name)):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def machine():
    """Links, named networks, mounts and shared memory of this machine."""
    links = {f"link {each.name}" for each in Path("/sys/class/net").iterdir()}
    named = {f"network {each}" for each in Path("/run/netns").glob("*")}
    mounts = {f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines()}
    return links | named | mounts


def shared_memory():
    """What is in /dev/shm and no process of this machine has open."""
    opened = set()
    for entry in Path("/proc").glob("[0-9]*"):
        opened |= processes.shared_memory_of(int(entry.name))
    return set(Path("/dev/shm").glob("*")) - opened


def left_after_a_kill(kind, delay_s):
    """Kill a kernel; return what is left of it, and whether its ranks worked already.

    `delay_s` is counted from the cell's start on; None waits until the ranks work.
    """
    folder = Path(tempfile.mkdtemp(prefix="kill-"))
    before, memory = machine(), shared_memory()
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=os.environ | {MARKED: str(folder), "TMPDIR": str(folder)})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=LONGEST_START_S)
        client.execute(CELL.format(start=START[kind]))
        end = time.monotonic() + (LONGEST_START_S if delay_s is None else delay_s)
        ready = folder / "ready"
        while time.monotonic() < end and (delay_s is not None or not ready.exists()):
            time.sleep(0.01)
        worked = ready.exists()
        assert worked or delay_s is not None, "the ranks did not start"
        pids, spaces = marked(folder)
        spaces -= {os.readlink("/proc/self/ns/net")}
        kernel = manager.provisioner.process.pid
        assert kernel in pids
        if worked:
            assert len(pids) >= 5  # with controller, watchdog, launcher and ranks
            assert len(spaces) == (3 if kind == "box" else 0)  # the switch and two hosts
        os.kill(kernel, signal.SIGKILL)
        manager.provisioner.process.wait(10)
        deadline = time.monotonic() + GONE_S
        while True:
            found = {f"process {pid}" for pid in marked(folder)[0] | inside(spaces)}
            found |= {f"folder {each}" for each in folder.iterdir() if each.name != "ready"}
            found |= {str(each) for each in shared_memory() - memory} | (machine() - before)
            if not found or time.monotonic() > deadline:
                return found, worked
            time.sleep(0.05)
    finally:
        client.stop_channels()
        manager.cleanup_resources()
        for pid in marked(folder)[0]:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(("first", "kills"), long(*((first, 10) for first in range(0, 50, 10))))
def test_nothing_is_left_of_a_kernel_however_it_dies(first, kills):
    kinds = ["box", "machine"] if not box.support().denied else ["machine"]
    counts, left = Counter(), {}
    for number in range(first, first + kills):
        kind = kinds[number % len(kinds)]
        # the start takes some seconds, of which each part is hit
        delay_s = random.Random(number).uniform(0.2, 5.0) if number % 5 in (1, 2) else None
        found, worked = left_after_a_kill(kind, delay_s)
        counts[kind, "ranks worked" if worked else "was starting"] += 1
        if found:
            left[number, kind, delay_s] = sorted(found)
    print(dict(counts))
    assert not left
