"""Synchronized batch normalization: ranks with parts of a batch are one process with all of it."""

from __future__ import annotations

import cloudpickle
import pytest
from lanes import long
from on_ranks import on_ranks


def trains_beside_one_process(rows, kind):
    """Return the largest relative differences after some steps of a loop of one's own."""
    import keras
    import numpy as np
    import tensorflow as tf

    import dlguide.horovod as hvd

    hvd.init()
    rank = hvd.rank()
    keras.config.set_floatx("float64")
    kinds = {
        "horovod": hvd.SyncBatchNormalization,
        "keras": lambda **ways: keras.layers.BatchNormalization(synchronized=True, **ways),
    }
    # Layers bear other names on each rank.
    [keras.layers.BatchNormalization() for _ in range(rank)]

    def net(norm):
        row = keras.Input((4, 5))
        twice = norm(center=False)
        x = keras.layers.Dense(5, "tanh")(twice(keras.layers.Masking()(row)))
        x = keras.layers.Dense(6, "tanh")(twice(x))
        x = keras.layers.Reshape((4, 6))(norm(axis=1, renorm=True)(x))
        x = norm(momentum=0.5)(keras.layers.Flatten()(x))
        return keras.Model(row, keras.layers.Dense(3)(x))

    def step(model, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = model(x, training=True)
            loss = tf.reduce_sum((out - y) ** 2) / sum(rows)
        of_x, grads = tape.gradient(loss, [x, model.trainable_variables])
        return out, of_x, grads

    def of_ranks(model, x, y):
        out, of_x, grads = step(model, x, y)
        return out, of_x, hvd.grouped_allreduce(grads, op=hvd.Sum, name="gradients")

    try:
        found = {}
        for eager in (False, True):
            # Unlucky initial weights multiply rounding by 100, in one process in another order too.
            keras.utils.set_random_seed(0)
            shared, alone = net(kinds[kind]), net(keras.layers.BatchNormalization)
            hvd.broadcast_variables(shared.weights, root_rank=0)
            alone.set_weights(shared.get_weights())
            one, many = (f if eager else tf.function(f) for f in (step, of_ranks))
            random, pairs = np.random.default_rng(3), []
            for _ in range(3):
                # A mean far from 0 beside a small deviation, and steps that are masked.
                x = 5 + random.normal(size=(sum(rows), 4, 5))
                x[::2, 2:] = 0
                x, y = tf.constant(x), tf.constant(random.normal(size=(sum(rows), 3)))
                mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
                out, of_x, grads = many(shared, x[mine], y[mine])
                all_out, all_of_x, all_grads = one(alone, x, y)
                pairs += [(out, all_out[mine]), (of_x, all_of_x[mine])]
                pairs += zip(grads, all_grads, strict=True)
                for model, of in ((shared, grads), (alone, all_grads)):
                    for variable, grad in zip(model.trainable_variables, of, strict=True):
                        variable.assign_sub(0.1 * grad)
            pairs += zip(shared.weights, alone.weights, strict=True)
            apart = [np.abs(np.asarray(a) - b).max(initial=0) for a, b in pairs]
            scale = [np.abs(np.asarray(b)).max(initial=1) for _, b in pairs]
            found[f"eager={eager}"] = float(np.max(np.divide(apart, scale)))
        return found
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([1, 6], "keras"),
        ([5, 0, 2], "horovod"),
        *long(([4, 4], "horovod"), ([3, 3, 3], "keras"), ([5, 0, 2], "keras")),
    ],
)
def test_ranks_with_parts_are_one_process_with_the_batch(tmp_path, rows, kind):
    for found in on_ranks(len(rows), trains_beside_one_process, tmp_path, rows=rows, kind=kind):
        assert set(found) == {"eager=False", "eager=True"}
        assert max(found.values()) <= 1e-12, found


def fits_beside_one_process():
    """Return differences of `model.fit` and of `dlguide.training.fit`, and what is refused."""
    import keras
    import numpy as np
    import tensorflow as tf
    from horovod_cases import error_of

    import dlguide.horovod as hvd
    from dlguide.collectives.communicator import SingleProcess
    from dlguide.data import datasets
    from dlguide.training import FitConfig, fit

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()

    def net(synchronized, inputs=(6,)):
        ways = {"kernel_initializer": keras.initializers.GlorotUniform(seed=1), "dtype": "float64"}
        norm = {"synchronized": synchronized, "dtype": "float64", "momentum": 0.8}
        return keras.Sequential([
            keras.Input(inputs, dtype="float64"),
            keras.layers.Flatten(dtype="float64"),
            keras.layers.Dense(8, **ways),
            keras.layers.BatchNormalization(**norm),
            keras.layers.Activation("relu", dtype="float64"),
            keras.layers.Dense(10, **ways),
        ])  # fmt: skip

    def apart(one, other):
        pairs = zip(one.get_weights(), other.get_weights(), strict=True)
        return float(max(np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in pairs))

    found, ways = {}, {"shuffle": False, "epochs": 2, "verbose": 0}
    random = np.random.default_rng(5)
    x, y = random.normal(2, 3, (24, 6)), random.normal(size=(24, 10))
    mine = np.arange(24).reshape(-1, ranks, 2)[:, rank].ravel()  # two samples in each batch
    keras.config.set_floatx("float64")  # of the loss
    try:
        for eager in (False, True):
            shared, alone = net(True), net(False)
            sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            shared.compile(sgd, "mse", jit_compile=False, run_eagerly=eager)
            alone.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eager)
            shared.fit(x[mine], y[mine], 2, **ways)
            alone.fit(x, y, 2 * ranks, **ways)
            found[f"model.fit, eager={eager}"] = apart(shared, alone)
            outputs = [model.predict(x, verbose=0) for model in (shared, alone)]
            found[f"predict, eager={eager}"] = float(np.abs(outputs[0] - outputs[1]).max())
    finally:
        keras.config.set_floatx("float32")

    # 41 samples in batches of 10 per rank: the last one leaves ranks without a sample.
    data = datasets.load("mnist").first(101, 10)
    config = FitConfig(dtype="float64", evaluate=False, samples=41)
    ways = {"optimizer": "sgd", "epochs": 2, "config": config}
    image = (28, 28, 1)
    nets = [net(True, image), net(True, image), net(False, image)]
    fit(nets[0], data, batch_per_rank=10, **ways)
    for each in nets[1:]:
        fit(each, data, batch_per_rank=10 * ranks, comm=SingleProcess(), **ways)
    found["fit"], found["fit alone"] = apart(nets[0], nets[2]), apart(nets[1], nets[2])

    with tf.Graph().as_default():  # whose exchanges are none of what follows
        hvd.SyncBatchNormalization()(tf.ones((2, 3)), training=True)
    xla = net(True)
    xla.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    workers = FitConfig(virtual_workers=2, evaluate=False)
    layer = hvd.SyncBatchNormalization()

    def gradient_of_gradient():
        values = tf.constant(x)
        with tf.GradientTape() as outer:
            outer.watch(values)
            with tf.GradientTape() as inner:
                inner.watch(values)
                total = tf.reduce_sum(layer(values, training=True) ** 3)
            slope = inner.gradient(total, values)
        outer.gradient(slope, values)

    errors = {
        "xla": error_of(lambda: xla.fit(x, y, verbose=0)),
        "workers": error_of(lambda: fit(net(True, image), data, batch_per_rank=10, config=workers)),
        "twice": error_of(gradient_of_gradient),
    }
    return [found, errors]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ranks", [3, *long(2)])
def test_fit_on_ranks_is_fit_in_one_process(tmp_path, ranks):
    for found, errors in on_ranks(ranks, fits_beside_one_process, tmp_path):
        assert len(found) == 6
        assert max(found.values()) <= 1e-12, found
        assert "`jit_compile` must be False" in errors["xla"]
        assert "`virtual_workers` must be 1 for a model with layers that sync" in errors["workers"]
        assert "gradient of a gradient through the batch normalization" in errors["twice"]


def test_a_saved_layer_opens_as_keras_own(tmp_path):
    import keras

    import dlguide.horovod as hvd
    from dlguide import models

    model = keras.Sequential([keras.Input((2,)), hvd.SyncBatchNormalization(momentum=0.5)])
    assert isinstance(model.layers[0], hvd.SyncBatchNormalization)
    assert not isinstance(keras.layers.BatchNormalization(), hvd.SyncBatchNormalization)
    assert models.count(model).flops == 2 * 2  # counted as Keras' own
    sent = cloudpickle.loads(cloudpickle.dumps(hvd.SyncBatchNormalization))
    assert sent is hvd.SyncBatchNormalization
    copy = keras.models.clone_model(model).layers[0]
    assert (type(copy), copy.synchronized) == (hvd.SyncBatchNormalization, True)
    for name in ("net.keras", "net.h5"):
        model.save(tmp_path / name)
        layer = keras.models.load_model(tmp_path / name).layers[0]
        assert type(layer) is keras.layers.BatchNormalization
        assert layer.synchronized
        assert layer.momentum == 0.5
    with pytest.raises(ValueError, match="`fused` must be False in a synchronized layer"):
        hvd.SyncBatchNormalization(fused=None)
