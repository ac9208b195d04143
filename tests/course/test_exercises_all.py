"""Exercises on all their numbers of ranks, other correct answers, and scores of open tasks."""

from __future__ import annotations

import pytest
from exercise_parts import ALL, CLOSED, OPEN, also_right, assert_hint, wrong_answers

pytestmark = pytest.mark.timeout(300)
LONGER = {name: part for name, part in ALL.items() if name not in CLOSED}
TRAINS = ("25-5", "81-6")  # for a minute or more


@pytest.fixture(scope="module")
def clusters(shared_clusters):
    return lambda numbers: map(shared_clusters, numbers)


@pytest.mark.parametrize("part", LONGER.values(), ids=LONGER)
def test_model_answer_is_accepted_on_all_its_numbers_of_ranks(part, clusters):
    assert part.judge(part.right_answer(), clusters) is None


@pytest.mark.parametrize(("part", "hint", "answer"), wrong_answers(LONGER))
def test_wrong_answer_gets_its_own_hint(part, hint, answer, clusters):
    assert_hint(part, hint, answer, clusters)


@pytest.mark.parametrize(("part", "answer"), also_right(ALL))
def test_other_correct_answer_is_accepted(part, answer, clusters):
    assert part.judge(answer, clusters) is None


@pytest.mark.parametrize("part", OPEN.values(), ids=OPEN)
def test_open_task_scores_correct_answers(part, clusters):
    cluster = next(iter(clusters(part.ranks[:1])), None)  # None: a task without ranks
    for answer in (part.right_answer(), *part.also_right):
        assert 0 < part.score(answer, cluster) < 2
