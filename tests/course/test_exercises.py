"""Every exercise accepts its model, and each wrong answer gets its own hint."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from dlcourse import exercises
from dlcourse.exercises.engine import NotAnswered, TimeUp, WrongAnswer

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]
ALL = {
    f"{number}{f' part {place}' if len(parts) > 1 else ''}": part
    for number, parts in exercises.exercises().items()
    for place, part in enumerate(parts)
}
WRONG = [
    pytest.param(part, hint, answer, id=f"{name}-{place}")
    for name, part in ALL.items()
    for place, (hint, answer) in enumerate(part.wrong_answers())
]


@pytest.fixture(scope="module")
def clusters():
    """The clusters with the numbers of ranks that an exercise names."""
    from dlguide.cluster import Cluster

    with ExitStack() as stack:
        running = {}

        def of(numbers):
            for ranks in numbers:
                if ranks not in running:
                    new = Cluster(ranks=ranks, oversubscribe=True)
                    running[ranks] = stack.enter_context(new)
                yield running[ranks]

        yield of


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
def test_model_answer_is_accepted(part, clusters):
    assert part.judge(part.right_answer(), clusters) is None


@pytest.mark.parametrize(("part", "hint", "answer"), WRONG)
def test_wrong_answer_gets_its_own_hint(part, hint, answer, clusters):
    with pytest.raises(WrongAnswer) as caught:
        part.judge(answer, clusters)
    assert not isinstance(caught.value, NotAnswered)
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
def test_ellipsis_is_not_answered(part, clusters):
    right = part.right_answer()
    empty = (lambda *arguments: ...) if callable(right) else ...
    if isinstance(right, dict):
        empty = dict.fromkeys(right, ...)
    with pytest.raises(NotAnswered):
        part.judge(empty, clusters)


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
def test_wrong_type_is_refused_with_words(part, clusters):
    with pytest.raises(WrongAnswer, match="Expected: a"):
        part.judge(3.5 if callable(part.right_answer()) else object(), clusters)


@pytest.mark.parametrize("number", exercises.exercises())
def test_exercise_has_two_wrong_answers_and_a_remark(number):
    parts = exercises.exercises()[number]
    assert sum(len(list(part.wrong_answers())) for part in parts) >= 2
    remark = parts[-1].remark
    assert remark() if callable(remark) else remark


def test_on_ranks_the_first_wrong_rank_is_named(clusters):
    def first_right(comm, array):
        left = comm.sendrecv(array, (comm.rank + 1) % comm.size)
        return left if comm.rank == 0 else array

    with pytest.raises(WrongAnswer, match=r"^first_right gave \[.*\] on rank 1 of 2\."):
        replace(ALL["01-1"], ranks=(2,)).judge(first_right, clusters)


def test_endless_answer_on_ranks_is_stopped_and_the_ranks_work_again(clusters):
    def forever(comm, part):
        while True:
            pass

    endless = replace(ALL["01-2"], limit_s=1.0)
    begun_s = time.monotonic()
    with pytest.raises(TimeUp):
        endless.judge(forever, clusters)
    assert time.monotonic() - begun_s < 10
    assert endless.judge(endless.model, clusters) is None


TRAINS = ("25-5", "81-6")  # for a minute or more
OPEN = [
    pytest.param(part, id=name, marks=[pytest.mark.long] * (name.startswith(TRAINS)))
    for name, part in ALL.items()
    if getattr(part, "score", None)
]


@pytest.mark.parametrize("part", OPEN)
def test_open_task_scores_its_model_as_a_share(part, clusters):
    cluster = next(iter(clusters(part.ranks[:1])), None)  # None: a task without ranks
    assert 0 < part.score(part.right_answer(), cluster) < 1.5
