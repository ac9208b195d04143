"""The case as a whole: ranks train like one process, resume bit by bit, fail with one error."""

import sys

import layout_writers
import numpy as np
import pytest
from lanes import TRAINED
from on_ranks import on_ranks

from dlcourse import NOTEBOOKS
from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import model, phantoms
from dlguide import commands
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
        one = chest_xray.train(real, seed=1, **asked)
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


def test_damaged_radiograph_is_named_by_all_ranks(tmp_path):
    # a tenth of the patients to train with is the validation: some with and without a finding
    real = layout_writers.write_chestxray14(tmp_path / "real", phantoms.chest(110, 40, 3))
    path = real / "images" / (real / "train_val_list.txt").read_text().split()[0]
    path.write_bytes(path.read_bytes()[:900])
    own = {"net": "chest_cnn", "start": "none", "epochs": 1, "batch_per_rank": 5}
    each = on_ranks(2, trained, tmp_path, real=str(real), **own)
    assert each[0] == each[1]
    assert f"{path}: " in each[0]


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


def test_checkpoint_of_another_training_is_refused(packed, alone):
    _, folder = alone
    with pytest.raises(CheckpointError, match="belongs to another training: its seed is 1"):
        chest_xray.train(packed, 2, folder, parallel=False, **SMALL)


def test_all_epochs_of_the_pretraining_are_kept_with_their_rates(alone):
    outcome, folder = alone
    files = sorted((folder / "pretraining").glob("*.dlguide"))
    assert len(files) == 2
    rates = [model.rates_of(checkpoint.read(file)[0])[0] for file in files]
    # epoch 1 of 2 was at the highest rate, epoch 2 at a tenth
    assert rates[0] == pytest.approx(10 * rates[1])
    assert outcome.origin.epoch == 1
    assert outcome.start_rate == pytest.approx(rates[0])


@pytest.mark.long
def test_the_archives_task_is_learnt_from_the_pictures(tmp_path):
    made = chest_xray.make_phantoms(tmp_path / "made", 60, 32, 0)
    asked = {"archive": 600, "epochs": 1, "pretrain_epochs": 5}
    one = chest_xray.train(made, 0, parallel=False, **asked)
    # always the more frequent answer is correct in 57 %
    assert one.pretraining.train_accuracy[-1] > 0.62


def test_published_radiographs_are_not_pretrained_on_drawings_unasked(tmp_path):
    real = layout_writers.write_chestxray14(tmp_path / "real", phantoms.chest(44, 40, 3))
    with pytest.raises(ValueError, match="`weights` must be given for published radiographs"):
        chest_xray.train(real, parallel=False, net="chest_cnn")


def test_the_program_prints_an_area_for_each_finding():
    program = NOTEBOOKS / "programs" / "chest_xray.py"
    asked = ["--ranks", "2", "--radiographs", "66", "--archive", "24", "--epochs", "1"]
    asked += ["--batch-per-rank", "4"]
    done = commands.run([sys.executable, str(program), *asked], 200)
    assert done.ok, done.output
    assert sum(name in done.output for name in phantoms.FINDINGS) >= 10
    assert "radiographs/s" in done.output
