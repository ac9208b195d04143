"""Training on 1, 2, 3 and 4 ranks: equal to one process, equal on all ranks, failing together."""

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks


def trainings(saves_in):
    """Train in many ways on the ranks, and each way that has an equal alone."""
    import os

    import keras
    import numpy as np
    from fitting import fit

    import dlguide.horovod as hvd
    from dlguide import models
    from dlguide.collectives.communicator import SingleProcess
    from dlguide.data import datasets
    from dlguide.training import checkpoint
    from dlguide.training.step import evaluator

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    mnist = datasets.load("mnist").first(101, 1001)
    layers, built = keras.layers, []

    def small(seed=0, dtype="float32", dropout=0.0, normalise=False, decay=0.0):
        start = keras.initializers.GlorotUniform(seed=seed)
        model = keras.Sequential([keras.Input((28, 28, 1), dtype=dtype)])
        model.add(layers.Conv2D(4, 3, strides=3, kernel_initializer=start, dtype=dtype))
        if normalise:
            model.add(layers.BatchNormalization(dtype=dtype))
        model.add(layers.ReLU(dtype=dtype))
        model.add(layers.Flatten(dtype=dtype))
        model.add(layers.Dropout(dropout, seed=seed, dtype=dtype))
        rule = keras.regularizers.L2(decay) if decay else None
        model.add(layers.Dense(10, kernel_initializer=start, kernel_regularizer=rule, dtype=dtype))
        built.append(model)
        return model

    def difference(parallel, serial):
        pairs = zip(parallel.trainable_weights, serial.trainable_weights, strict=True)
        return float(max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs))

    def accumulating():
        return keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)

    def averaging():
        return keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)

    result = {"rank": rank, "ranks": ranks, "different": {}, "digests": {}, "errors": {}}
    for name, net, settings in (
        ("float64 adam", lambda: small(1, "float64"), {"optimizer": "adam"}),
        # 41 = 2 * 20 + 1 = 30 + 11 = 40 + 1: ranks without a sample in the last step.
        ("float64 Horovod", lambda: small(1, "float64"), {"exchange": "horovod"}),
        ("float64 empty", lambda: small(1, "float64"), {"samples": 41}),
        ("float64 accumulated", lambda: small(1, "float64"), {"optimizer": accumulating}),
        ("float64 weight decay", lambda: small(1, "float64", decay=0.1), {}),
        ("float64 averages", lambda: small(1, "float64"), {"optimizer": averaging}),
        ("float32", lambda: small(1), {"evaluate": True}),
        ("float64 mnist_cnn", "mnist_cnn", {"dropout": 0.0, "dtype": "float64", "epochs": 1}),
    ):
        # Each costs seconds on each rank: what two ranks show three need not.
        if ranks != 2 and name not in ("float64 empty", "float64 accumulated", "float32"):
            continue
        if net == "mnist_cnn":

            def net():
                built.append(models.build("mnist_cnn", 1, 0.0, "float64"))
                return built[-1]

        ways = {"optimizer": "sgd", "epochs": 2, "evaluate": False}
        ways.update(settings)
        run = fit(net, mnist, batch_per_rank=10, parallel=True, **ways)
        alone = fit(net, mnist, batch_per_rank=10 * ranks, parallel=False, **ways)
        parallel, serial = built[-2:]
        result["different"][name] = {
            "weights": difference(parallel, serial),
            "loss": abs(run.loss[-1] / alone.loss[-1] - 1),
            "steps": (run.steps_per_epoch, alone.steps_per_epoch, len(run.step_s) // run.epochs),
        }
        result["digests"][name] = run.weights_digest
        if run.test_accuracy:
            result["accuracy"] = run.test_accuracy
            result["accuracy_alone"] = evaluator(parallel, mnist, SingleProcess())()["accuracy"]

    # Each rank begins elsewhere: the broadcast must see to it that they agree. Interrupted after
    # the first epoch and gone on with, against the same in one go.
    saves = os.path.join(saves_in, "saves")

    def changing():
        return small(1 + rank, dropout=0.5, normalise=True)

    ways = {"model": changing, "data": mnist, "batch_per_rank": 10, "parallel": True}
    fit(**ways, epochs=1, checkpoint=saves, evaluate=False)
    resumed = fit(**ways, epochs=2, checkpoint=saves)
    finished = fit(**ways, epochs=2, checkpoint=saves)
    whole = fit(**ways, epochs=2)
    result["finished_alone"] = fit(
        **{**ways, "parallel": False}, epochs=2, checkpoint=saves, evaluate=False
    ).weights_digest
    model = built[-2]
    weights = {id(weight) for weight in model.weights}
    result["dropout_states"] = [
        np.asarray(v).tolist() for v in model.variables if id(v) not in weights
    ]
    moving = model.non_trainable_weights
    result["moving"] = [np.asarray(v).tobytes().hex() for v in moving]
    result["digests"]["whole"] = whole.weights_digest
    result["digests"]["resumed"] = resumed.weights_digest
    result["digests"]["finished"] = finished.weights_digest
    result["resumed"] = {
        "first_epoch": resumed.first_epoch,
        "finished_steps": len(finished.step_s),
        "accuracy": (resumed.test_accuracy[-1], whole.test_accuracy[-1], finished.test_accuracy[0]),
        "loss": (resumed.loss[-1], whole.loss[-1]),
        "digests": (resumed.weights_digest, whole.weights_digest, finished.weights_digest),
        # another rank may still read the finished training, alone and with the lock
        "files": sorted(name for name in os.listdir(saves) if not name.endswith(".lock")),
        "rate": (resumed.learning_rate, whole.learning_rate),
    }

    def text_of(name, **settings):
        try:
            fit("mlp", mnist, parallel=True, **{"batch_per_rank": 10, **settings})
        except Exception as error:
            result["errors"][name] = f"{type(error).__name__}: {error}"

    text_of("unknown optimizer", optimizer="adamm")
    text_of("batch", batch_per_rank=102)
    text_of("timeline", timeline=os.path.join(saves_in, "timeline.json"))
    text_of("other seeds", seed=rank)
    blocker = os.path.join(saves_in, "file")
    if rank == 0:
        open(blocker, "w").close()
    text_of("unwritable", checkpoint=os.path.join(blocker, "saves"))
    if rank == 0:
        path = checkpoint.latest(saves)
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    try:
        fit(**ways, epochs=3, checkpoint=saves)
    except Exception as error:
        result["errors"]["damaged"] = f"{type(error).__name__}: {error}"
    return result


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def results(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    return on_ranks(request.param, trainings, folder, 240, saves_in=str(folder))


def test_weights_after_two_epochs_equal_one_process_with_the_global_batch(results):
    for result in results:
        for name, different in result["different"].items():
            limit = 1e-5 if "float32" in name else 1e-12
            assert max(different["weights"], different["loss"]) <= limit, (name, different)
            assert len(set(different["steps"])) == 1, name


def test_weights_and_moving_averages_are_bitwise_equal_on_all_ranks(results):
    assert len(results[0]["moving"]) == 2
    for result in results:
        assert result["digests"] == results[0]["digests"]
        assert result["moving"] == results[0]["moving"]


def test_evaluation_divided_among_ranks_counts_as_one_process(results):
    for result in results:
        assert result["accuracy"][-1] == result["accuracy_alone"] == results[0]["accuracy_alone"]
        # Whole images of the 1001, and not a mean of the ranks' fractions.
        assert result["accuracy"][-1] * 1001 == pytest.approx(
            round(result["accuracy"][-1] * 1001), abs=1e-9
        )


def test_dropout_differs_from_rank_to_rank(results):
    states = {tuple(map(tuple, result["dropout_states"])) for result in results}
    assert len(states) == len(results)


def test_training_that_went_on_equals_the_uninterrupted_one(results):
    for result in results:
        resumed = result["resumed"]
        assert resumed["first_epoch"] == 1
        assert resumed["loss"][0] == pytest.approx(resumed["loss"][1], rel=1e-5)
        assert resumed["rate"][0] == resumed["rate"][1]
        if len(results) <= 2:  # a sum of two does not depend on the order
            assert resumed["digests"][0] == resumed["digests"][1]


def test_finished_training_is_not_trained_again(results):
    for result in results:
        resumed = result["resumed"]
        assert resumed["finished_steps"] == 0
        assert resumed["digests"][2] == resumed["digests"][0]
        assert resumed["accuracy"][2] == resumed["accuracy"][0]
        assert result["finished_alone"] == result["digests"]["finished"]  # opened by one process


def test_only_finished_checkpoints_lie_in_the_folder(results):
    steps = results[0]["resumed"]["files"]
    per_epoch = -(-101 // (10 * len(results)))
    assert steps == [f"checkpoint-{epoch * per_epoch:09d}.dlguide" for epoch in (1, 2)]


def test_ranks_fail_together_with_the_same_text(results):
    for result in results:
        if len(results) > 1:
            assert result["errors"].keys() >= {"other seeds"}
            assert result["errors"] == results[0]["errors"]
    errors, ranks = results[0]["errors"], len(results)
    assert "`optimizer` must be one of adam, sgd" in errors["unknown optimizer"]
    assert f"`batch_per_rank` must be at most the {101 // ranks} samples" in errors["batch"]
    assert "`checkpoint` must be a folder this process can write to" in errors["unwritable"]
    assert "is damaged: expected SHA-256" in errors["damaged"]
    if ranks > 1:
        assert (
            "`seed` must be equal on all ranks, got 0 on rank 0 and 1 on" in errors["other seeds"]
        )
        assert "rank 0: `checkpoint`" in errors["unwritable"]
        assert "rank 0: " in errors["damaged"]


def synchronized_layers():
    """Batch normalization over all ranks; one of two has nothing in the last step."""
    import keras
    import numpy as np
    from fitting import fit

    from dlguide.data.datasets import Dataset

    images = np.random.default_rng(0).normal(3, 2, size=(13, 4))
    data = Dataset("line", images, images[:, :2], images[:1], images[:1, :2])

    def trained(**settings):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential([
            keras.Input((4,), dtype="float64"),
            layers.Dense(5, dtype="float64"),
            layers.BatchNormalization(synchronized=True, momentum=0.5, dtype="float64"),
            layers.Dense(2, dtype="float64"),
        ])  # fmt: skip
        run = fit(
            model, data, shuffle=False, loss=keras.losses.mean_squared_error, learning_rate=0.1,
            optimizer=lambda rate: keras.optimizers.SGD(rate), evaluate=False, epochs=2, **settings,
        )  # fmt: skip
        return [w.tolist() for w in model.get_weights()], run.exchange

    by_mpi, serial = trained(batch_per_rank=2), trained(batch_per_rank=4, parallel=False)
    by_horovod = trained(batch_per_rank=2, exchange="horovod")
    import dlguide.horovod as hvd

    return [by_mpi, serial, by_horovod, hvd.is_initialized()]


@pytest.mark.long
def test_synchronized_layers_train_as_in_one_process_by_either_exchange(tmp_path):
    for found in on_ranks(2, synchronized_layers, tmp_path, fresh=True):
        (by_mpi, mpi), (serial, alone), (by_horovod, horovod), runs = found
        assert (mpi, alone, horovod, runs) == ("mpi", "none", "horovod", False)
        for each, other, expected in zip(by_mpi, by_horovod, serial, strict=True):
            np.testing.assert_allclose(each, expected, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(other, expected, rtol=1e-12, atol=1e-13)


def last_step_of_one_sample():
    """Linear regression on 13 samples: on three ranks of two, the third step has one sample."""
    import keras
    import numpy as np
    from fitting import fit

    from dlguide.data.datasets import Dataset

    images, labels = np.arange(26.0).reshape(13, 2) / 26, np.arange(13.0)[:, None] / 13
    model = keras.Sequential([
        keras.Input((2,), dtype="float64"),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="float64"),
    ])  # fmt: skip
    reports = []
    run = fit(
        model, Dataset("line", images, labels, images[:1], labels[:1]), shuffle=False,
        loss=keras.losses.mean_squared_error, learning_rate=0.1, batch_per_rank=2,
        optimizer=lambda rate: keras.optimizers.SGD(rate), evaluate=False, parallel=True,
        on_result=lambda **numbers: reports.append(numbers),
    )  # fmt: skip
    return {
        "loss": run.loss, "reports": reports, "step_s": run.step_s, "speed": run.images_per_s,
        "speed_with_first": run.images_per_s_with_first, "weights": model.get_weights()[0].tolist(),
    }  # fmt: skip


@pytest.mark.long
def test_a_last_step_of_one_sample_counts_as_one_image(tmp_path):
    images = np.float32(np.arange(26).reshape(13, 2) / 26).astype(float)
    labels = np.float32(np.arange(13)[:, None] / 13).astype(float)
    kernel, squares = np.ones((2, 1)), []
    for first in (0, 6, 12):
        x, y = images[first : first + 6], labels[first : first + 6]
        difference = x @ kernel - y
        squares += (difference[:, 0] ** 2).tolist()
        kernel -= 0.1 * 2 * x.T @ difference / len(x)
    for rank, found in enumerate(on_ranks(3, last_step_of_one_sample, tmp_path)):
        np.testing.assert_allclose(found["weights"], kernel, rtol=1e-6)
        assert found["loss"] == [pytest.approx(np.mean(squares), rel=1e-6)]
        own = [2 * rank, 2 * rank + 1, 6 + 2 * rank, 7 + 2 * rank, *([12] if rank == 2 else [])]
        last = found["reports"][-1]
        assert (last["epoch"], last["epochs"], last["step"], last["steps"]) == (1, 1, 3, 3)
        assert last["loss"] == pytest.approx(np.mean([squares[one] for one in own]), rel=1e-6)
        assert found["speed_with_first"] == pytest.approx(13 / sum(found["step_s"]))
        # of the steps after the first, only the second is full: 6 images
        assert found["speed"] == pytest.approx(6 / found["step_s"][1])
