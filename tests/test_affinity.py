"""Lists of CPUs are written as they are read, and all threads are bound."""

import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from dlguide.machine.affinity import affinity, bind, spans
from dlguide.machine.kernel_files import cpu_list, integer, read


@given(st.sets(st.integers(0, 300)))
def test_spans_and_cpu_list_are_inverse(cpus):
    assert cpu_list(spans(cpus)) == sorted(cpus)


@given(st.sets(st.integers(0, 300)))
def test_spans_are_as_few_as_possible(cpus):
    written = [part for part in spans(cpus).split(",") if part]
    assert len(written) == len({cpu for cpu in cpus if cpu - 1 not in cpus})


def test_affinity_and_bind_reach_every_thread():
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    gate = threading.Event()
    sleeper = threading.Thread(target=gate.wait)
    sleeper.start()
    before = affinity()
    try:
        assert before[os.getpid()] == before[sleeper.native_id] == allowed
        bind({sleeper.native_id: allowed[-1:]}, allowed[:1])
        assert affinity()[sleeper.native_id] == allowed[-1:]
        assert affinity()[os.getpid()] == allowed[:1]
    finally:
        bind(before, allowed)
        gate.set()
        sleeper.join()


def test_what_cannot_be_read_is_empty(tmp_path):
    assert read(tmp_path / "none") == ""
    assert integer(tmp_path / "none") is None
    (tmp_path / "file").write_text("max\n")
    assert read(tmp_path / "file") == "max"
    assert integer(tmp_path / "file") is None
    (tmp_path / "file").write_text("-1\n")
    assert integer(tmp_path / "file") == -1
    assert cpu_list("") == []
