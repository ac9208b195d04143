"""What was tuned is found again on the same machine only, and a damaged file is reported.

Tests dlguide.machine.threads and dlguide.cluster.launch.
"""

import dataclasses
import json
import os
import textwrap

import pytest
from command_line import python
from fake_machine import machine

from dlguide.cluster import Cluster
from dlguide.cluster.launch import default_plan
from dlguide.machine import describe, threads
from dlguide.machine.threads import Candidate
from dlguide.tuning import CandidateResult

SPEEDS = {
    Candidate(2, 1, 2, bound=False): 300.0,
    Candidate(2, 1, 1): 290.0,
    Candidate(1, 2, 1): 200.0,
    Candidate(4, 1, 1): 190.0,
    Candidate(1, 1, 1): 100.0,
}


def result(speeds=SPEEDS, failed=()):
    rows = [CandidateResult(each, speed, speed, speed, 0, 1, 1.0) for each, speed in speeds.items()]
    rows += [CandidateResult(each, 0.0, 0.0, 0.0, -1, 0, 1.0, "broken") for each in failed]
    return tuple(rows)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_kept_is_found_again(cache):
    here = machine(2)
    path = threads.save_tuned(result(), "mnist_cnn", 100, here, unix_s=1e9)
    assert path.is_relative_to(cache)
    found = threads.load_tuned("mnist_cnn", here)
    assert found.candidates == tuple(SPEEDS)
    assert found.images_per_s == tuple(SPEEDS.values())
    assert (found.net, found.global_batch, found.unix_s) == ("mnist_cnn", 100, 1e9)
    # so does a host of another name with the same cores
    twin = dataclasses.replace(here, name="node17", os="another kernel", memory_bytes=1)
    assert threads.load_tuned("mnist_cnn", twin) == found
    threads.save_tuned(result(), "mnist_cnn", 32, here, unix_s=1e9 + 1)
    threads.save_tuned(result(), "mlp", 64, here, unix_s=1e9 + 2)
    assert threads.load_tuned("mnist_cnn", here).global_batch == 32  # the newest of this net
    assert threads.load_tuned("resnet50", here) is None


@pytest.mark.parametrize(
    "other",
    [
        machine(4),
        machine(1, 1),
        machine(2, threads=2),
        machine(2, quota=1),
        dataclasses.replace(machine(2), processor="another"),
    ],
)
def test_another_machine_finds_nothing(cache, other):
    threads.save_tuned(result(), "mnist_cnn", 100, machine(2))
    assert threads.load_tuned("mnist_cnn", other) is None


def test_best_is_that_of_the_ranks_and_takes_turns_only_when_allowed(cache):
    here = machine(2)
    threads.save_tuned(result(), "mlp", 100, here)
    found = threads.load_tuned("mlp", here)
    assert found.best(here) == Candidate(2, 1, 2, bound=False)
    assert found.best(here, ranks=1) == Candidate(1, 2, 1)
    assert found.best(here, ranks=4) is None
    assert found.best(here, ranks=4, oversubscribe=True) == Candidate(4, 1, 1)
    assert found.best(here, ranks=3) is None


DAMAGE = {
    "empty": lambda text: "",
    "no JSON": lambda text: "\x00\xff",
    "another version": lambda text: text.replace('"format": 1', '"format": 2'),
    "another machine": lambda text: text.replace('"sockets": 1', '"sockets": 2'),
    "ranks as text": lambda text: text.replace('"ranks": 2', '"ranks": "two"'),
    "an unknown field": lambda text: text.replace('"bound"', '"tied"'),
    "no candidates": lambda text: json.dumps(json.loads(text) | {"candidates": []}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_reported_and_the_others_are_read(cache, kind):
    here = machine(2)
    threads.save_tuned(result(), "mnist_cnn", 32, here, unix_s=1.0)
    path = threads.save_tuned(result(), "mnist_cnn", 100, here, unix_s=2.0)
    good = path.read_text()
    path.write_bytes(DAMAGE[kind](good).encode("latin-1"))
    assert path.read_text(errors="replace") != good
    with pytest.warns(
        RuntimeWarning, match=r"mnist_cnn-batch100\.json is damaged .* `dlguide tune"
    ):
        assert threads.load_tuned("mnist_cnn", here).global_batch == 32


def test_a_writer_that_is_killed_leaves_the_old_file(cache):
    here = machine(2)
    path = threads.save_tuned(result(), "mlp", 100, here, unix_s=5.0)
    code = f"""
        import os, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_tuned_plans import result, machine
        from dlguide.machine import threads
        os.fsync = lambda handle: os._exit(7)
        threads.save_tuned(result(), "mlp", 100, machine(2), unix_s=6.0)
    """
    assert python(textwrap.dedent(code), timeout_s=60, fails=True).returncode == 7
    assert threads.load_tuned("mlp", here).unix_s == 5.0
    assert path.exists()


def keep_here(speeds):
    here = describe()
    threads.save_tuned(result(speeds), "mnist_cnn", 100, here, unix_s=1e9)
    return here


def test_a_cluster_plans_with_what_was_tuned_for_the_net_that_it_names(cache):
    tuned = Candidate(1, 1, 2, bound=False)
    here = keep_here({tuned: 9.0})
    plan, how = default_plan(ranks=1, tuned="mnist_cnn")
    assert plan == tuned.plan(here)
    assert plan.environment(0)["TF_NUM_INTEROP_THREADS"] == "2"
    assert how.startswith("as tuned on ")


def test_a_cluster_plans_without_it_unless_it_is_asked_for_by_name(cache):
    cores = describe().usable_cores
    here = keep_here({Candidate(1, 1, 2, bound=False): 9.0})
    assert default_plan(ranks=1) == (threads.plan(here, ranks=1), "")
    with pytest.raises(ValueError, match="measured for 1 ranks of this machine, got 'mlp'"):
        default_plan(ranks=1, tuned="mlp")
    more = cores + 1
    crowd = threads.plan(here, ranks=more, oversubscribe=True)
    assert default_plan(ranks=more, oversubscribe=True) == (crowd, "")


def test_what_was_tuned_does_not_allow_more_ranks_than_cores(cache):
    more = describe().usable_cores + 1
    keep_here({Candidate(more, 1, 1): 9.0})
    with pytest.raises(ValueError, match=rf"`ranks` must be at most .* got {more}"):
        Cluster(ranks=more, tuned="mnist_cnn")
    with pytest.raises(ValueError, match="a net that was measured for this machine"):
        Cluster(tuned="mnist_cnn")


def test_the_ranks_really_get_it(cache):
    # one thread that may run on every core: not what the plain plan for one rank gives
    keep_here({Candidate(1, 1, 2, bound=False): 9.0})
    with Cluster(ranks=1, tuned="mnist_cnn") as cluster:
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        assert cluster.run(lambda: [os.environ[name] for name in names]) == [["1", "2"]]
        everywhere = sorted(os.sched_getaffinity(0))
        assert cluster.engines[0]["cpus"] == everywhere
