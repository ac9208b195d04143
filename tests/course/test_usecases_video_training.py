"""The video case trains on ranks as in one process, goes on bit by bit."""

import layout_writers
import numpy as np
import pytest
from lanes import long
from on_ranks import on_ranks

from dlcourse.usecases.video import street_scenes, training
from dlguide.training import checkpoint

TINY = {
    "size": 16,
    "filters": 3,
    "blocks": 1,
    "discriminator_filters": 2,
    "spacing": 3,
    "global_batch": 5,
    "epochs": 2,
}
TINY |= {"dtype": "float64", "adversarial": 0.1}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two sequences of KITTI's form, with 5 clips to learn from."""
    drives = [street_scenes.driving(frames, 32, seed=frames) for frames in (24, 13)]
    return str(layout_writers.write_kitti(tmp_path_factory.mktemp("kitti") / "training", drives))


def played(real, saves, own, stop):
    """Train in one go, or be stopped in the second epoch and go on."""
    from dlcourse.usecases import video

    class Stopped(Exception):
        pass

    def stopping(**numbers):
        if stop and numbers["epoch"] == 2:
            raise Stopped

    try:
        found = video.train(real, seed=1, checkpoint=saves, report=stopping, **own)
    except Stopped:
        found = video.train(real, seed=1, checkpoint=saves, **own)
    scores = [[*score.psnr, *score.ssim] for score in found.scores.values()]
    return [
        found.digest,
        found.first_epoch,
        found.error,
        found.discriminator_loss,
        scores,
        found.sizes,
    ]


def last_weights(folder):
    found, arrays = checkpoint.read(checkpoint.latest(folder))
    assert found.epoch == 2
    return np.concatenate([np.ravel(array) for array in arrays])


@pytest.fixture(scope="module")
def alone(real, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    found = played(real, folder / "saved", {**TINY, "parallel": False}, False)
    return found, last_weights(folder / "saved")


@pytest.mark.parametrize("ranks", [2, *long(3, 4)])
def test_ranks_train_what_one_process_trains(ranks, real, alone, tmp_path):
    saved = tmp_path / "saved"
    found = on_ranks(ranks, played, tmp_path, real=real, saves=str(saved), own=TINY, stop=False)
    assert len({one[0] for one in found}) == 1, "the ranks' weights differ"
    expected, weights = alone
    assert np.allclose(last_weights(saved), weights, rtol=1e-6, atol=1e-9)
    for one in found:
        assert np.allclose(one[2], expected[2], rtol=1e-9)
        assert np.allclose(one[3], expected[3], rtol=1e-9)
        assert np.allclose(one[4], expected[4], rtol=1e-3)
        assert one[5] == [8, 16]


def test_stopped_training_goes_on_bit_by_bit(real, alone, tmp_path, capsys):
    own = {**TINY, "parallel": False}
    found = played(real, tmp_path / "saved", own, True)
    assert found[1] == 1
    assert "epoch 1 of 2" in capsys.readouterr().out
    assert found[0] == alone[0][0]
    assert np.array_equal(last_weights(tmp_path / "saved"), alone[1])
    # a finished one says so, and is not trained again
    again = played(real, tmp_path / "saved", own, False)
    assert "is a finished training: epoch 2 of 2. Nothing will be trained" in (
        capsys.readouterr().out
    )
    assert (again[0], again[2]) == (found[0], ())


def replicated(own):
    """On a rank: what it held while rank 0 sent copies of its nets."""
    from dataclasses import asdict

    from dlcourse.usecases import video

    found = video.replicate(global_batch=4, steps=2, **own)
    return [found.rank, asdict(found.held), found.moved, found.loss]


def test_rank_0_that_sends_copies_of_its_nets_holds_moments_and_arriving_gradients_too(tmp_path):
    own = {"filters": 2, "blocks": 1, "discriminator_filters": 2}
    asked = training.config_of(None, **own)
    weights = 4 * sum(net.count_params() for net in training.build(asked))
    clips = 3 * 4 * 6 * 32 * 32 * 3
    first, other = on_ranks(2, replicated, tmp_path, own=own)
    assert (first[0], other[0]) == (0, 1)
    assert first[1]["state"] == 2 * weights
    assert first[1]["arriving"] == weights
    assert (other[1]["state"], other[1]["arriving"]) == (0, 0)
    for held in (first[1], other[1]):
        assert held["weights"] == held["gradients"] == weights
    assert (first[1]["inputs"], other[1]["inputs"]) == (clips, clips // 2)
    assert first[2] == other[2] == 2 * weights + clips // 2
    assert np.isfinite(first[3])
