"""Exercises on two ranks: each accepts its model, and a wrong answer gets its own hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exercise_parts import ON_RANKS, assert_hint, first_mistake

pytestmark = pytest.mark.timeout(120)
RANKS = 2
QUICK = {name: part for name, part in ON_RANKS.items() if not name.startswith("26-5")}  # it trains


@pytest.fixture(scope="module")
def clusters(shared_clusters):
    return lambda numbers: map(shared_clusters, numbers)


@pytest.mark.parametrize("part", QUICK.values(), ids=QUICK)
def test_model_answer_is_accepted_and_a_mistake_gets_its_hint(part, clusters):
    part = replace(part, ranks=(RANKS,))
    assert part.judge(part.right_answer(), clusters) is None
    assert_hint(part, *first_mistake(part, RANKS), clusters)
