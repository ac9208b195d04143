"""The video case trains on ranks as in one process, and its program prints the scores."""

import sys

import layout_writers
import numpy as np
import pytest
from lanes import long
from on_ranks import on_ranks

from dlcourse import NOTEBOOKS
from dlcourse.usecases.video import data, training
from dlguide import commands

TINY = {"size": 16, "filters": 3, "blocks": 1, "discriminator_filters": 2, "global_batch": 5}
TINY |= {"epochs": 2, "dtype": "float64", "adversarial": 0.1}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two sequences of KITTI's form, with 5 clips to learn from."""
    drives = [data.Drive(frames, 32, seed=frames) for frames in (24, 13)]
    return str(layout_writers.write_kitti(tmp_path_factory.mktemp("kitti") / "training", drives))


def played(real, own):
    """What a rank finds, its pictures as plain numbers."""
    from dlcourse.usecases import video

    found = video.train(real, seed=1, **own)
    scores = [[*score.psnr, *score.ssim] for score in found.scores.values()]
    predicted = found.examples["GAN"].tolist()
    return [found.digest, found.error, found.discriminator_loss, scores, found.sizes, predicted]


@pytest.mark.parametrize("ranks", [2, *long(3, 4)])
def test_ranks_train_what_one_process_trains(ranks, real, tmp_path):
    found = on_ranks(ranks, played, tmp_path, real=real, own=TINY)
    assert len({one[0] for one in found}) == 1, "the ranks' weights differ"
    expected = played(real, {**TINY, "parallel": False})
    for one in found:
        assert np.allclose(one[1], expected[1], rtol=1e-9)
        assert np.allclose(one[2], expected[2], rtol=1e-9)
        assert np.allclose(one[3], expected[3], rtol=1e-3)
        assert one[4] == [8, 16]
        # equal weights predict equal frames, up to one level of rounding
        assert np.allclose(one[5], expected[5], atol=1)


def test_the_program_prints_the_scores_of_each_predictor(tmp_path):
    program, film = NOTEBOOKS / "programs" / "video.py", tmp_path / "film.gif"
    asked = ["--ranks", 2, "--size", 16, "--epochs", 2, "--drives", 1, "--global-batch", 4]
    done = commands.run([sys.executable, str(program), *asked, "--film", str(film)], 200)
    assert done.ok, done.output
    assert all(name in done.output for name in ("repeat", "flow", "fitted", "GAN", "clips/s"))
    assert film.read_bytes()[:3] == b"GIF"


def replicated(own):
    """On a rank: what it held while rank 0 sent copies of its nets."""
    from dataclasses import asdict

    from dlcourse.usecases import video

    found = video.replicate(global_batch=4, steps=2, **own)
    return [found.rank, asdict(found.held), found.moved, found.loss]


def test_rank_0_that_sends_copies_of_its_nets_holds_moments_and_arriving_gradients_too(tmp_path):
    own = {"filters": 2, "blocks": 1, "discriminator_filters": 2}
    asked = training.VideoConfig(**own)
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
