"""An experiment's trainings are those of `fit`, are kept as they end, and go on where they were.

Tests dlguide.training.experiments.run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlguide.cluster import Cluster
from dlguide.data import datasets
from dlguide.training import FitConfig, SingleProcess, fit, optimizers
from dlguide.training import experiments as ex

SMALL = ex.ExperimentConfig(name="small", samples=200, epochs=2, batch_per_worker=20)


def digests(results):
    return [one.run.weights_digest for one in results]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three trainings and their folder."""
    folder = tmp_path_factory.mktemp("records")
    configs = ex.each_seed(
        {
            "small": SMALL,
            "2": replace(SMALL, virtual_workers=2),
            "0": replace(SMALL, weight_decay=0),
        }
    )
    return configs, ex.run(configs, folder, show=False), folder


def test_a_training_is_that_of_fit_with_the_settings_schedule():
    setting = replace(
        SMALL, virtual_workers=4, rate_scaling="linear", base_batch=20, warmup="gradual",
        warmup_epochs=1, weight_decay=1e-3,
    )  # fmt: skip
    (result,) = ex.run([setting], show=False)
    data = datasets.load("mnist").first(200)
    alone = fit(
        "mlp", data, epochs=2, batch_per_rank=80, comm=SingleProcess(),
        config=FitConfig(virtual_workers=4), learning_rate=setting.schedule(),
        optimizer=lambda rate: optimizers.MomentumSGD(rate, weight_decay=1e-3),
    )  # fmt: skip
    assert digests([result]) == [alone.weights_digest]
    assert result.accuracy == alone.test_accuracy[-1]
    assert result.run.steps_per_epoch == 3


def test_results_come_in_the_order_of_the_configs(trained):
    settings, results, folder = trained
    assert [one.config for one in results] == settings
    assert len(set(digests(results))) == 3
    assert len(list(folder.glob("*.json"))) == len(list(folder.iterdir())) == 3


def forbidden(*_arguments):
    raise AssertionError("trained again")


def test_what_is_on_record_is_not_trained_again(trained, monkeypatch):
    settings, results, folder = trained
    monkeypatch.setattr(ex, "train", forbidden)
    again = ex.run([*settings, replace(settings[0], name="the same")], folder)
    assert again[:3] == results
    assert again[3].config.name == "the same"
    assert again[3].run == results[0].run
    with pytest.raises(AssertionError, match="trained again"):
        ex.run([replace(settings[0], seed=9)], folder)


def test_an_interruption_loses_only_the_training_that_ran(tmp_path, monkeypatch):
    settings = ex.each_seed({"a": replace(SMALL, epochs=1)}, seeds=range(3))
    made, train = [], ex.train

    def interrupted(models, config):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(config.seed)
        return train(models, config)

    monkeypatch.setattr(ex, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ex.run(settings, tmp_path, show=False)
    assert len(list(tmp_path.iterdir())) == 1
    made[:] = []
    monkeypatch.setattr(ex, "train", lambda *own: made.append(own[1].seed) or train(*own))
    results = ex.run(settings, tmp_path, show=False)
    assert made == [1, 2]
    assert [one.config.seed for one in results] == [0, 1, 2]


def test_a_damaged_record_is_refused_before_anything_is_trained(trained, tmp_path, monkeypatch):
    settings, _results, folder = trained
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    last = tmp_path / f"{settings[-1].key()}.json"
    last.write_text(last.read_text()[:-40])
    (tmp_path / f"{settings[0].key()}.json").unlink()
    monkeypatch.setattr(ex, "train", forbidden)
    with pytest.raises(ex.RecordError, match=last.name):
        ex.run(settings, tmp_path)


def test_a_training_that_diverges_is_recorded_not_lost(tmp_path):
    settings = [replace(SMALL, base_rate=1e8), SMALL]
    lost, well = ex.run(settings, tmp_path, show=False)
    assert lost.diverged
    assert 1 <= lost.diverged_at[0] <= 2
    assert lost.diverged_at[1] >= 1
    assert lost.run is None
    assert not well.diverged
    assert ex.run(settings, tmp_path) == [lost, well]


def broken():
    raise OSError("no such weights")


def test_ranks_share_the_trainings_and_keep_those_that_ended(trained, tmp_path):
    settings, serial, _folder = trained
    with Cluster(ranks=2) as cluster:
        results = ex.run(settings, tmp_path, cluster)
        assert [one.config for one in results] == settings
        for there, here in zip(results, serial, strict=True):  # with other threads: not to the bit
            assert there.run.loss == pytest.approx(here.run.loss, rel=1e-4)
            assert there.accuracy == pytest.approx(here.accuracy, abs=2e-3)
        assert ex.run(settings, tmp_path, cluster) == results
        more = [replace(SMALL, model="broken"), replace(SMALL, seed=7)]
        with pytest.raises(RuntimeError, match="no such weights"):
            ex.run(more, tmp_path, cluster, {"broken": broken})
    assert (tmp_path / f"{more[1].key()}.json").exists()
    assert not (tmp_path / f"{more[0].key()}.json").exists()
