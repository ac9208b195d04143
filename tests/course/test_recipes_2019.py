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
NODES = {
    f"2 x 24 x {count}, {numbering}": imagine(2, 24, count, numbering)
    for count in (1, 2)
    for numbering in ("blocks", "turns")
}


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


@given(
    st.sampled_from([*MACHINES.values(), *NODES.values()]),
    st.sampled_from(["compact", "scatter", "balanced", "logical", "physical"]),
    st.integers(0, 3),
)
def test_as_many_threads_as_cpus_use_every_cpu_once(machine, kind, number):
    value = f"granularity=fine,{kind}" + ("" if kind == "balanced" else f",{number}")
    placed = recipes_2019.place_kmp(parse_kmp(value), machine.cores, machine.logical_cores)
    assert sorted(placed) == [(core.cpu,) for core in machine.cores]


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("granularity=fine,compakt,1,0", r"got 'compakt'\. Did you mean compact\?"),
        ("granularity=fin,compact", r"granularity` must be one of .* got 'fin'"),
        ("compact,scatter", r"have one type, and compact is one, got 'scatter'"),
        ("compact,1,0,7", r"have 2 numbers after compact"),
        ("none,1", r"have no numbers after none"),
        ("compact,-1", r"got '-1'"),
        ("granularity=fine", r"have a type, got 'granularity=fine'"),
        ("proclist=[0-3],compact", r"type explicit with a proclist"),
        ("explicit", r"type explicit with a proclist"),
        ("proclist=[0,x],explicit", r"have CPUs such as .* got 'x'"),
        ("proclist=[5-2],explicit", r"spans that go upwards, got '5-2'"),
        ("proclist=[0-4:0],explicit", r"have CPUs such as .* got '0-4:0'"),
        ("proclist=0-3,explicit", r"a list in square brackets"),
        ("proclist=[0-999999],explicit", r"have CPUs such as"),
        ("  ", r"must "),
    ],
)
def test_a_fault_is_named(text, must):
    with pytest.raises(ValueError, match=f"`KMP_AFFINITY{'.*'}{must}"):
        parse_kmp(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_the_name_of_the_variable(text):
    said = []
    for read in (parse_kmp, lambda text: parse_places(text, MACHINES["2x4"].cores)):
        try:
            read(text)
        except ValueError as error:
            said.append(str(error))
    assert all(each.startswith(("`KMP_AFFINITY", "`OMP_PLACES")) for each in said)


# --- OpenMP's own variables: the examples of the standard ---------------------------------------


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


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("corse", r"be one of .* got 'corse'\. Did you mean cores\?"),
        ("cores(x)", r"have a count in brackets"),
        ("cores(0)", r"have a count in brackets"),
        ("{0,1},{x}", r"have CPUs such as .* got 'x'"),
        ("{0:4}:-1", r"have places such as .* got '\{0:4\}:-1'"),
        ("{0:4}:2:0", r"have a count of at least 1 and a stride that is not 0, got '\{0:4\}:2:0'"),
        ("{0:4}:0", r"have a count of at least 1 and a stride that is not 0"),
        ("{0:4:0}", r"have a count of at least 1 and a stride that is not 0, got '0:4:0'"),
        ("{0:2}:3:2,5", r"have places such as .* got '5'"),
        ("{2:2}:3:-2", r"stay at CPUs of at least 0"),
        ("{6:4}", r"name CPUs of the machine, which has 0-7, got '\{6:4\}'"),
        ("{0:4096}:4096", r"list at most 4096 CPUs"),
    ],
)
def test_wrong_places_are_refused(text, must):
    with pytest.raises(ValueError, match=f"`OMP_PLACES` must {must}"):
        parse_places(text, MACHINES["2x4"].cores, range(8))


def test_openmp_binds_in_place_of_kmp_affinity():
    node = imagine(2, 4)
    spread = {"OMP_PLACES": "sockets", "OMP_PROC_BIND": "spread", "OMP_NUM_THREADS": 2}
    placed = recipes_2019.explain(None, node, **spread).processes[0].threads
    assert placed == ((0, 1, 2, 3), (4, 5, 6, 7))
    close = recipes_2019.explain(None, node, OMP_PROC_BIND="close", OMP_NUM_THREADS=2)
    assert close.processes[0].threads == ((0,), (1,))
    with pytest.raises(ValueError, match="`affinity` must bind threads in one way"):
        recipes_2019.explain("compact", node, OMP_PLACES="cores")
    with pytest.raises(ValueError, match="`OMP_PROC_BIND` must be one of"):
        recipes_2019.explain(None, node, OMP_PROC_BIND="near")


# --- the whole recipe --------------------------------------------------------------------------


@pytest.mark.parametrize("machine", NODES.values(), ids=NODES)
def test_the_guides_recipe_fills_the_node_and_its_communication_cores_lie_wrong(machine):
    read = recipes_2019.explain(RECIPE, machine=machine, **GUIDE)
    assert len(read.processes) == 2
    assert all(len(process.threads) == 22 for process in read.processes)
    socket_of = {core.cpu: core.socket for core in machine.cores}
    # two processes, each inside its socket where threads have siblings or not
    for rank, process in enumerate(read.processes):
        assert {socket_of[cpu] for cpu in process.computes} == {rank}
        core_of = {core.cpu: core.core for core in machine.cores}
        assert len({core_of[cpu] for cpu in process.computes}) == 22
    assert [process.communicates for process in read.processes] == [(39, 38), (43, 42)]
    text = "\n".join(read.findings)
    assert "2 x 22 threads and 4 cores that communicate are 48, of the 48 cores" in text
    assert "do not lie one group per socket under either common numbering" in text
    assert "should only communicate, but threads of process" in text
    assert read.plan == threads.plan(machine, 2, comm_cores=2)


def test_c23_is_computed_for_both_numberings():
    here = "process 0 communicates on socket 1 (CPUs 39, 38), process 1 communicates on socket 1"
    both = "process 0 communicates on sockets 0 and 1 (CPUs 39, 38)"
    for machine in NODES.values():
        said = "\n".join(recipes_2019.explain(RECIPE, machine, **GUIDE).findings)
        assert here in said
        assert both in said


def test_without_hardware_threads_the_old_runtime_alternates_between_sockets_and_it_is_said():
    read = recipes_2019.explain(RECIPE, imagine(2, 24), OMP_NUM_THREADS=4)
    assert read.processes[0].threads == ((0,), (24,), (1,), (25,))
    assert any("later runtimes keep it: process 0 would use CPUs 0-3" in f for f in read.findings)
    again = recipes_2019.explain(RECIPE, imagine(2, 24, 2), OMP_NUM_THREADS=4)
    assert again.processes[0].threads == ((0,), (1,), (2,), (3,))
    assert not any("later runtimes" in finding for finding in again.findings)


def test_too_many_threads_are_counted():
    # 4 ranks with 2 threads on two cores with two hardware threads each (the workshop's host)
    four = {"MLSL_NUM_SERVERS": 1, "MLSL_SERVER_AFFINITY": "0,1,2,3", "OMP_NUM_THREADS": 2}
    read = recipes_2019.explain("compact", imagine(1, 2, 2), **four)
    said = "4 x 2 threads and 4 cores that communicate are 12, more than the 2 cores there are."
    assert said in read.findings
    assert read.plan is None
    assert any("There is no plan" in finding for finding in read.findings)


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ({"OMP_NUM_TREADS": 1}, r"`settings` must be one of .*Did you mean OMP_NUM_THREADS\?"),
        ({"OMP_NUM_THREADS": "many"}, r"`OMP_NUM_THREADS` must be a whole number of at least 1"),
        ({"OMP_NUM_THREADS": 0}, r"`OMP_NUM_THREADS` must be a whole number of at least 1, got 0"),
        ({"OMP_NUM_THREADS": 10**6}, r"`OMP_NUM_THREADS` must be at most 4096"),
        (
            {"MLSL_SERVER_AFFINITY": "3,99", "MLSL_NUM_SERVERS": 1},
            r"name CPUs of the machine, which has 0-7, got '99'",
        ),
        (
            {"MLSL_SERVER_AFFINITY": "1,2,3", "MLSL_NUM_SERVERS": 2},
            r"`MLSL_SERVER_AFFINITY` must have 2 CPUs: 2 for each of 1 processes",
        ),
        ({"affinity": "proclist=[0,8],explicit"}, r"which has 0-7, got '8'"),
    ],
)
def test_a_recipe_with_a_fault_is_refused(words, must):
    with pytest.raises(ValueError, match=must):
        recipes_2019.explain(**{"affinity": "none", "machine": imagine(2, 4), **words})


# --- machines that are not here ----------------------------------------------------------------


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
