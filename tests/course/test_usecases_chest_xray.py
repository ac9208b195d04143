"""The case as a whole: ranks like one process, going on bit by bit, errors on all ranks alike."""

import json
import pickle
import shutil

import layout_writers
import numpy as np
import pytest
from lanes import TRAINED
from on_ranks import on_ranks

from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import data, model, phantoms
from dlcourse.usecases.chest_xray.train import ChestXrayConfig, tuning_schedule
from dlguide.training import checkpoint
from dlguide.training.checkpoint import CheckpointError

SMALL = {"epochs": 2, "pretrain_epochs": 2, "archive": 24, "batch_per_rank": 12, "dtype": "float64"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return chest_xray.make_phantoms(tmp_path_factory.mktemp("packed") / "made", 66, 32, 5)


@pytest.fixture(scope="module")
def alone(packed, tmp_path_factory):
    """One process, its checkpoints kept."""
    folder = tmp_path_factory.mktemp("alone") / "checkpoint"
    outcome = chest_xray.train(packed, 1, folder, parallel=False, **SMALL)
    return outcome, folder


def trained(real, **asked):
    from dlcourse.usecases import chest_xray

    try:
        one = chest_xray.train(real=real, seed=1, **asked)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return {
        "scores": one.test.scores.tolist(), "mean": one.mean.value, "loss": one.tuning.loss,
        "before": one.pretraining.loss, "ranks": one.tuning.ranks, "batch": one.tuning.global_batch,
        "start_rate": one.start_rate, "digest": one.tuning.weights_digest,
    }  # fmt: skip


@pytest.mark.parametrize("ranks", TRAINED)
def test_ranks_train_as_one_process_with_the_global_batch(ranks, packed, alone, tmp_path):
    each = on_ranks(
        ranks, trained, tmp_path, real=str(packed), **SMALL | {"batch_per_rank": 12 // ranks}
    )
    serial, _ = alone
    for one in each:
        assert (one["ranks"], one["batch"]) == (ranks, 12)
        assert one["before"] == pytest.approx(serial.pretraining.loss, rel=1e-9)
        assert one["loss"] == pytest.approx(serial.tuning.loss, rel=1e-9)
        assert np.asarray(one["scores"]) == pytest.approx(serial.test.scores, rel=1e-7, abs=1e-9)
        assert one["mean"] == pytest.approx(serial.mean.value, abs=1e-9)
    assert len({one["digest"] for one in each}) == 1


FILES = {"net": "chest_cnn", "start": "none", "epochs": 1, "batch_per_rank": 5, "validation": 0}


@pytest.fixture(scope="module")
def published_layout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "ChestX-ray14"
    return layout_writers.write_chestxray14(folder, phantoms.chest(44, 40, 3))


@pytest.mark.parametrize(("part", "size"), [("train_val_list.txt", 900), ("test_list.txt", 40)])
def test_damaged_radiograph_is_named_by_all_ranks(size, part, published_layout, tmp_path):
    real = shutil.copytree(published_layout, tmp_path / "real")
    path = real / "images" / (real / part).read_text().split()[0]
    whole = path.read_bytes()
    assert len(whole) > 900
    path.write_bytes(whole[:size] if size != 40 else b"<html>503 Service Unavailable</html>")
    each = on_ranks(2, trained, tmp_path, real=str(real), **FILES)
    assert each[0] == each[1]
    assert f"{path}: " in each[0]
    assert "Restore the file from its source, or take it off the list" in each[0]


def test_more_ranks_than_radiographs_of_a_part_are_refused_before_training(
    published_layout, tmp_path
):
    real = shutil.copytree(published_layout, tmp_path / "real")
    names = (real / "test_list.txt").read_text().split()
    (real / "test_list.txt").write_text(f"{names[0]}\n{names[1]}\n")
    each = on_ranks(3, trained, tmp_path, real=str(real), **FILES)
    assert len(set(each)) == 1
    assert "`ranks` must be at most the 2 radiographs of 1 patients in the test part" in each[0]


def test_interrupted_training_goes_on_bit_by_bit(packed, alone, tmp_path):
    whole, _ = alone
    folder = tmp_path / "checkpoint"
    ended, stop = [], 0

    class Interrupted(Exception):
        pass

    def report(epoch, step, steps, **numbers):
        if step == steps:  # always reported, and before the epoch's checkpoint is written
            ended.append(epoch)
        if len(ended) == stop:
            raise Interrupted

    # at the end of the pre-training; going on from there, at the end of the fine-tuning
    for many in (2, 3):
        ended.clear()
        stop = many
        with pytest.raises(Interrupted):
            chest_xray.train(packed, 1, folder, report, parallel=False, **SMALL)
    resumed = chest_xray.train(packed, 1, folder, parallel=False, **SMALL)
    assert resumed.pretraining.first_epoch == 2
    assert resumed.tuning.first_epoch == 1
    assert resumed.tuning.weights_digest == whole.tuning.weights_digest
    assert (resumed.test.scores == whole.test.scores).all()
    assert resumed.tuning.earlier_loss + resumed.tuning.loss == whole.tuning.loss


def test_finished_training_is_announced_and_not_trained(packed, alone, capsys):
    whole, folder = alone
    again = chest_xray.train(packed, 1, folder, parallel=False, **SMALL)
    said = capsys.readouterr().out
    assert said.count("is a finished training") == 2
    assert not again.tuning.step_s
    assert (again.test.scores == whole.test.scores).all()
    assert again.test.areas == whole.test.areas
    assert again.tuning.earlier_loss == whole.tuning.loss


def test_checkpoint_of_another_training_is_refused(packed, alone):
    _, folder = alone
    with pytest.raises(CheckpointError, match="belongs to another training: its seed is 1"):
        chest_xray.train(packed, 2, folder, parallel=False, **SMALL)


def test_all_epochs_of_the_pretraining_are_kept_with_their_rates(alone):
    outcome, folder = alone
    files = sorted((folder / "pretraining").glob("*.dlguide"))
    assert len(files) == 2
    rates = [model.rate_of(checkpoint.read(file)[0]) for file in files]
    # epoch 1 of 2 was at the highest rate, epoch 2 at a tenth
    assert rates[0] == pytest.approx(10 * rates[1])
    assert outcome.origin.epoch == 1
    assert outcome.start_rate == pytest.approx(rates[0])


def test_another_checkpoint_brings_its_own_rate(packed, alone):
    outcome, folder = alone
    other = chest_xray.train(packed, 1, folder, parallel=False, start="last", **SMALL)
    assert (outcome.origin.epoch, other.origin.epoch) == (1, 2)
    assert other.start_rate == pytest.approx(outcome.start_rate / 10)
    assert other.tuning.weights_digest != outcome.tuning.weights_digest


def test_rate_grows_with_the_global_batch_and_begins_at_the_checkpoints(packed, alone):
    outcome, folder = alone
    weights = chest_xray.choose_checkpoint(folder / "pretraining")
    larger = chest_xray.train(
        packed, 1, parallel=False, weights=weights, **SMALL | {"batch_per_rank": 24}
    )
    assert larger.pretraining is None
    assert larger.start_rate == pytest.approx(outcome.start_rate)
    # linear decay behind the warmup: at the end of epoch 1 of 2 a third of it is over
    highest = 2 * outcome.start_rate
    schedule = tuning_schedule(highest, 2, outcome.start_rate)
    assert larger.tuning.learning_rate == pytest.approx(highest, rel=0.05)
    steps = larger.tuning.steps_per_epoch
    expected = highest * (1 - (steps - 1 - round(0.5 * steps)) / (2 * steps - round(0.5 * steps)))
    assert chest_xray.end_rates(schedule, steps)[0] == pytest.approx(expected, rel=0.05)


@pytest.mark.long
def test_the_archives_task_is_learnt_from_the_pictures(tmp_path):
    asked = {"radiographs": 60, "archive": 600, "epochs": 1, "pretrain_epochs": 5}
    one = chest_xray.train(None, 0, tmp_path / "c", parallel=False, **asked)
    # always the more frequent answer is correct in 57 %
    assert one.pretraining.train_accuracy[-1] > 0.62


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"net": "densenet"}, r"`net` must be one of .*Did you mean densenet121"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1"),
        ({"start": "best"}, "`start` must be one of chosen, last, none"),
        ({"image": 8}, "`image` must be a whole number of at least 32"),
        ({"rates": "odd"}, "`rates` must be one of even, published"),
        ({"head_times": 0}, "`head_times` must be a positive number"),
        ({"validation": 1.0}, "`validation` must be at least 0 and below 1"),
        ({"device": "tpu"}, "`device` must be one of auto, cpu, gpu"),
        ({"dtype": "float16"}, "`dtype` must be one of float32, float64"),
    ],
)
def test_settings_are_refused_alike_before_and_on_ranks(asked, said, packed):
    with pytest.raises(ValueError, match=said):
        chest_xray.check(real=packed, **SMALL | asked)
    with pytest.raises(ValueError, match=said):
        chest_xray.train(packed, 1, parallel=False, **SMALL | asked)


def test_outcome_travels_and_is_written(alone, tmp_path):
    outcome, _ = alone
    same = pickle.loads(pickle.dumps(outcome))
    assert (same.test.scores == outcome.test.scores).all()
    paths = chest_xray.write([outcome], tmp_path / "out")
    assert [path.name for path in paths] == ["outcome.json", "auroc.png"]
    assert all(path.stat().st_size > 500 for path in paths)
    written = json.loads(paths[0].read_text())
    assert written[0]["areas"]["test"][-1]["value"] == outcome.mean.value
    assert written[0]["tuning"]["loss"] == list(outcome.tuning.loss)
    assert f"mean AUROC {chest_xray.interval(outcome.mean)}" in outcome.summary()


def test_chance_of_ten_of_fourteen_is_that_of_coins():
    rng = np.random.default_rng(0)
    thrown = (rng.random((200_000, 14)) < 0.5).sum(1)
    assert chest_xray.by_chance(10) == pytest.approx((thrown >= 10).mean(), abs=0.003)
    assert chest_xray.by_chance(0) == 1


def test_fair_ratio_is_by_nodes_and_work_per_image():
    fair, left = chest_xray.fair_speedup("ResNet-50", 64)
    assert fair == pytest.approx(64 * 2.834 / 4.089)
    assert fair * left == pytest.approx(1688)
    assert chest_xray.fair_speedup("VGG-16", 128)[0] == pytest.approx(128 * 2.834 / 15.47)


def test_published_radiographs_get_their_own_defaults_and_no_drawings(packed, tmp_path):
    real = shutil.copytree(packed, tmp_path / "real")
    (real / data.PHANTOMS).unlink()  # as `pack` leaves it
    with pytest.raises(ValueError, match="`weights` must be given for published radiographs"):
        chest_xray.check(real=real)
    chest_xray.check(real=real, archive=24)
    config = ChestXrayConfig(real=True, start="none")
    assert (config.used_net, config.size, config.held_out) == ("densenet121", 224, 0.1)
    one = chest_xray.train(
        real, 1, tmp_path / "c", parallel=False, net="chest_cnn", start="none", epochs=1,
        batch_per_rank=12, validation=0.3, external=packed,
    )  # fmt: skip
    assert not one.synthetic
    assert set(one.judged) == {"test", "validation", "external"}
    assert one.judged["external"].areas == one.test.areas
    assert "Validation" in one.summary()


@pytest.mark.long
def test_densenet_trains_on_published_radiographs_from_keras_weights(packed, tmp_path):
    real = shutil.copytree(packed, tmp_path / "real")
    (real / data.PHANTOMS).unlink()
    weights = tmp_path / "densenet121.weights.h5"
    model.build("densenet121", 32, outputs=1000).save_weights(weights)
    one = chest_xray.train(real, 0, tmp_path / "c", parallel=False, weights=weights, image=32,
                           epochs=1, batch_per_rank=24)  # fmt: skip
    assert (one.net, len(one.test.labels)) == ("densenet121", len(chest_xray.read(packed).test))
