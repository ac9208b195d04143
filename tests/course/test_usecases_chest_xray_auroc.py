"""Areas under ROC curves: exact with ties, intervals that hold what they promise."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from dlcourse.usecases.chest_xray import report as auroc

SOME = [round(each, 2) for each in np.linspace(0, 1, 7)]


def pairs(labels, scores):
    """The definition: all pairs, one by one."""
    won = [
        (a > b) + 0.5 * (a == b)
        for a, truth in zip(scores, labels, strict=True)
        if truth
        for b, other in zip(scores, labels, strict=True)
        if not other
    ]
    return sum(won) / len(won)


def resampled(truth, scores, who, draws, seed):
    """Areas of patients drawn with replacement: the bootstrap."""
    rng, found = np.random.default_rng(seed), []
    groups = [np.flatnonzero(who == each) for each in range(who.max() + 1)]
    while len(found) < draws:
        rows = np.concatenate(
            [groups[each] for each in rng.integers(len(groups), size=len(groups))]
        )
        if 0 < truth[rows].sum() < len(rows):
            found.append(roc_auc_score(truth[rows], scores[rows]))
    return np.array(found)


def seen(patients, shift, rng, each=3, alike=0.8):
    """Radiographs of patients who resemble themselves; a finding belongs to the patient."""
    truth = np.repeat(rng.random(patients) < 0.4, each)
    own = np.repeat(rng.standard_normal(patients), each)
    noise = rng.standard_normal(patients * each)
    scores = math.sqrt(alike) * own + math.sqrt(1 - alike) * noise + shift * truth
    return truth, scores, np.repeat(np.arange(patients), each)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(SOME)), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_area_counts_all_pairs_and_half_the_ties(rows):
    labels, scores = zip(*rows, strict=True)
    if len(set(labels)) < 2:
        return
    value, _ = auroc.influence_of(labels, scores, np.arange(len(rows)))
    assert value == pytest.approx(pairs(labels, scores), abs=1e-12)


def test_variance_of_single_radiographs_is_delongs():
    rng = np.random.default_rng(2)
    labels, scores = rng.random(80) < 0.3, rng.standard_normal(80).round(1)
    positives, negatives = scores[labels], scores[~labels]
    won = (positives[:, None] > negatives) + 0.5 * (positives[:, None] == negatives)
    delong = won.mean(1).var(ddof=1) / len(positives) + won.mean(0).var(ddof=1) / len(negatives)
    value, influence = auroc.influence_of(labels, scores, np.arange(80))
    assert value == pytest.approx(won.mean())
    assert (influence**2).sum() == pytest.approx(delong, rel=1e-12)


def test_intervals_hold_the_true_area_as_often_as_they_say():
    rng, shift, held, fooled, draws = np.random.default_rng(4), 1.2, 0, 0, 400
    true = NormalDist().cdf(shift / math.sqrt(2))
    for _ in range(draws):
        truth, scores, who = seen(60, shift, rng)
        ours = auroc.areas(truth[:, None], scores[:, None], who, ["Mass"])[0]
        naive = auroc.areas(truth[:, None], scores[:, None], np.arange(len(who)), ["Mass"])[0]
        held += ours.low <= true <= ours.high
        fooled += naive.low <= true <= naive.high
    assert 0.91 <= held / draws <= 0.98
    assert fooled / draws < 0.85


def test_error_is_that_of_patients_drawn_again():
    truth, scores, who = seen(80, 1.0, np.random.default_rng(5))
    ours = auroc.areas(truth[:, None], scores[:, None], who, ["Mass"])[0]
    drawn = resampled(truth, scores, who, draws=600, seed=1)
    assert ours.error == pytest.approx(drawn.std(), rel=0.12)
    assert drawn.mean() == pytest.approx(ours.value, abs=0.01)


def test_mean_is_that_of_the_areas_and_its_error_knows_that_they_go_together():
    rng = np.random.default_rng(6)
    truth, scores, who = seen(80, 1.0, rng)
    same = auroc.areas(
        np.stack([truth] * 3, 1), np.stack([scores] * 3, 1), who, ["Mass", "Edema", "Hernia"]
    )
    assert same[-1].name == "mean"
    assert same[-1].value == pytest.approx(same[0].value)
    assert same[-1].error == pytest.approx(same[0].error)
    parts = [seen(80, 1.0, rng) for _ in range(4)]
    apart = auroc.areas(
        np.stack([each[0] for each in parts], 1), np.stack([each[1] for each in parts], 1), who,
        "abcd",
    )  # fmt: skip
    assert apart[-1].value == pytest.approx(np.mean([each.value for each in apart[:-1]]))
    assert apart[-1].error < 0.75 * min(each.error for each in apart[:-1])


def test_finding_that_no_patient_has_is_left_out():
    rng = np.random.default_rng(7)
    labels = np.stack([rng.random(50) < 0.3, np.zeros(50, bool)], 1)
    found = auroc.areas(labels, rng.random((50, 2)), np.arange(50), ["Mass", "Hernia"])
    assert [each.name for each in found] == ["Mass", "mean"]
    with pytest.raises(ValueError, match="`labels` must have findings that some"):
        auroc.areas(labels[:, 1:], rng.random((50, 1)), np.arange(50), ["Hernia"])


@pytest.mark.parametrize(("sign", "value"), [(1, 1.0), (-1, 0.0)])
def test_perfect_area_of_few_patients_is_not_certain(sign, value):
    labels = np.array([[1], [1], [1], [0], [0], [0], [0]])
    found = auroc.areas(labels, sign * labels, np.arange(7), ["Hernia"])[0]
    assert found.value == value
    assert 0.2 < found.high - found.low < 0.8
    many = auroc.areas(np.repeat(labels, 20, 0), sign * np.repeat(labels, 20, 0), np.arange(140),
                       ["Hernia"])[0]  # fmt: skip
    assert 0 < many.high - many.low < 0.06


def test_difference_of_two_nets_has_the_variance_of_their_influences():
    rng = np.random.default_rng(8)
    truth, scores, who = seen(70, 1.0, rng)
    other = scores + 0.3 * rng.standard_normal(len(scores))
    table = [each[:, None] for each in (truth, scores, other)]
    found = auroc.areas(*table[:2], who, ["Mass"], minus=table[2])
    assert [each.name for each in found] == ["Mass", "mean"]
    areas = [roc_auc_score(truth, each) for each in (scores, other)]
    assert found[0].value == pytest.approx(areas[0] - areas[1])
    drawn = [resampled(truth, each, who, draws=500, seed=2) for each in (scores, other)]
    assert found[0].error == pytest.approx((drawn[0] - drawn[1]).std(), rel=0.15)
    apart = math.hypot(*(auroc.areas(*table[:1], each, who, ["Mass"])[0].error
                         for each in table[1:]))  # fmt: skip
    assert found[0].error < 0.6 * apart


def test_expected_error_is_that_of_exponential_scores():
    rng, found = np.random.default_rng(10), []
    for _ in range(600):  # P(x > y) = scale / (1 + scale)
        scores = np.r_[rng.exponential(4.0, 12), rng.exponential(1.0, 30)]
        found.append(roc_auc_score([1] * 12 + [0] * 30, scores))
    assert np.mean(found) == pytest.approx(0.8, abs=0.01)
    assert auroc.expected_error(0.8, 12, 30) == pytest.approx(np.std(found), rel=0.1)
    assert auroc.expected_error(0.5, 1, 1) == pytest.approx(0.5)
