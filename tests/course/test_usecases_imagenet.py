"""The recipe of ResNet-50: the guide's numbers, ImageNet found or refused, how pictures come in.

dlcourse.usecases.imagenet.recipe, dlcourse.usecases.imagenet.data, dlcourse.pictures.recipe_curves,
dlcourse.usecases.imagenet.report. The training itself: test_usecases_imagenet_train.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from imagenet_writers import write_folders, write_shards

from dlcourse.usecases import imagenet
from dlcourse.usecases.imagenet import GUIDE, SMALL
from dlcourse.usecases.imagenet.recipe import Iterations
from dlcourse.usecases.imagenet.report import Branch, Curve, Outcome
from dlguide import errors
from dlguide.data import input_pipeline, synthetic
from dlguide.errors import DataError


def test_iterations_are_the_guides():
    # by construction: the number of pictures was made from the 8040 of them
    assert GUIDE.iterations() == imagenet.PUBLISHED == Iterations(446, 7594, 7638, 402)
    assert GUIDE.global_batch == 14336 == 896 * 16
    assert GUIDE.workers == 896
    assert abs(GUIDE.samples / 1_281_167 - 1) < 0.001
    assert GUIDE.paid == 94.5


def test_rates_and_decay_are_those_of_the_published_solvers():
    """base_lr 4.8 and 0.254, power 1 and 2, weight_decay 5e-5 and 1e-4, warmup_start_lr 0.1."""
    steps = 90  # of an epoch: ours has whole ones
    line, end = GUIDE.part_1().rates.to_steps(steps), GUIDE.part_2()
    rates, decays = end.rates.to_steps(steps), end.weight_decay.to_steps(steps)
    left = round(85.5 * steps)
    assert line.rate(0) == pytest.approx(0.1)
    assert line.rate(5 * steps) == pytest.approx(4.8)
    assert round(line.rate(left), 3) == 0.254
    for part in (0.0, 0.25, 0.5, 0.9):
        step = left + round(part * 4.5 * steps)
        done = (step - left) / (rates.steps - left)
        assert rates.rate(step) == pytest.approx(line.rate(left) * (1 - done) ** 2)
    assert decays.rate(left - 1) == 5e-5
    assert decays.rate(left) == 1e-4
    assert GUIDE.part_1().weight_decay.to_steps(steps).rate(left) == 5e-5
    assert end.at == 85.5
    assert (end.rates.epochs, GUIDE.part_1().rates.epochs) == (90, 90)


def test_the_error_of_a_gain_counts_the_pictures_on_which_the_nets_differ():
    """Against the spread of gains when each of these pictures falls to either net by chance."""
    one = outcome()
    gain, error = one.over_line(one.collapsed)
    assert gain == pytest.approx(one.gain)
    drawn = np.random.default_rng(0).multinomial(
        2400, [272 / 2400, 200 / 2400, 1 - 472 / 2400], 20_000
    )
    assert error == pytest.approx(np.std(100 * (drawn[:, 0] - drawn[:, 1]) / 2400), rel=0.02)


def test_rates_follow_the_global_batch():
    four, alone = SMALL.with_workers(4), SMALL.with_workers(1)
    assert (four.global_batch, four.rate, four.nodes) == (64, 2 * SMALL.rate, 2)
    assert (alone.global_batch, alone.rate, alone.nodes) == (16, SMALL.rate / 2, 1)
    assert SMALL.with_workers(3).workers == 3
    assert (SMALL.with_batch(4).global_batch, SMALL.with_batch(4).rate) == (8, SMALL.rate / 4)
    assert GUIDE.with_workers(896) == GUIDE


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"collapse_at": 18}, "`collapse_at` must lie between the 1 epochs of warmup and the end"),
        ({"collapse_at": 1}, "`collapse_at` must lie between"),
        ({"batch_per_worker": 0}, "`batch_per_worker` must be a whole number"),
        ({"rate": 0}, "`rate` must be"),
    ],
)
def test_roads_that_lead_nowhere_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"workers": 0}, "`workers` must be a whole number"),
        ({"epochs": 1}, "`epochs` must be a number of at least 2, whole, got 1"),
        ({"epochs": 2.5}, "`epochs` must be a number of at least 2, whole"),
        ({"samples": 40}, "`samples` must be a whole number of at least 64, got 40"),
        (
            {"epochs": 2, "samples": 64},
            "`epochs` must have a step for the 0.166667 epochs of warmup",
        ),
        ({"net": "resnet9"}, "`net` must be one of .*resnet8"),
        ({"net": "mlp"}, "`net` must be one of"),
        ({"subset": True}, "`subset` must be False without `real`"),
        ({"batch_per_worker": -1}, "`batch_per_worker` must be a whole number"),
    ],
)
def test_settings_are_refused_before_any_rank_starts(asked, text):
    with pytest.raises(ValueError, match=text):
        imagenet.check(**asked)


def pictures(count, seed=0):
    return synthetic.images(classes=3, size=24, count=count, seed=seed, vary=True)


@pytest.fixture
def folders(tmp_path):
    return write_folders(tmp_path / "folders", pictures(12), pictures(6, 1))


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards", pictures(12), pictures(6, 1), (3, 2))


def test_nothing_where_imagenet_was_looked_for_is_named(tmp_path):
    for path, what in ((tmp_path / "none", "is not there"), (tmp_path / "file", "is a file")):
        if what == "is a file":
            path.write_text("")
        with pytest.raises(errors.MissingComponentError, match=f"`real` {what}: {path}") as error:
            imagenet.find(path)
        assert "train/n01440764" in str(error.value)
        assert "train-00000-of-01024" in str(error.value)


def test_half_downloaded_folders_say_what_was_looked_for_found_and_where(folders):
    with pytest.raises(DataError) as error:
        imagenet.check(real=folders)
    text = str(error.value)
    for words in (f"{folders / 'train'}: ", "looked for 1000 classes, found 3", "subset=True"):
        assert words in text
    found = imagenet.find(folders, subset=True)
    assert (len(found.train), len(found.test), found.classes) == (12, 6, 3)
    (folders / "val").rename(folders / "gone")
    with pytest.raises(errors.MissingComponentError, match="no folder 'val' of ImageNet at"):
        imagenet.find(folders, subset=True)


@pytest.mark.parametrize("form", ["folders", "shards"])
def test_real_pictures_come_through_the_pipelines_as_the_guide_prepares_them(form, request):
    found = imagenet.find(request.getfixturevalue(form), subset=True)
    four = imagenet.SMALL.with_batch(4)
    recipe = replace(four, classes=found.classes, samples=12, test_samples=6)
    train, test = imagenet.pipelines(recipe, found)
    images, labels = (np.asarray(part) for part in next(iter(train.epoch(0))))
    assert images.shape == (4, 20, 20, 3)
    assert set(labels) <= {0, 1, 2}
    # (pixel - mean) * 0.0078125 of pixels from 0 to 255
    assert images.min() >= -123 / 128 - 1e-6
    assert images.max() <= (255 - 104) / 128 + 1e-6
    assert images.max() > 0.3
    assert not any(one.draws for one in test.augment)
    assert test.augment[0] == input_pipeline.CentreCrop(20, 20, 23)


def test_made_up_pictures_of_training_and_test_differ_and_follow_the_seed():
    recipe = replace(SMALL, samples=64, test_samples=64)
    one, again, other = (imagenet.pictures(recipe, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.train_images, again.train_images)
    assert not np.array_equal(one.train_images, one.test_images)
    assert not np.array_equal(one.test_images, other.train_images)
    assert set(one.train_labels) == set(range(40))


def outcome(rank=0):
    curve = Curve(0, (3.0,) * 10, (0.5,) * 10, tuple(np.arange(10) / 20), 0.01, 800.0, 9.0)
    last = Curve(10, (1.1, 1.0), (0.7, 0.8), (0.8, 0.83), 0.01, 800.0, 1.0)
    ends = [Branch(name, last, top, 0.95, "a", *pair) for name, top, pair in
            (("line", 0.80, (0, 0)), ("collapsed", 0.83, (272, 200)))]  # fmt: skip
    return Outcome(
        rank, 2, 1, "cpu", "The CPU, as asked for.", "pictures", 0, False, SMALL, curve, *ends
    )


def test_picture_has_the_last_epochs_of_both_endings_with_their_errors():
    drawn = imagenet.picture(outcome())
    rate, accuracy = drawn.axes
    line, end = (each.get_ydata() for each in rate.lines)
    assert max(line) < 0.6 * SMALL.rate  # the warmup is not shown
    assert len(line) == len(end)
    assert (line >= end).all()
    assert (line > end).any()
    (_, low), (_, high) = accuracy.collections[1].get_segments()[-1]
    assert (low + high) / 2 == pytest.approx(83)
    assert (high - low) / 2 == pytest.approx(100 * (0.83 * 0.17 / SMALL.tested) ** 0.5)
