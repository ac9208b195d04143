"""The video case's metrics, predictors, scenes, settings and pictures are what they say."""

import shutil

import layout_writers
import numpy as np
import pytest

from dlcourse.usecases import video
from dlcourse.usecases.video import baselines, data, street_scenes, training
from dlguide.errors import DataError, MissingComponentError

RANDOM = np.random.default_rng(80)
NOISE = RANDOM.integers(0, 256, (3, 2, 24, 28, 3)).astype(np.uint8)


# --- metrics -----------------------------------------------------------------------------------


def test_psnr_of_an_error_of_a_fifth_of_the_range_is_14_decibels():
    truth = np.full((1, 2, 12, 12, 3), 100, np.uint8)
    decibels = 20 * np.log10(5)
    assert np.allclose(video.judge(truth, truth + np.uint8(51)).psnr, decibels)
    assert np.isinf(video.judge(truth, truth).psnr).all()
    # half of the pixels wrong: half of the squared error
    half = truth.copy()
    half[..., :6, :, :] += 51
    assert np.allclose(video.judge(truth, half).psnr, decibels + 10 * np.log10(2))


def ssim(truth, predicted):
    """Wang et al., equation 13, from every window of 11 x 11 pixels."""
    weights = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    windows = [
        np.lib.stride_tricks.sliding_window_view(each.astype(float), (11, 11), axis=(-3, -2))
        for each in (truth, predicted)
    ]
    mean_a, mean_b = ((each * weights).sum((-2, -1)) for each in windows)
    a, b = windows[0] - mean_a[..., None, None], windows[1] - mean_b[..., None, None]
    spread = ((a**2 + b**2) * weights).sum((-2, -1))
    together = (a * b * weights).sum((-2, -1))
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    bright = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return (bright * (2 * together + c2) / (spread + c2)).mean(axis=(0, 2, 3, 4))


def test_ssim_is_that_of_the_paper_window_by_window():
    other = np.clip(NOISE + RANDOM.normal(0, 30, NOISE.shape), 0, 255).astype(np.uint8)
    smooth = np.repeat(NOISE[..., :1, :], NOISE.shape[-2], axis=-2)
    for predicted in (other, smooth, 255 - NOISE, NOISE // 2):
        assert np.allclose(video.judge(NOISE, predicted).ssim, ssim(NOISE, predicted))
    # the negative of noise is as bright and as unlike as can be
    assert max(video.judge(NOISE, 255 - NOISE).ssim) < -0.8


def test_ssim_of_flat_frames_follows_the_closed_form():
    a, b, c1 = 80, 120, (0.01 * 255) ** 2
    flat = np.ones((1, 1, 11, 11, 3), np.uint8)
    expected = (2 * a * b + c1) / (a * a + b * b + c1)
    assert np.allclose(video.judge(a * flat, b * flat).ssim, expected)
    assert np.allclose(video.judge(NOISE, NOISE).ssim, 1)


def test_blur_costs_more_in_ssim_and_darkness_more_in_psnr():
    edges = np.zeros((1, 1, 32, 32, 3)) + 200.0 * (np.arange(32) // 4 % 2)[:, None]
    blurred = (edges + np.roll(edges, 1, 3) + np.roll(edges, 2, 3)) / 3
    true = video.shown(edges)
    dark, blurred = (video.judge(true, video.shown(each)) for each in (0.8 * edges, blurred))
    assert dark.ssim > blurred.ssim


@pytest.mark.parametrize(
    ("truth", "predicted", "text"),
    [
        ((1, 2, 12, 12, 3), (1, 2, 12, 12, 1), r"`predicted` must have the shape"),
        ((12, 12), (12, 12), r"`truth` must have the shape \(clips, frames, rows"),
        ((1, 1, 10, 12, 3), (1, 1, 10, 12, 3), "at least 11 x 11 pixels"),
    ],
)
def test_frames_that_cannot_be_compared_are_refused(truth, predicted, text):
    with pytest.raises(ValueError, match=text):
        video.judge(np.zeros(truth, np.uint8), np.zeros(predicted, np.uint8))
    with pytest.raises(ValueError, match="`predicted` must be uint8"):
        video.judge(NOISE, NOISE.astype(float))


# --- predictors --------------------------------------------------------------------------------


def moving(pixels, frames=12, size=40):
    """A smooth texture that moves by so many rows and columns in a frame."""
    rows, columns = np.mgrid[:size, :size].astype(float)
    found = []
    for number in range(frames):
        r, c = rows - number * pixels[0], columns - number * pixels[1]
        grey = 128 + 60 * np.sin(r / 3) * np.cos(c / 4) + 30 * np.sin(r / 5 + c / 3)
        found.append(np.repeat(grey[..., None], 3, axis=-1))
    return np.stack(found)[None]


@pytest.mark.parametrize("pixels", [(0, 0), (0.5, 0), (0, -1.0), (-0.7, 0.6), (1.5, 1.0)])
def test_flow_finds_how_far_a_texture_moves_and_goes_on(pixels):
    clip = moving(pixels)
    found = baselines.motion(clip[0, :6])[:, 8:-8, 8:-8]
    assert np.allclose(found.mean(axis=(1, 2)), pixels, atol=0.05)
    predicted = baselines.flow(clip[:, :6], 2)
    inside = (slice(None), slice(None), slice(8, -8), slice(8, -8))
    error = np.abs(predicted - clip[:, 6:8])[inside].mean()
    still = np.abs(baselines.repeat(clip[:, :6], 2) - clip[:, 6:8])[inside].mean()
    assert error < (0.25 * still if any(pixels) else 0.5)


def test_repeat_and_mean_are_the_last_frame_and_the_average():
    past = NOISE[:2]
    assert np.array_equal(baselines.repeat(past, 3), np.stack([past[:, -1]] * 3, axis=1))
    assert np.allclose(baselines.mean(past, 2)[:, 1], past.astype(float).mean(axis=1))


def test_the_fitted_blend_finds_the_weights_of_which_clips_are_made():
    past, moved = RANDOM.uniform(0, 255, (2, 9, 6, 12, 12, 3))
    true = 0.2 * baselines.repeat(past, 6) + 0.3 * baselines.mean(past, 6) + 0.5 * moved
    weights = baselines.fit(past, true, moved)
    assert np.allclose(weights, [0.2, 0.3, 0.5], atol=0.01)
    assert np.allclose(baselines.fitted(weights, past, moved), true, atol=1)


# --- scenes ------------------------------------------------------------------------------------


def test_drives_that_are_held_out_are_none_of_those_learnt_from():
    learn, test = data.drawn(32, 5000, 5000, 12, seed=1)
    seeds = [{one.frames.seed for one in part} for part in (learn, test)]
    assert not seeds[0] & seeds[1]
    # nor of those of another seed
    assert not (seeds[0] | seeds[1]) & {one.frames.seed for one in data.drawn(32, 9, 9, 12, 2)[1]}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Five sequences of KITTI's form, one of them too short for a clip."""
    drives = [street_scenes.driving(frames, 32, seed=frames) for frames in (12, 14, 5, 24, 13)]
    return layout_writers.write_kitti(tmp_path_factory.mktemp("kitti") / "training", drives)


@pytest.fixture
def copy(real, tmp_path):
    shutil.copytree(real, tmp_path / "training")
    return tmp_path / "training"


@pytest.mark.parametrize("parent", [False, True])
def test_kitti_is_read_from_its_folder_or_the_one_above(real, parent):
    found = data.load(real.parent if parent else real, size=16, step=12)
    # of 12, 14 and 24 frames; that of 13 is held out, that of 5 holds no clip
    assert (found.drives, found.past.shape) == ((3, 1), (4, 6, 16, 16, 3))
    assert len(found.test_past) == 1
    assert "4 sequences" not in found.name
    learned, held_out = data.kitti(real.parent if parent else real, 16)
    assert ([len(one) for one in learned], [len(one) for one in held_out]) == ([12, 14, 24], [13])


def test_missing_data_is_named_with_what_was_looked_for(tmp_path):
    with pytest.raises(MissingComponentError, match=r"There is no folder of KITTI's .*image_02"):
        video.check(tmp_path / "nothing")
    archive = tmp_path / "data_tracking_image_2.zip"
    archive.write_bytes(b"PK")
    with pytest.raises(DataError, match=r"is a file\. Unpack it"):
        video.check(archive)


@pytest.mark.parametrize(
    ("damage", "text"),
    {
        "a frame in between": (lambda base: (base / "image_02/0001/000003.png").unlink(),
                               r"0001: frame 000003.png is missing, got '000004.png'"),
        "the last frames": (lambda base: [(base / f"image_02/0003/{n:06d}.png").unlink()
                                          for n in range(20, 24)],
                            r"0003.txt, line \d+: frame 20 of a sequence with 20"),
        "another data set": (lambda base: (base / "image_02/n01440764").mkdir(),
                             "n01440764: no sequence"),
        "all but one": (lambda base: [shutil.rmtree(base / f"image_02/000{n}")
                                      for n in (1, 2, 3, 4)],
                        "1 of 1 sequences have the 12 frames"),
    }.values(),
)  # fmt: skip
def test_data_that_is_there_in_part_is_refused_before_anything_starts(copy, damage, text):
    damage(copy)
    with pytest.raises(DataError, match=text):
        video.check(copy)
    with pytest.raises(DataError, match=text):
        video.train(copy, parallel=False, size=16)


# --- settings and growing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"size": 8}, "`size` must be at least 16"),
        ({"size": 48}, "`size` must be 8 doubled a few times"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1"),
        ({"adversarial": -1}, "`adversarial` must be a number of at least 0"),
        ({"frames": 11}, "`frames` must be a whole number of at least 12"),
        ({"dtype": "float16"}, "`dtype` must be one of"),
        ({"epoch": 3}, "Did you mean epochs"),
    ],
)
def test_settings_that_make_no_training_are_refused(own, text):
    with pytest.raises(ValueError, match=text):
        video.check(**own)


@pytest.mark.parametrize("resolutions", [1, 2, 3, 5])
def test_pair_grows_and_never_shrinks_and_ends_whole(resolutions):
    for epochs in range(1, 30):
        found = training.stages(epochs, resolutions)
        assert len(found) == epochs
        assert list(found) == sorted(found)
        assert found[-1] == resolutions
        assert found.count(resolutions) >= epochs / 2
        if epochs >= 2 * resolutions:
            assert set(found) == set(range(1, resolutions + 1))


def test_rate_stays_and_then_falls_to_almost_nothing():
    rates = [training.rate_at(step, 100, 2.0) for step in range(100)]
    assert rates[:50] == [2.0] * 50
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.1


# --- outcome, findings, files ------------------------------------------------------------------
