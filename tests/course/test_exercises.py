"""Exercises without ranks: each accepts its model, and each wrong answer gets its own hint."""

from __future__ import annotations

import pytest
from exercise_parts import (
    ALL,
    CLOSED,
    assert_hint,
    assert_type_is_refused,
    assert_unanswered,
    wrong_answers,
)

from dlcourse import exercises

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("part", CLOSED.values(), ids=CLOSED)
def test_model_answer_is_accepted(part):
    assert part.judge(part.right_answer()) is None


@pytest.mark.parametrize(("part", "hint", "answer"), wrong_answers(CLOSED))
def test_wrong_answer_gets_its_own_hint(part, hint, answer):
    assert_hint(part, hint, answer)


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
def test_ellipsis_is_not_answered(part):
    assert_unanswered(part)


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
def test_wrong_type_is_refused_with_words(part):
    assert_type_is_refused(part)


@pytest.mark.parametrize("number", exercises.exercises())
def test_remark_can_be_read(number):
    remark = exercises.exercises()[number][-1].remark
    assert remark() if callable(remark) else remark
