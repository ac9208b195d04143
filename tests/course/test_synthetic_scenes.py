"""Phantoms and street scenes follow from seed and index, and show what their labels say."""

import numpy as np
import synthetic_properties as properties
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dlcourse.usecases.chest_xray import phantoms
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.video.data import Drive


def test_a_sample_depends_on_seed_and_index_alone():
    properties.assert_seed_and_index_alone(lambda count, seed=5: phantoms.chest(count, 48, seed))
    frames = list(Drive(12, 32, 5))
    assert np.array_equal(Drive(100, 32, 5)[7], frames[7])
    assert not np.array_equal(Drive(12, 32, 6)[7], frames[7])
    assert not np.array_equal(frames[3], frames[10])


def test_logistic_regression_finds_every_finding():
    # each finding against none, 128 values per picture, other patients to test with
    def row(index, names):
        pixels = phantoms.draw(4, index, index + 1, "PA", names, 48) / 255
        blocks = pixels.reshape(8, 6, 8, 6).swapaxes(1, 2).reshape(64, 36)
        return np.concatenate([blocks.mean(1), blocks.std(1)])

    healthy = [row(index, ()) for index in range(0, 160, 2)]
    scores = {}
    for finding in FINDINGS:
        ill = [row(index, (finding,)) for index in range(1, 160, 2)]
        rows = np.array([one for pair in zip(healthy, ill, strict=True) for one in pair])
        net = make_pipeline(StandardScaler(), LogisticRegression(C=1.0))
        labels = np.arange(160) % 2
        scores[finding] = net.fit(rows[:100], labels[:100]).score(rows[100:], labels[100:])
    assert min(scores.values()) > 0.65, scores
    assert np.mean(list(scores.values())) > 0.9, scores
