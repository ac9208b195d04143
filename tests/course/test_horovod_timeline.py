"""Horovod's timeline: files made by hand with a known answer, and a real run on two ranks.

Tests dlcourse.horovod_timeline and dlguide.horovod.runtime.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from on_ranks import on_ranks

from dlcourse import horovod_timeline as timeline
from dlguide.measure import TrainingResult

ZERO = 1_700_000_000.0


def begin(pid, name, us):
    return {"ph": "B", "name": name, "ts": us, "pid": pid}


def end(pid, us):
    return {"ph": "E", "ts": us, "pid": pid}


def named(pid, name):
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


START = {"start_time_since_epoch_in_micros": int(1e6 * ZERO)}
HEAD = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": START},
    {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
]


def fused(pids, start):
    """A message as Horovod writes it: every activity of all tensors, one microsecond apart."""
    records = [begin(pid, "NEGOTIATE_ALLREDUCE", start + i) for i, pid in enumerate(pids)]
    records += [{"ph": "X", "name": "1", "ts": start + 90, "pid": pids[0], "dur": 0}]
    records += [end(pid, start + 100 + i) for i, pid in enumerate(pids)]
    records += [begin(pid, "ALLREDUCE", start + 150 + i) for i, pid in enumerate(pids)]
    for name, at, width in (
        ("MEMCPY_IN_FUSION_BUFFER", 200, 50),
        ("MPI_ALLREDUCE", 300, 400),
        ("MEMCPY_OUT_FUSION_BUFFER", 750, 30),
    ):
        records += [begin(pid, name, start + at + i) for i, pid in enumerate(pids)]
        records += [end(pid, start + at + width + i) for i, pid in enumerate(pids)]
    return records + [end(pid, start + 800 + i) for i, pid in enumerate(pids)]


def two_rounds():
    """Tensors 1 and 2 in one message, 3 in the next one right behind it; all of that twice."""
    cycle = {"ph": "i", "name": "CYCLE_START", "ts": 500, "s": "g"}
    records = [*HEAD, named(1, "g_1"), named(2, "g_2"), named(3, "other"), cycle]
    for start in (1000, 5000):
        records += [*fused([1, 2], start), *fused([3], start + 801)]
    return records


def written(tmp_path, records, cut=None):
    """Write records in Horovod's own spelling, up to `cut` characters."""
    text = "[\n" + ",".join(json.dumps(record) for record in records) + "]"
    path = tmp_path / "made.json"
    path.write_text(text[:cut])
    return path


def test_events_messages_and_seconds_are_those_of_the_file(tmp_path):
    recorded = timeline.read(written(tmp_path, two_rounds()))
    assert recorded.started_unix_s == pytest.approx(ZERO)
    assert recorded.tensors == ("g_1", "g_2", "other")
    assert recorded.cycles_s == pytest.approx((500e-6,))
    assert [message.tensors for message in recorded.messages] == [("g_1", "g_2"), ("other",)] * 2
    first = recorded.messages[0]
    assert first.operation == "allreduce"
    assert (first.start_s, first.end_s) == pytest.approx((1150e-6, 1801e-6))
    assert (recorded.rounds, recorded.messages_per_round) == (2, 2.0)
    # the tensor in the same buffer begins and ends 1 µs later: it adds 1 µs, not its own time
    us = {"EXCHANGE": 801, "COPY_IN": 101, "COPY_OUT": 61, "NEGOTIATION": 201, "WAITING": 101}
    for part, expected in us.items():
        assert recorded.seconds()[getattr(timeline, part)] == pytest.approx(2e-6 * expected), part


def test_messages_that_run_at_the_same_time_stay_apart(tmp_path):
    """On GPUs the next message begins before the one before has ended."""
    records = [*HEAD, named(1, "a"), named(2, "b")]
    records += [begin(1, "ALLREDUCE", 10), begin(1, "NCCL_ALLREDUCE", 11)]
    records += [begin(2, "ALLREDUCE", 12), begin(2, "NCCL_ALLREDUCE", 13)]
    records += [end(1, 20), end(1, 21), end(2, 30), end(2, 31)]
    recorded = timeline.read(written(tmp_path, records))
    assert [message.tensors for message in recorded.messages] == [("a",), ("b",)]
    assert recorded.seconds()[timeline.EXCHANGE] == pytest.approx(19e-6)
    for _ in range(2):  # in one microsecond
        for pid in (1, 2):
            records += [begin(pid, name, 100) for name in ("ALLREDUCE", "MPI_ALLREDUCE")]
            records += [end(pid, 100), end(pid, 100)]
    messages = timeline.read(written(tmp_path, records)).messages
    assert [message.tensors for message in messages] == [("a",), ("b",)] * 3


def test_compute_is_what_is_left_of_the_steps(tmp_path):
    recorded = timeline.read(written(tmp_path, two_rounds()))
    # under way from 1000 to 1801 and from 1801 to 2601, then from 5000 to 6601
    parts = recorded.compute([(0.0, 3000e-6), (3000e-6, 8000e-6)])
    expected = [(0, 1000), (2601, 3000), (3000, 5000), (6601, 8000)]
    assert np.allclose(parts, 1e-6 * np.array(expected), atol=1e-9)
    assert recorded.compute([(1200e-6, 1300e-6)]) == []


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_record(tmp_path):
    records = two_rounds()
    path = written(tmp_path, records)
    whole, length, counts = timeline.read(path), len(path.read_text()), []
    for cut in (*range(len("[\n" + json.dumps(records[0])), length, 61), length - 1):
        recorded = timeline.read(written(tmp_path, records, cut))
        assert recorded.events == whole.events[: len(recorded.events)]
        counts.append(len(recorded.messages))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 4)


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[{"])
def test_nonsense_is_refused_with_the_file_and_the_next_step(tmp_path, text):
    path = tmp_path / "nonsense.json"
    path.write_text(text)
    said = re.escape(f"`path` must be a Horovod timeline, got '{path}'. Horovod writes it on rank")
    with pytest.raises(ValueError, match=said):
        timeline.read(path)


def test_overlaps_count_once():
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 1000, 50)
    spans = [(int(start), int(start) + width) for width, start in enumerate(starts)]
    covered = np.zeros(2000, bool)
    for start, stop in spans:
        covered[start:stop] = True
    assert timeline.total_s(spans) == covered.sum()


def record_trainings(where, names):
    """Train once for each name, with a timeline where there is one, and record a block by hand."""
    import os

    import numpy as np
    from fitting import fit

    import dlguide.horovod as hvd
    from dlguide.data.datasets import Dataset
    from dlguide.horovod import runtime

    draw = np.random.default_rng(0)
    images, labels = draw.random((96, 28, 28, 1), dtype=np.float32), draw.integers(0, 10, 96)
    data = Dataset("made_up", images, labels, images[:8], labels[:8])

    def train(name, **more):
        path = name and os.path.join(where, name)
        how = {"exchange": "horovod", "timeline": path, "evaluate": False}
        return fit("mnist_cnn", data, batch_per_rank=16, **how, **more)

    def raises(call):
        try:
            call()
        except (ValueError, RuntimeError) as error:
            return str(error)
        return "nothing"

    def record(path):
        with hvd.record_timeline(path, mark_cycles=True):
            return np.asarray(hvd.allreduce(np.ones(100), name="inside", op=hvd.Sum)).tolist()

    runs = [train(name).as_dict() for name in names]
    record(os.path.join(where, "by_hand.json"))
    after = np.asarray(hvd.allreduce(np.ones(3), name="outside", op=hvd.Sum)).tolist()
    return {
        "runs": runs,
        "after": after,
        "left_on": runtime.records_on_call(),
        "variable": os.environ.get("HOROVOD_TIMELINE"),
        "folder": raises(lambda: record(where)),
        "again": "nothing" if not runtime.restart_problem() else raises(hvd.restart),
        "alone": raises(lambda: train("alone.json", parallel=False)),
    }


@pytest.mark.parametrize(
    ("environment", "messages", "names"),
    [
        ({}, 1, ["same.json", None, "same.json"]),
        ({"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0.5"}, 8, ["same.json"]),
    ],
)
def test_a_real_run_shows_every_gradient_and_what_was_fused(tmp_path, environment, messages, names):
    words = {"where": str(tmp_path), "names": names}
    found = on_ranks(2, record_trainings, tmp_path, 120, environment, **words)
    runs = [TrainingResult.from_dict(record) for record in found[0]["runs"]]
    assert len({run.weights_digest for run in runs}) == 1, "recording changes no result"
    run, recorded = runs[-1], timeline.read(tmp_path / "same.json")
    gradients = recorded.matching("gradients")
    assert len(gradients.tensors) == 8
    assert gradients.rounds == len(run.step_s) == 3
    assert gradients.messages_per_round == messages
    steps = recorded.steps(run)
    for step in steps:  # one clock: each exchange lies in its step
        assert len(gradients.between(*step).messages) == messages
    copied = gradients.seconds()[timeline.COPY_IN] > 0
    assert copied == (messages == 1), "what travels alone is not copied"
    by_hand = timeline.read(tmp_path / "by_hand.json")
    assert by_hand.tensors == ("inside",)
    assert by_hand.cycles_s
    for rank in found:
        assert rank["after"] == [2.0] * 3
        assert rank["variable"] is None
        assert rank["folder"].startswith("`path` must be a file, got")
        assert "`timeline` must be None in a training without other ranks" in rank["alone"]
        # with both settings Horovod cannot start again without the timeline, and says so
        assert rank["left_on"] == bool(environment)
        assert ("crashes when it starts a second time" in rank["again"]) == bool(environment)
