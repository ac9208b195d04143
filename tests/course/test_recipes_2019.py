"""Recipes of 2019 put threads where Intel's runtime did, and faults are shown at their place.

Tests dlcourse.recipes_2019 and `dlguide.machine.imagine`.

`intel_affinity.json` holds what Intel's own runtime libraries of 2019 (intel-openmp 2019.0) and of
2026 (2026.2.0) reported with `verbose` for machines described to them by a file: machine,
KMP_AFFINITY, threads, mask of the process, the CPUs of each thread then and now.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import recipes_2019
from dlcourse.recipes_2019 import parse_cpu_lists, parse_kmp, parse_places
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
    cpus = {cpu for each in parse_cpu_lists(mask, "mask") for cpu in each}
    return [core for core in machine.cores if core.cpu in cpus]


@pytest.mark.parametrize(("name", "value", "count", "mask", "then", "now"), RUNTIME)
def test_threads_are_placed_as_intels_runtime_placed_them(name, value, count, mask, then, now):
    cores = usable(MACHINES[name], mask)
    affinity = parse_kmp(value)
    for expected, all_levels in ((then, False), (now, True)):
        if expected is not None:
            came = recipes_2019.place_kmp(affinity, cores, count, all_levels)
            assert [list(cpus) for cpus in came] == expected


@pytest.mark.parametrize(
    ("read", "text", "must"),
    [
        (parse_kmp, "granularity=fine,compakt,1,0", r"got 'compakt'\. Did you mean compact\?"),
        (parse_kmp, "proclist=[5-2],explicit", r"spans that go upwards, got '5-2'"),
        (parse_kmp, "granularity=fine", r"have a type, got 'granularity=fine'"),
        (parse_places, "corse", r"be one of .* got 'corse'\. Did you mean cores\?"),
        (parse_places, "{6:4}", r"name CPUs of the machine, which has 0-7, got '\{6:4\}'"),
    ],
)
def test_mistyped_recipe_is_named(read, text, must):
    machine = [] if read is parse_kmp else [MACHINES["2x4"].cores, range(8)]
    with pytest.raises(ValueError, match=must):
        read(text, *machine)


# The examples of OpenMP's standard.


def test_places_of_the_standard_are_read_alike():
    four = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    listed = "{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}"
    for text in (listed, "{0:4},{4:4},{8:4},{12:4}", "{0:4}:4:4", "{0:4}:4", "{12:4}:4:-4"):
        came = parse_places(text, ())
        assert (came[::-1] if text.endswith("-4") else came) == four
    assert parse_places("{0:3:2}", ()) == ((0, 2, 4),)


def test_policies_deal_threads_to_places():
    eight = tuple((cpu,) for cpu in range(8))

    def cpus(policy, count):
        return [each[0] for each in recipes_2019.place_omp(eight, policy, count, range(8))]

    assert cpus("close", 4) == cpus("true", 4) == [0, 1, 2, 3]
    assert cpus("spread", 4) == [0, 2, 4, 6]
    assert cpus("spread", 3) == [0, 3, 6]
    assert cpus("master", 3) == cpus("primary,close", 3) == [0, 0, 0]
    assert cpus("close", 10) == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert recipes_2019.place_omp(eight, "false", 2, (0, 1)) == ((0, 1),) * 2


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
