"""Training on 1, 2, 3 and 4 ranks: equal to one process, equal on all ranks, failing together."""

import pytest
from on_ranks import on_ranks


def trainings(saves_in):
    """Train in many ways on the ranks, and each way that has an equal alone."""
    import os

    import keras
    import numpy as np

    import dlguide.horovod as hvd
    from dlguide import nets
    from dlguide.data import datasets
    from dlguide.training import checkpoint, fit
    from dlguide.training.ranks import Alone
    from dlguide.training.steps import evaluator

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    mnist = datasets.load("mnist").first(101, 1001)

    def train(parallel, build, data=mnist, batch=10, **settings):
        models = []

        def net():
            models.append(build())
            return models[-1]

        run = fit(
            net, data, batch=batch if parallel else batch * ranks, parallel=parallel, **settings
        )
        return run, models[0]

    def difference(parallel, serial):
        pairs = zip(parallel.trainable_weights, serial.trainable_weights, strict=True)
        return float(max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs))

    result = {"rank": rank, "ranks": ranks, "different": {}, "digests": {}, "errors": {}}
    sgd = {"optimizer": "sgd", "rate_scaling": "none", "epochs": 2}
    adam = {"optimizer": "adam", "rate_scaling": "none", "epochs": 2}
    for name, build, settings in (
        ("mlp float64 sgd", lambda: nets.build("mlp", 1, 0, "float64"), sgd),
        ("mlp float64 adam", lambda: nets.build("mlp", 1, 0, "float64"), adam),
        # 41 = 2 * 20 + 1 = 30 + 11 = 40 + 1: ranks without a sample in the last step.
        ("mlp float64 empty", lambda: nets.build("mlp", 1, 0, "float64"), {**sgd, "samples": 41}),
        ("mlp float32 sgd", lambda: nets.build("mlp", 1, 0, "float32"), sgd),
        ("cnn float32 sgd", lambda: nets.build("mnist_cnn", 1, 0, "float32"), sgd),
        ("cnn float64 sgd", lambda: nets.build("mnist_cnn", 1, 0, "float64"), sgd),
    ):
        run, model = train(True, build, **settings)
        alone, serial = train(False, build, **settings)
        result["different"][name] = {
            "weights": difference(model, serial),
            "loss": abs(run.loss[-1] / alone.loss[-1] - 1),
            "steps": (run.steps_per_epoch, alone.steps_per_epoch, len(run.step_s)),
        }
        result["digests"][name] = run.weights_digest
        if name == "cnn float32 sgd":
            result["accuracy"] = run.test_accuracy
            result["accuracy_alone"] = evaluator(model, mnist, Alone())()

    def weight_decay():
        return keras.Sequential(
            [
                keras.Input((28, 28, 1), dtype="float64"),
                keras.layers.Flatten(dtype="float64"),
                keras.layers.Dense(
                    10,
                    kernel_regularizer=keras.regularizers.L2(0.1),
                    kernel_initializer=keras.initializers.GlorotUniform(seed=2),
                    dtype="float64",
                ),
            ]
        )

    run, model = train(True, weight_decay, **sgd)
    alone, serial = train(False, weight_decay, **sgd)
    result["different"]["weight decay"] = {"weights": difference(model, serial)}

    # Each rank begins elsewhere; the broadcast must see to it that they agree.
    run, model = train(True, lambda: nets.build("mnist_cnn_bn", rank, 0.5), **adam)
    result["digests"]["dropout, batch normalisation, other first weights"] = run.weights_digest
    weights = {id(weight) for weight in model.weights}
    result["dropout_states"] = [
        np.asarray(v).tolist() for v in model.variables if id(v) not in weights
    ]
    result["moving"] = [np.asarray(v).tobytes().hex() for v in model.non_trainable_weights]

    # Interrupted after the first epoch, and gone on with, against the same in one go.
    saves = os.path.join(saves_in, "saves")
    ways = {"net": "mnist_cnn", "data": mnist, "batch": 10, "parallel": True, "optimizer": "adam"}
    fit(**ways, epochs=1, checkpoint=saves)
    resumed = fit(**ways, epochs=2, checkpoint=saves)
    finished = fit(**ways, epochs=2, checkpoint=saves)
    whole = fit(**ways, epochs=2)
    result["digests"]["resumed"] = resumed.weights_digest
    result["digests"]["finished"] = finished.weights_digest
    result["resumed"] = {
        "first_epoch": resumed.first_epoch,
        "finished_steps": len(finished.step_s),
        "accuracy": (resumed.test_accuracy[-1], whole.test_accuracy[-1], finished.test_accuracy[0]),
        "loss": (resumed.loss[-1], whole.loss[-1]),
        "digests": (resumed.weights_digest, whole.weights_digest, finished.weights_digest),
        "files": sorted(os.listdir(saves)),
        "rate": (resumed.learning_rate, whole.learning_rate),
    }

    def text_of(name, **settings):
        try:
            fit("mlp", mnist, parallel=True, **{"batch": 10, **settings})
        except Exception as error:
            result["errors"][name] = f"{type(error).__name__}: {error}"

    text_of("unknown optimizer", optimizer="adamm")
    text_of("batch", batch=101)
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
    result["run"] = run.as_dict()
    return result


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda ranks: f"{ranks} ranks")
def results(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    return on_ranks(request.param, trainings, folder, saves_in=str(folder))


def test_weights_after_two_epochs_equal_one_process_with_the_global_batch(results):
    for name, different in results[0]["different"].items():
        limit = 1e-5 if "float32" in name else 1e-12
        assert different["weights"] <= limit, (name, different)


def test_loss_of_an_epoch_equals_one_process(results):
    for name, different in results[0]["different"].items():
        if "loss" in different:
            assert different["loss"] <= (1e-5 if "float32" in name else 1e-12), (name, different)


def test_all_ranks_take_the_steps_of_one_process(results):
    for result in results:
        for name, different in result["different"].items():
            if "steps" in different:
                steps, alone, taken = different["steps"]
                assert steps == alone, name
                assert taken == 2 * alone, name


def test_weights_are_bitwise_equal_on_all_ranks(results):
    for result in results:
        assert result["digests"] == results[0]["digests"]


def test_moving_averages_are_bitwise_equal_on_all_ranks(results):
    assert len(results[0]["moving"]) == 4
    for result in results:
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
    assert f"`batch` must be at most the {101 // ranks} samples" in errors["batch"]
    assert "`checkpoint` must be a folder this process can write to" in errors["unwritable"]
    assert "is damaged: expected SHA-256" in errors["damaged"]
    if ranks > 1:
        assert (
            "`seed` must be the same on all ranks, 0 as on rank 0, got '1 on rank 1'"
            in (errors["other seeds"])
        )
        assert "rank 0: `checkpoint`" in errors["unwritable"]
        assert "rank 0: " in errors["damaged"]


def test_each_rank_knows_its_place(results):
    for rank, result in enumerate(results):
        run = result["run"]
        assert (run["rank"], run["ranks"], run["threads"]) == (rank, len(results), 1)
        assert (run["batch"], run["global_batch"]) == (10, 10 * len(results))
