"""Recipes of 2019 put threads where Intel's runtime did, and faults are shown at their place.

Tests dlcourse.recipes_2019 and `dlguide.machine.imagine`.

`intel_affinity.json` holds what Intel's own runtime library of 2019 (intel-openmp 2019.0) reported
with `verbose` for machines described to it by a file: machine, KMP_AFFINITY, threads, mask of the
process, the CPUs of each thread.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import recipes_2019
from dlcourse.recipes_2019 import parse_kmp
from dlguide.machine import imagine, threads

RUNTIME = json.loads((Path(__file__).parent / "intel_affinity.json").read_text())
MACHINES = {
    "2x4": imagine(2, 4),
    "2x4ht": imagine(2, 4, 2),
    "2x4ht even/odd": imagine(2, 4, 2, "turns"),
    "1x4ht": imagine(1, 4, 2),
    "2x4 even/odd": imagine(2, 4, 1, "turns"),
}
RECIPE = "granularity=fine,compact,1,0"
GUIDE = {"OMP_NUM_THREADS": 22, "MLSL_NUM_SERVERS": 2, "MLSL_SERVER_AFFINITY": "39,38,43,42"}


def usable(machine, mask):
    if mask is None:
        return machine.cores
    cpus = set()
    for span in mask.split(","):
        first, _, last = span.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return [core for core in machine.cores if core.cpu in cpus]


@pytest.mark.parametrize(("name", "value", "count", "mask", "expected"), RUNTIME)
def test_threads_are_placed_as_intels_runtime_placed_them(name, value, count, mask, expected):
    came = recipes_2019.place_kmp(parse_kmp(value), usable(MACHINES[name], mask), count)
    assert [list(cpus) for cpus in came] == expected


@pytest.mark.parametrize("numbering", ["blocks", "turns"])
@pytest.mark.parametrize("count", [1, 2])
def test_the_guides_recipe_fills_the_node_and_its_communication_cores_lie_wrong(count, numbering):
    machine = imagine(2, 24, count, numbering)
    read = recipes_2019.explain(RECIPE, machine=machine, **GUIDE)
    assert len(read.processes) == 2
    assert all(len(process.threads) == 22 for process in read.processes)
    # two processes, each inside its socket where threads have siblings or not
    for rank, process in enumerate(read.processes):
        cores = [core for core in machine.cores if core.cpu in process.computes]
        assert {core.socket for core in cores} == {rank}
        assert len({core.core for core in cores}) == 22
    assert [process.communicates for process in read.processes] == [(39, 38), (43, 42)]
    text = "\n".join(read.findings)
    assert "do not lie one group per socket under either common numbering" in text
    assert "should only communicate, but threads of process" in text
    assert read.plan == threads.plan(machine, 2, comm_cores=2)


def test_too_many_threads_are_counted():
    # 4 ranks with 2 threads on two cores with two hardware threads each (the workshop's host)
    four = {"MLSL_NUM_SERVERS": 1, "MLSL_SERVER_AFFINITY": "0,1,2,3", "OMP_NUM_THREADS": 2}
    read = recipes_2019.explain("compact", imagine(1, 2, 2), **four)
    assert "are 12, more than the 2 cores there are." in " ".join(read.findings)
    assert read.plan is None


@given(
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.sampled_from(["blocks", "turns"])
)
def test_an_imagined_machine_has_every_cpu_once_and_its_siblings_together(s, c, t, numbering):
    node = imagine(s, c, t, numbering)
    assert [core.cpu for core in node.cores] == list(range(s * c * t))
    assert len({core.core for core in node.cores}) == node.physical_cores == s * c
    by_socket = [sum(core.socket == socket for core in node.cores) for socket in range(s)]
    assert by_socket == [c * t] * s
    for core in node.cores:
        first = node.cores[core.cpu % (s * c)]
        assert (core.core, core.socket) == (first.core, first.socket)
        expected = first.cpu // c if numbering == "blocks" else first.cpu % s
        assert core.socket == expected
