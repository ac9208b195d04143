"""An experiment's trainings are those of `fit`, are kept as they end, and go on where they were.

Tests dlguide.training.experiments.running.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlguide import models
from dlguide.cluster import Cluster
from dlguide.data import datasets
from dlguide.training import FitConfig, SingleProcess, fit, optimizers
from dlguide.training import experiments as ex
from dlguide.training.experiments import running

pytestmark = pytest.mark.ranks

SMALL = ex.ExperimentConfig(
    name="small", samples=200, test_samples=100, epochs=2, batch_per_worker=20
)


def digests(results):
    return [one.runs[0].weights_digest for one in results]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three trainings, their folder, and what progress said."""
    folder, told = tmp_path_factory.mktemp("records"), []
    settings = ex.one_factor(SMALL, {"virtual_workers": (2,), "optimizer": ("adam",)})
    return settings, ex.run(settings, folder, progress=told.append), folder, told


def test_a_training_is_that_of_fit_with_the_settings_schedule():
    setting = replace(
        SMALL, virtual_workers=4, rate_scaling="linear", base_batch=20, warmup="gradual",
        warmup_epochs=1, momentum=0.8, weight_decay=1e-3,
    )  # fmt: skip
    (result,) = ex.run([setting], progress=None)
    data = datasets.load("mnist").first(200, 100)
    alone = fit(
        "mlp", data, epochs=2, batch_per_rank=80, comm=SingleProcess(),
        config=FitConfig(virtual_workers=4), learning_rate=setting.schedule(),
        optimizer=lambda rate: optimizers.MomentumSGD(rate, 0.8, weight_decay=1e-3),
    )  # fmt: skip
    assert digests([result]) == [alone.weights_digest]
    assert result.accuracy == alone.test_accuracy[-1]
    assert result.runs[0].steps_per_epoch == 3


@pytest.mark.parametrize("optimizer", ["adam", "lars", "lamb"])
def test_every_optimizer_lowers_the_loss(optimizer):
    rate = {"adam": 0.002, "lars": 5.0, "lamb": 0.01}[optimizer]
    setting = replace(SMALL, optimizer=optimizer, base_rate=rate, epochs=3)
    (result,) = ex.run([setting], progress=None)
    assert result.loss[-1] < 0.9 * result.loss[0]
    name = type(running.make_optimizer(setting, 0.1)).__name__
    assert name.lower() == optimizer


def test_results_come_in_the_order_of_the_configs_with_progress(trained):
    settings, results, folder, told = trained
    assert [one.config for one in results] == settings
    assert len(set(digests(results))) == 3
    assert len(list(folder.glob("*.json"))) == len(list(folder.iterdir())) == 3
    assert [(one.done, one.total) for one in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[0].remaining_s > 0
    assert told[2].remaining_s == 0


def forbidden(*_arguments):
    raise AssertionError("trained again")


def test_what_is_on_record_is_not_trained_again(trained, monkeypatch):
    settings, results, folder, _told = trained
    monkeypatch.setattr(running, "train", forbidden)
    again = ex.run([*settings, replace(settings[0], name="the same")], folder)
    assert again[:3] == results
    assert again[3].config.name == "the same"
    assert again[3].runs == results[0].runs
    with pytest.raises(AssertionError, match="trained again"):
        ex.run([replace(settings[0], seed=9)], folder)


def test_an_interruption_loses_only_the_training_that_ran(tmp_path, monkeypatch):
    settings = ex.each_seed({"a": replace(SMALL, epochs=1)}, seeds=range(3))
    made, train = [], running.train

    def interrupted(setting, *own):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(setting.seed)
        return train(setting, *own)

    monkeypatch.setattr(running, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ex.run(settings, tmp_path, progress=None)
    assert len(list(tmp_path.iterdir())) == 1
    made[:] = []
    monkeypatch.setattr(
        running, "train", lambda one, *own: made.append(one.seed) or train(one, *own)
    )
    results = ex.run(settings, tmp_path, progress=None)
    assert made == [1, 2]
    assert [one.config.seed for one in results] == [0, 1, 2]


def test_without_progress_no_step_is_reported(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("dlguide.measure.report_progress", lambda **numbers: told.append(numbers))
    settings = [replace(SMALL, epochs=1)]
    ex.run(settings, tmp_path / "silent", progress=None)
    assert told == []
    ex.run(settings, tmp_path / "told", progress=lambda _: None)
    assert told


def test_a_damaged_record_is_refused_before_anything_is_trained(trained, tmp_path, monkeypatch):
    settings, _results, folder, _told = trained
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    last = tmp_path / f"{settings[-1].key()}.json"
    last.write_text(last.read_text()[:-40])
    (tmp_path / f"{settings[0].key()}.json").unlink()
    monkeypatch.setattr(running, "train", forbidden)
    with pytest.raises(ex.RecordError, match=last.name):
        ex.run(settings, tmp_path)


def test_a_training_that_diverges_is_recorded_not_lost(tmp_path):
    settings = [replace(SMALL, base_rate=1e8), SMALL]
    lost, well = ex.run(settings, tmp_path, progress=None)
    assert lost.diverged
    assert 1 <= lost.divergence.epoch <= 2
    assert lost.divergence.step >= 1
    assert lost.runs == ()
    assert not well.diverged
    assert ex.run(settings, tmp_path, progress=forbidden) == [lost, well]


def test_the_impossible_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(running, "train", forbidden)
    for changes, said in [
        ({"model": "mlq"}, "Did you mean mlp?"),
        ({"data": "mnits"}, "Did you mean mnist?"),
        ({"samples": 60_001}, "`train` must be at most the 60000 samples"),
        (
            {"samples": None, "batch_per_worker": 70_000},
            "`batch_per_worker` must give a global batch of at most the 60000 samples of mnist",
        ),
        ({"model": "resnet20"}, "`data` must hold images of 32 x 32 x 3 for resnet20"),
        ({"ranks": 2}, "`ranks` must be 1 without a cluster"),
        ({"warmup": "gradual", "warmup_epochs": 0.01}, "step"),
    ]:
        with pytest.raises(ValueError, match=said):
            ex.run([SMALL, replace(SMALL, **changes)])
    with pytest.raises(ValueError, match="`configs` must hold at least one"):
        ex.run([])


def test_nets_and_data_of_ones_own_and_other_data_is_another_training(tmp_path):
    whole = datasets.load("mnist").first(100, 50)
    setting = replace(SMALL, model="mine", data="my digits", samples=None, test_samples=None)
    own = {"models": {"mine": lambda: models.build("mlp", seed=5)}, "progress": None}
    (first,) = ex.run([setting], tmp_path, data={"my digits": whole}, **own)
    assert first.runs[0].samples == 100
    (again,) = ex.run([setting], tmp_path, data={"my digits": lambda: whole}, **own)
    assert again == first
    turned = replace(whole, train_images=np.ascontiguousarray(whole.train_images[:, ::-1]))
    (other,) = ex.run([setting], tmp_path, data={"my digits": turned}, **own)
    assert digests([other]) != digests([first])
    assert len(list(tmp_path.iterdir())) == 2


def test_a_number_of_threads_is_that_of_a_process_of_its_own(tmp_path):
    (result,) = ex.run([replace(SMALL, threads=1)], tmp_path, progress=None)
    assert result.runs[0].threads == 1


def test_print_progress_writes_at_most_ten_lines(trained, capsys):
    result = trained[1][0]
    for done in range(1, 31):
        ex.print_progress(ex.ExperimentProgress(done, 30, 2.0 * (30 - done), result))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("3 of 30: small, seed 0: ")
    assert lines[0].endswith("about 54 s left")
    assert lines[-1].startswith("30 of 30")


def test_ranks_share_trainings_and_make_others_together(trained, tmp_path):
    settings, _results, _folder, _told = trained
    two = replace(SMALL, ranks=2, batch_per_worker=10, name="two ranks")
    with Cluster(ranks=2) as cluster:
        there = cluster.plan.threads
        # with the ranks' number of threads: another one may add up in another order
        same = [replace(one, threads=there) for one in settings]
        alone = ex.run(same, progress=None)
        results = ex.run([*settings, two], tmp_path, cluster)
        assert digests(results[:3]) == digests(alone)
        with pytest.raises(ValueError, match="`ranks` must be 1 or the 2 of the cluster"):
            ex.run([replace(SMALL, ranks=3)], tmp_path, cluster)
        with pytest.raises(ValueError, match=f"`threads` must be None or the {there} of"):
            ex.run([replace(SMALL, threads=there + 1)], tmp_path, cluster)
    together = results[3]
    assert [run.rank for run in together.runs] == [0, 1]
    assert together.loss == pytest.approx(alone[0].loss, rel=1e-4)  # the same global batch
    assert len(list(tmp_path.iterdir())) == 4
