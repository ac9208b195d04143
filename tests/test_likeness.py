"""The distance of two sets of samples is that of the normal distributions that fit them.

Tests dlguide.training.likeness.
"""

import numpy as np
import pytest

from dlguide.training.likeness import frechet_distance

RANDOM = np.random.default_rng(1)


def stretched(samples, means, deviations):
    """Samples whose mean and (diagonal) covariance are exactly these."""
    rows = RANDOM.normal(size=(samples, len(means)))
    rows -= rows.mean(axis=0)
    rows = rows @ np.linalg.inv(np.linalg.cholesky(np.cov(rows, rowvar=False))).T
    return rows * deviations + means


def test_distance_of_diagonal_covariances_is_the_sum_over_the_axes():
    ones, others = (
        np.array([[0.0, 1.0, -2.0], [3.0, 1.0, -1.0]]),
        np.array([[1, 2, 3], [2, 2, 0.5]]),
    )
    sets = [stretched(50, mean, dev) for mean, dev in zip(ones, others, strict=True)]
    wanted = ((ones[0] - ones[1]) ** 2 + (others[0] - others[1]) ** 2).sum()
    assert frechet_distance(*sets) == pytest.approx(wanted)


def test_distance_of_covariances_that_do_not_commute_is_that_of_their_matrix_root():
    sets = [RANDOM.normal(size=(40, 3)) @ RANDOM.normal(size=(3, 3)) for _ in range(2)]
    one, two = (np.cov(each, rowvar=False) for each in sets)
    # tr (C1^1/2 C2 C1^1/2)^1/2 is the sum of the roots of the eigenvalues of C1 C2
    roots = np.sqrt(np.linalg.eigvals(one @ two).real).sum()
    wanted = ((sets[0].mean(0) - sets[1].mean(0)) ** 2).sum()
    wanted += np.trace(one) + np.trace(two) - 2 * roots
    assert frechet_distance(*sets) == pytest.approx(wanted)


def test_distance_is_symmetric_and_nothing_to_oneself():
    one, other = RANDOM.normal(size=(30, 4)), RANDOM.normal(1, 2, size=(60, 4))
    assert frechet_distance(one, other) == pytest.approx(frechet_distance(other, one))
    assert frechet_distance(one, one[::-1]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (np.zeros((1, 3)), np.zeros((5, 3)), r"`one` must be samples x features"),
        (np.zeros((5, 3)), np.zeros(5), r"`other` must be samples x features"),
        (np.zeros((5, 3)), np.zeros((5, 2)), r"`other` must have the 3 features"),
    ],
)
def test_what_is_no_table_of_features_is_refused(one, other, text):
    with pytest.raises(ValueError, match=text):
        frechet_distance(one, other)
