"""What a run will need: measured on its ranks, added up, and compared with a run that was done."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from time import perf_counter

import layout_writers
import numpy as np
import pytest
import tiny_usecase

from dlcourse import commands
from dlcourse.usecases import chest_xray, imagenet, kmeans, plan, run, video
from dlcourse.usecases.chest_xray import phantoms
from dlcourse.usecases.plan import Part, Plan
from dlguide.cluster import Cluster

PLAN = Plan(
    ranks=2, measured_s=30.0, parts=(Part("start", 1, (5.0,)), Part("step", 1000, (0.1,) * 80, 2)),
    nbytes=10**9, gpu_nbytes=0, net_nbytes=10**8, machine_nbytes=4 * 10**9, disk_nbytes=10**7,
    free_nbytes=10**10, needed_opens=0.0, given_opens=0.0, watts=None, assumed=False,
)  # fmt: skip


def test_time_is_the_sum_of_the_parts_and_its_interval_that_of_the_means():
    assert PLAN.seconds == pytest.approx(5 + 2 + 1000 * 0.1)
    assert PLAN.interval == pytest.approx((107, 107))
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        times = rng.gamma(4, 0.05, 120)
        part = Part("step", 1, tuple(times))
        held += abs(part.mean_s - 0.2) < part.half_s
    assert 0.90 < held / 300 < 0.985
    assert Part("once", 7, (2.0,)).half_s == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "energy  unknown"),
        ({"watts": 360.0, "assumed": True}, "0.0107 kWh per node at 360 W (assumed)"),
        ({"watts": 360.0}, "(measured)"),
        ({"needed_opens": 100.0, "given_opens": 90.0}, "too slow: pack the files once"),
        ({"nbytes": 3 * 10**9}, "More than there is: use fewer ranks"),
        ({"gpu_nbytes": 2 * 10**9}, "GPU     2 GB per rank"),
    ],
)
def test_plan_says_what_is_short(changes, said):
    text = str(replace(PLAN, **changes))
    assert said in text
    assert ("pack the files" in text) == ("needed_opens" in changes)
    assert json.loads(json.dumps(replace(PLAN, **changes).as_dict()))["seconds"] == PLAN.seconds


@pytest.mark.parametrize(
    ("case", "options", "said"),
    [
        (kmeans, {"plan": True}, "`plan` must not be given for kmeans"),
        (None, {"plan": True, "speedup": True}, "`speedup` must not be given with --plan"),
        (None, {"watts_per_node": 100.0}, "`watts_per_node` must come with --plan"),
        (None, {"plan": True, "watts_per_node": -1.0}, "`watts_per_node` must be a positive"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_ranks_start(case, options, said, monkeypatch):
    monkeypatch.setattr(commands, "find_case", lambda name: case or tiny_usecase)
    with pytest.raises(ValueError, match=re.escape(said)):
        commands.usecase("kmeans" if case else "tiny", **options)


@pytest.mark.ranks
@pytest.mark.alone
def test_a_run_takes_what_was_planned_and_says_both(tmp_path):
    own = {"epochs": 2, "samples": 400}
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        begun_s = perf_counter()
        first = run.plan(tiny_usecase, cluster, tmp_path, None, 0, own, begun_s)
        assert not (tmp_path / "checkpoint").exists()
        # as many epochs as twenty seconds have
        each = sum(part.count * part.mean_s for part in first.parts[1:]) / 2
        own["epochs"] = int(20 / each)
        begun_s = perf_counter()
        planned = run.plan(tiny_usecase, cluster, tmp_path, None, 0, own, begun_s)
        begun_s = perf_counter()
        result = run.run(tiny_usecase, cluster, tmp_path, own=own, begun_s=begun_s)
        took = perf_counter() - begun_s
        used = max(cluster.run(plan.peak_nbytes))
    # the run found its ranks started
    assert planned.seconds - planned.parts[0].total_s == pytest.approx(took, rel=0.5)
    assert planned.nbytes == pytest.approx(used, rel=0.25)
    assert result.planned.startswith("Took ")
    for said in (plan.duration(planned.seconds), plan.size(planned.nbytes), plan.size(used)):
        assert said in result.planned


@pytest.mark.ranks
def test_radiographs_in_files_are_planned_with_the_files_that_a_step_opens(tmp_path):
    made = phantoms.chest(60, 48, 3)
    real = layout_writers.write_chestxray14(tmp_path / "ChestX-ray14", made)
    own = {"net": "chest_cnn", "start": "none", "validation": 0.2, "batch_per_rank": 8, "epochs": 3}
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        begun_s = perf_counter()
        given = {"real": str(real), "seed": 0, **own}
        found = plan.measure(chest_xray, cluster, tmp_path, given, begun_s, seconds=1.0)
    counts = {part.name: part.count for part in found.parts}
    train = chest_xray.read(real).with_validation(0.2, 0).train
    assert counts["fine-tuning: step"] == 3 * -(-len(train) // 16)
    assert counts["fine-tuning: checkpoint"] == 3
    assert {"test: scores", "validation: scores"} < counts.keys()
    assert found.given_opens > 0
    assert found.needed_opens > 0
    assert found.disk_nbytes > 1e6
    assert found.nbytes > 2e8
    assert not list(tmp_path.glob("plan*"))


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "own", "steps"),
    [
        # 8 epochs of part 1 and 1.2 of part 2, of 64 pictures with 16 for each of two workers
        (imagenet, {"samples": 64, "epochs": 8}, {"training: step": 2 * 9.2}),
        # two clips a drive and epoch, the second epoch with the finer pictures
        (video, {"drives": 4, "held_out": 2, "frames": 18, "epochs": 2, "global_batch": 4},
         {"step, 16 pixels": 3, "step, 32 pixels": 3}),
    ],
)  # fmt: skip
def test_every_part_of_a_case_is_in_its_plan(case, own, steps, tmp_path):
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        given = {"real": None, "seed": 0, **own}
        found = plan.measure(case, cluster, tmp_path, given, perf_counter(), seconds=1.0)
    counts = {part.name: part.count for part in found.parts}
    for name, count in steps.items():
        assert counts[name] == pytest.approx(count), counts
    assert any("checkpoint" in name for name in counts)
    assert found.disk_nbytes > 1e5
    assert found.interval[0] <= found.seconds <= found.interval[1]
