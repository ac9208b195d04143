"""A rehearsal runs the ranks of a script here; the course of several jobs adds up.

Tests dlguide.cluster.batch.rehearsal and dlguide.cluster.batch.course.
"""

from __future__ import annotations

import itertools

import pytest

from dlguide.cluster.batch import Job, Profile, course, rehearse

PLAIN = Profile()
SUM = """
import pathlib, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
if comm.rank == 0:
    print("SUM", total, comm.size, pathlib.Path(sys.argv[1]).read_text(), sys.argv[2])
"""
SLOW = """
import os, pathlib, sys, time
from mpi4py import MPI
saved = pathlib.Path("saved")
print("RUN", saved.exists(), flush=True)
if not saved.exists():
    while not os.path.exists(os.environ["DLGUIDE_STOP"]):
        time.sleep(0.05)
    MPI.COMM_WORLD.barrier()
    saved.touch()
    sys.exit(85)
"""


@pytest.mark.timeout(240)
def test_ranks_of_the_script_run_here_with_their_data(tmp_path):
    (tmp_path / "sum.py").write_text(SUM)
    (tmp_path / "data").write_text("pixels")
    job = Job("sum.py", ("{staged}/data", "{link}0"), ranks_per_node=2, stage=("data",), chain=3)
    site = Profile(modules=("gcc/13",))  # which this machine has not
    (run,) = rehearse(job, site, tmp_path, link=3)
    assert (run.status, run.requeued) == (0, False)
    assert run.output == "SUM 3 2 pixels 30\n"
    (failed,) = rehearse(job.but(stage=("nothing",), arguments=("{staged}",)), PLAIN, tmp_path)
    assert failed.status == 1
    assert failed.output == "There is no nothing to stage.\n"


@pytest.mark.timeout(240)
def test_warned_job_is_run_again_and_a_finished_one_is_not(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    job = Job("slow.py", ranks_per_node=2, requeue=True, time="0:10:00")
    first, second = rehearse(job, PLAIN, tmp_path, warn_after_s=2.0)
    assert (first.status != 0, first.requeued) == (True, True)
    assert "RUN False" in first.output
    assert (second.status, second.requeued, second.output) == (0, False, "RUN True\nRUN True\n")


def test_what_cannot_be_rehearsed_is_refused(tmp_path):
    for changed, text in (
        ({"nodes": 2}, "`nodes` must be 1 in a rehearsal"),
        ({"inside": True}, "`inside` must be False"),
        ({}, "which a warning would end"),
    ):
        with pytest.raises(ValueError, match=text):
            rehearse(Job("sum.py").but(**changed), PLAIN, tmp_path, warn_after_s=1.0)
    with pytest.raises(ValueError, match="`scheduler` must be slurm"):
        rehearse(Job("sum.py"), Profile(scheduler="pbs"), tmp_path)


BEFORE = {"queue": 3600.0, "staging": 600.0, "start": 60.0}


def test_links_of_a_chain_pay_what_comes_before_again_and_again():
    found = course.spans(90, 600.0, 20 * 3600.0, BEFORE, per_job=10)
    assert course.totals(found) == {
        "queue": 9 * 3600.0, "staging": 9 * 600.0, "start": 9 * 60.0, "training": 90 * 600.0,
        "lost": 0.0,
    }  # fmt: skip
    assert found[-1].job == 9
    assert found[-1].end_s == sum(course.totals(found).values())
    assert all(first.end_s == second.start_s for first, second in itertools.pairwise(found))


def test_job_that_begins_anew_loses_what_is_not_saved():
    # 3600 - 660 = 2940 s for epochs of 600 s: four, and 540 s are lost
    found = course.spans(10, 600.0, 3600.0, BEFORE)
    trained = [each.end_s - each.start_s for each in found if each.kind == "training"]
    assert trained == [2400.0, 2400.0, 1200.0]
    assert [each.job for each in found if each.kind == "lost"] == [1, 2]
    assert course.totals(found)["lost"] == 2 * 540.0
    with pytest.raises(ValueError, match=r"`limit_s` must leave time for 1 epochs of 600 s"):
        course.spans(10, 600.0, 1200.0, BEFORE)
    with pytest.raises(ValueError, match=r"leave time for 5 epochs"):
        course.spans(10, 600.0, 3600.0, BEFORE, per_job=5)


def test_picture_has_a_bar_for_each_span_and_says_how_long_each_way_takes():
    ways = {
        "anew": course.spans(10, 600.0, 3600.0, BEFORE),
        "chain": course.spans(10, 600.0, 3600.0, BEFORE, per_job=2),
    }
    figure = course.draw(ways)
    (axes,) = figure.axes
    assert len(axes.patches) == sum(map(len, ways.values()))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["anew", "chain"]
    ends = [
        max(p.get_x() + p.get_width() for p in axes.patches if round(p.get_y() + 0.3) == row)
        for row in (0, 1)
    ]
    assert ends == pytest.approx([found[-1].end_s / 3600 for found in ways.values()])
    assert "chain: 7.58 h, 5 jobs" in figure._repr_html_()
