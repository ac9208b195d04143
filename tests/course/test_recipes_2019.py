"""Recipes of 2019 put threads where Intel's runtime did, and faults are shown at their place.

Tests dlcourse.recipes_2019, dlcourse.omp_affinity, dlcourse.cpu_map and `dlguide.machine.imagine`.

`intel_affinity.json` holds what Intel's own runtime libraries of 2019 (intel-openmp 2019.0) and of
2026 (2026.2.0) reported with `verbose` for machines described to them by a file: machine,
KMP_AFFINITY, threads, mask of the process, the CPUs of each thread then and now.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import cpu_map, omp_affinity, recipes_2019
from dlcourse.cpu_map import CpuUse
from dlcourse.omp_affinity import KmpAffinity, Word, parse_cpu_lists
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
    cpus = {cpu for each in parse_cpu_lists(Word.of(mask, "mask"), "mask") for cpu in each}
    return [core for core in machine.cores if core.cpu in cpus]


@pytest.mark.parametrize(("name", "value", "count", "mask", "then", "now"), RUNTIME)
def test_threads_are_placed_as_intels_runtime_placed_them(name, value, count, mask, then, now):
    cores = usable(MACHINES[name], mask)
    affinity = omp_affinity.parse_kmp(value)
    for expected, all_levels in ((then, False), (now, True)):
        if expected is not None:
            came = omp_affinity.place_kmp(affinity, cores, count, all_levels)
            assert [list(cpus) for cpus in came] == expected


def test_the_oracle_knows_every_type_and_both_runtimes():
    kinds = {omp_affinity.parse_kmp(value).kind for _, value, *_ in RUNTIME}
    assert kinds == {*omp_affinity.KMP_TYPES} - {"disabled"}
    assert sum(then != now for *_, then, now in RUNTIME if then and now) >= 4


@given(
    st.sampled_from([*MACHINES.values(), *NODES.values()]),
    st.sampled_from(["compact", "scatter", "balanced", "logical", "physical"]),
    st.integers(0, 3),
)
def test_as_many_threads_as_cpus_use_every_cpu_once(machine, kind, number):
    value = f"granularity=fine,{kind}" + ("" if kind == "balanced" else f",{number}")
    placed = omp_affinity.place_kmp(
        omp_affinity.parse_kmp(value), machine.cores, machine.logical_cores
    )
    assert sorted(placed) == [(core.cpu,) for core in machine.cores]


def test_every_modifier_of_the_grammar_is_read():
    text = "verbose,norespect,granularity=thread,nowarnings,proclist=[3,0-4:2,{5,6}],explicit"
    assert omp_affinity.parse_kmp(text) == KmpAffinity(
        "explicit", "thread", 0, 0, ((3,), (0,), (2,), (4,), (5, 6)),
        ("verbose", "norespect", "nowarnings"),
    )  # fmt: skip
    assert omp_affinity.parse_kmp(" Granularity=Core , COMPACT,1 , 2").permute == 1
    assert omp_affinity.parse_kmp("physical,3") == KmpAffinity("physical", "core", 0, 3)


@pytest.mark.parametrize(
    ("text", "must", "column"),
    [
        (
            "granularity=fine,compakt,1,0",
            r"got 'compakt' at column 18\. Did you mean compact\?",
            18,
        ),
        ("granularity=fin,compact", r"have a granularity here, .* got 'fin' at column 13", 13),
        ("compact,scatter", r"have one type, and compact is one, got 'scatter' at column 9", 9),
        ("compact,1,0,7", r"have 2 numbers after compact, got '7' at column 13", 13),
        ("none,1", r"have no numbers after none, got '1' at column 6", 6),
        ("compact,-1", r"got '-1' at column 9", 9),
        ("compact,,1", r"got nothing at column 9", 9),
        ("granularity=fine", r"have a type, got 'granularity=fine' at column 1", 1),
        ("proclist=[0-3],compact", r"type explicit when there is a proclist", 1),
        ("explicit", r"have a proclist=\[\.\.\.\] with explicit", 1),
        ("proclist=[0,x],explicit", r"have a CPU here, .* got 'x' at column 13", 13),
        ("proclist=[5-2],explicit", r"spans that go upwards, got '5-2' at column 11", 11),
        ("proclist=[0-4:0],explicit", r"a stride of at least 1, got '0-4:0' at column 11", 11),
        ("proclist=0-3,explicit", r"a list in square brackets here", 10),
        ("proclist=[0-999999],explicit", r"list at most 4096 CPUs", 11),
    ],
)
def test_a_fault_is_shown_at_its_place(text, must, column):
    with pytest.raises(ValueError, match=f"`KMP_AFFINITY` must {'.*'}{must}") as caught:
        omp_affinity.parse_kmp(text)
    _, shown, carets = str(caught.value).splitlines()
    assert shown == f"    {text}"
    assert carets.index("^") == 4 + column - 1


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_the_name_of_the_variable(text):
    said = []
    for read in (
        omp_affinity.parse_kmp,
        lambda said: omp_affinity.parse_places(said, MACHINES["2x4"].cores),
    ):
        try:
            read(text)
        except ValueError as error:
            said.append(str(error))
    assert all(each.startswith("`") for each in said)


# --- OpenMP's own variables: the examples of the manuals ---------------------------------------


def test_places_of_the_standard_are_read_alike():
    four = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    for text in ("{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}", "{0:4},{4:4},{8:4},{12:4}"):
        assert omp_affinity.parse_places(text, ()) == four
    assert (
        omp_affinity.parse_places("{0:4}:4:4", ())
        == omp_affinity.parse_places("{0:4}:4", ())
        == four
    )
    assert omp_affinity.parse_places("{0:3:2}", ()) == ((0, 2, 4),)


def test_places_by_name_are_those_of_the_machine():
    cores = MACHINES["2x4ht even/odd"].cores
    assert omp_affinity.parse_places("sockets", cores) == (
        tuple(range(0, 16, 2)),
        tuple(range(1, 16, 2)),
    )
    assert omp_affinity.parse_places("cores(3)", cores) == ((0, 8), (2, 10), (4, 12))
    assert len(omp_affinity.parse_places("threads", cores)) == 16
    assert omp_affinity.parse_places("numa_domains", cores) == omp_affinity.parse_places(
        "sockets", cores
    )


def test_policies_deal_threads_to_places():
    eight = tuple((cpu,) for cpu in range(8))

    def cpus(policy, count):
        return [each[0] for each in omp_affinity.place_omp(eight, policy, count, range(8))]

    assert cpus("close", 4) == cpus("true", 4) == [0, 1, 2, 3]
    assert cpus("spread", 4) == [0, 2, 4, 6]
    assert cpus("master", 3) == cpus("primary,close", 3) == [0, 0, 0]
    assert cpus("close", 10) == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert omp_affinity.place_omp(eight, "false", 2, range(8)) == (tuple(range(8)),) * 2


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("corse", r"have a kind of place here, .* got 'corse' at column 1\. Did you mean cores\?"),
        ("cores(x)", r"have a count in brackets here, .* got '\(x\)' at column 6"),
        ("{0,1},{x}", r"have a CPU here, .* got 'x' at column 8"),
        ("{0:4}:-1", r"have a place here, .* got '\{0:4\}:-1' at column 1"),
        ("{0:4}:2:0", r"have a count of at least 1 and a stride that is not 0, got '\{0:4\}:2:0'"),
        ("{0:4}:0", r"have a count of at least 1 and a stride that is not 0"),
        ("{0:4:0}", r"have a count of at least 1 and a stride that is not 0, got '0:4:0'"),
        ("{0:4}:3:4,5", r"have a place here, .* got '5' at column 11"),
        ("{2:2}:3:-2", r"stay at CPUs of at least 0"),
    ],
)
def test_wrong_places_are_refused_at_their_place(text, must):
    with pytest.raises(ValueError, match=f"`OMP_PLACES` must {must}"):
        omp_affinity.parse_places(text, MACHINES["2x4"].cores)


# --- the whole recipe --------------------------------------------------------------------------


@pytest.mark.parametrize("machine", NODES.values(), ids=NODES)
def test_the_guides_recipe_fills_the_node_and_its_communication_cores_lie_wrong(machine):
    read = recipes_2019.explain(RECIPE, machine=machine, KMP_BLOCKTIME=1, KMP_SETTINGS=0, **GUIDE)
    assert len(read.processes) == 2
    assert all(len(process.threads) == 22 for process in read.processes)
    socket_of = {core.cpu: core.socket for core in machine.cores}
    # two processes, each inside its socket where threads have siblings or not
    for rank, process in enumerate(read.processes):
        assert {socket_of[cpu] for cpu in process.computes} == {rank}
        core_of = {core.cpu: core.core for core in machine.cores}
        assert len({core_of[cpu] for cpu in process.computes}) == 22
    assert [process.communicates for process in read.processes] == [(39, 38), (43, 42)]
    text = str(read)
    assert "2 x 22 threads and 4 cores that communicate are 48, of the 48 cores" in text
    assert "do not lie one group per socket under either common numbering" in text
    assert "should only communicate, but threads of process" in text
    assert read.plan == threads.plan(machine, 2, comm_cores=2)


def test_communication_cores_of_a_socket_each_are_not_blamed():
    read = recipes_2019.explain(
        RECIPE, imagine(2, 24), OMP_NUM_THREADS=22, MLSL_NUM_SERVERS=2,
        MLSL_SERVER_AFFINITY="23,22,47,46",
    )  # fmt: skip
    assert not any("do not lie" in each or "should only" in each for each in read.findings)


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


def test_processes_that_share_cpus_are_blamed():
    listed = {"MLSL_NUM_SERVERS": 1, "MLSL_SERVER_AFFINITY": "46,47", "OMP_NUM_THREADS": 2}
    read = recipes_2019.explain(
        "explicit,proclist=[0-1],granularity=fine", imagine(2, 24), **listed
    )
    assert read.processes[0].computes == read.processes[1].computes == (0, 1)
    said = "\n".join(read.findings)
    assert "2 cores have more than one computing thread, up to 2, while 46 have none" in said
    assert "Processes share CPUs 0-1" in said
    assert CpuUse((0, 1)).sign == "! "
    assert read.uses[0] == CpuUse((0, 1))
    assert read.uses[30] == CpuUse()


def test_too_many_threads_are_counted():
    # 4 ranks with 2 threads on two cores with two hardware threads each (the workshop's host)
    four = {"MLSL_NUM_SERVERS": 1, "MLSL_SERVER_AFFINITY": "0,1,2,3", "OMP_NUM_THREADS": 2}
    read = recipes_2019.explain("compact", imagine(1, 2, 2), **four)
    said = "4 x 2 threads and 4 cores that communicate are 12, more than the 2 cores there are."
    assert said in read.findings
    assert read.plan is None
    assert any("There is no plan" in finding for finding in read.findings)


def test_threads_without_binding_are_said_to_move():
    for words in ({"affinity": "none"}, {}):
        read = recipes_2019.explain(machine=imagine(2, 4), OMP_NUM_THREADS=3, **words)
        assert read.processes[0].threads == (tuple(range(8)),) * 3
        assert any("The threads are not bound" in finding for finding in read.findings)
    some = {"OMP_PLACES": "{0},{1},{2},{3},{4:2}", "OMP_NUM_THREADS": 5, "OMP_PROC_BIND": "close"}
    read = recipes_2019.explain(machine=imagine(2, 4), **some)
    assert any("1 of 5 threads are not bound to cores" in finding for finding in read.findings)


def test_other_bindings_are_understood():
    node = imagine(2, 4)
    omp = recipes_2019.explain(
        machine=node, OMP_PLACES="sockets", OMP_PROC_BIND="spread", OMP_NUM_THREADS=2
    )
    assert omp.processes[0].threads == ((0, 1, 2, 3), (4, 5, 6, 7))
    bound = recipes_2019.explain(machine=node, OMP_PROC_BIND="close", OMP_NUM_THREADS=2)
    assert bound.processes[0].threads == ((0,), (1,))


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ({"KMP_AFINITY": "none"}, r"`settings` must be one of .*Did you mean KMP_AFFINITY\?"),
        ({"OMP_NUM_THREADS": "many"}, r"`OMP_NUM_THREADS` must have its value here"),
        ({"OMP_NUM_THREADS": 0}, r"`OMP_NUM_THREADS` must be a whole number of at least 1, got 0"),
        ({"KMP_BLOCKTIME": "soon"}, r"`KMP_BLOCKTIME` must have milliseconds or `infinite` here"),
        ({"KMP_SETTINGS": 7}, r"`KMP_SETTINGS` must be 0 or 1"),
        (
            {"MLSL_SERVER_AFFINITY": "3,99", "MLSL_NUM_SERVERS": 1},
            r"name CPUs of the machine here, which has 0-7, got '99' at column 3",
        ),
        (
            {"MLSL_SERVER_AFFINITY": "1,2,3", "MLSL_NUM_SERVERS": 2},
            r"`MLSL_SERVER_AFFINITY` must have 2 CPUs: 2 for each of 1 processes",
        ),
        ({"OMP_PLACES": "{6:4}"}, r"which has 0-7, got '\{6:4\}' at column 1"),
        ({"KMP_AFFINITY": "proclist=[0,8],explicit"}, r"which has 0-7, got '8' at column 13"),
        ({"OMP_PLACES": "cores", "KMP_AFFINITY": "none"}, r"must bind threads in one way"),
        ({"OMP_PROC_BIND": "near"}, r"have a policy here"),
        ({"KMP_AFFINITY": 1.5}, r"`KMP_AFFINITY` must be a text or a whole number, got 1.5"),
        ({"KMP_AFFINITY": "  "}, r"`KMP_AFFINITY` must hold at least one word"),
        ({"OMP_NUM_THREADS": 10**6}, r"`OMP_NUM_THREADS` must be at most 4096"),
        ({"OMP_NUM_THREADS": 10**9}, r"`OMP_NUM_THREADS` must be at most 4096"),
        ({"OMP_NUM_THREADS": 10**19}, r"`OMP_NUM_THREADS` must have .* at most 18 digits"),
        ({"OMP_PLACES": "{0:4096}:4096"}, r"`OMP_PLACES` must list at most 4096 CPUs"),
        ({}, r"`settings` must hold at least one variable of a recipe"),
    ],
)
def test_a_recipe_with_a_fault_is_refused(words, must):
    with pytest.raises(ValueError, match=must):
        recipes_2019.explain(machine=imagine(2, 4), **words)


def test_an_affinity_given_twice_is_refused():
    with pytest.raises(ValueError, match="`affinity` must be given once"):
        recipes_2019.explain("none", imagine(), KMP_AFFINITY="compact")


# --- the dictionary ----------------------------------------------------------------------------


def test_every_word_says_what_it_did_and_what_is_dead_says_what_does_it_now():
    for name, recipe in recipes_2019.variables().items():
        assert recipe.meaning, name
        assert recipe.state in ("alive", "not here", "dead")
        if recipe.state != "alive":
            assert recipe.note, name
            assert recipe.replacement, name


@pytest.mark.parametrize(
    ("word", "today"),
    {
        "OMP_NUM_THREADS": "TF_NUM_INTRAOP_THREADS",
        "num_intra_threads": "TF_NUM_INTRAOP_THREADS",
        "num_inter_threads": "TF_NUM_INTEROP_THREADS",
        "MKLDNN_VERBOSE": "ONEDNN_VERBOSE",
        "HOROVOD_GPU_ALLREDUCE": "HOROVOD_GPU_OPERATIONS",
        "MLSL_SERVER_AFFINITY": "HOROVOD_THREAD_AFFINITY",
    }.items(),
)
def test_what_is_dead_names_its_heir(word, today):
    assert today in recipes_2019.setting(word, "1").replacement
    assert today in str(recipes_2019.setting(word, "1"))


# --- the map -----------------------------------------------------------------------------------


def test_the_map_has_a_sign_for_every_cpu():
    node = imagine(2, 3, 2, name="two")
    text = cpu_map.text(node, cpu_map.of_plan(threads.plan(node, 2, comm_cores=1), node))
    assert text.splitlines()[1:] == [
        "socket 0, NUMA node 0: 3 cores, CPUs 0-2,6-8",
        "  from CPU   0 0  0  0*",
        "  from CPU   6 0  0  0*",
        "socket 1, NUMA node 1: 3 cores, CPUs 3-5,9-11",
        "  from CPU   3 1  1  1*",
        "  from CPU   9 1  1  1*",
    ]


def test_a_plan_for_another_machine_is_not_drawn():
    with pytest.raises(ValueError, match=r"`plan` must name CPUs of the machine, which has 0-1"):
        cpu_map.of_plan(threads.plan(imagine(1, 4), 4), imagine(1, 2))


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
    assert type(node).from_dict(json.loads(json.dumps(node.as_dict()))) == node


def test_an_imagined_machine_refuses_what_is_none():
    with pytest.raises(ValueError, match="`cores` must be a whole number of at least 1"):
        imagine(2, 0)
    with pytest.raises(ValueError, match="`numbering` must be one of blocks, turns"):
        imagine(numbering="random")
    assert imagine(1, 8, numa_nodes=4).numa_nodes == 4
