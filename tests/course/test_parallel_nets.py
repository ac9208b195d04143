"""Keras nets trained layer by layer on ranks equal Keras' own step on the whole batch.

Tests dlguide.parallel.overlap and dlcourse.parallel_nets with TensorFlow.
"""

import pytest
from on_ranks import on_ranks

pytestmark = pytest.mark.ranks


def keras_cases():
    import os

    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    from dlcourse.parallel_nets import KerasLayers
    from dlguide import models
    from dlguide.parallel.overlap import BucketedOverlap

    comm, random = MPI.COMM_WORLD, np.random.default_rng(3)

    def residual():
        keras.utils.set_random_seed(1)
        layers = keras.layers
        x = inputs = keras.Input((6,), dtype="float64")
        x = layers.Dense(5, "tanh", dtype="float64", name="stem")(x)
        way = layers.Dense(5, "tanh", dtype="float64", name="way1")(x)
        way = layers.Dense(5, dtype="float64", name="way2")(way)
        x = layers.Add(dtype="float64", name="sum")([x, way])
        frozen = layers.Dense(4, dtype="float64", name="frozen", trainable=False)
        return keras.Model(inputs, layers.Dense(3, dtype="float64", name="logits")(frozen(x)))

    def serial(model, optimizer, batches):
        for images, labels in batches:
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, model(images, training=True)
                )
                loss = tf.reduce_mean(each)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return [weight.numpy() for weight in model.weights]

    def distance(got, right):
        return max(
            float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))
            for a, b in zip(got, right, strict=True)
        )

    def sgd():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    def adam():
        return keras.optimizers.Adam(0.01)

    cases = {"residual": (residual, (6,), "f8", 3, adam, 96)}
    if comm.size == 2:
        mnist = (lambda: models.build("mnist_cnn", dropout=0), (28, 28, 1), "f4", 10, sgd, 1 << 18)
        cases["mnist_cnn"] = mnist
    found = {}
    for name, (build, shape, dtype, classes, optimizer, slice_bytes) in cases.items():
        batches = [
            (random.random((13, *shape)).astype(dtype), random.integers(0, classes, 13))
            for _ in range(3)
        ]
        right = serial(build(), optimizer(), batches)
        for schedule in ("end", "layerwise", "overlapped", "priority"):
            model = build()
            net = KerasLayers(model, optimizer)
            with BucketedOverlap(net, comm, schedule, slice_bytes) as trainer:
                for images, labels in batches:  # 13 samples do not divide
                    mine = slice(comm.rank, None, comm.size)
                    loss = trainer.step(images[mine], labels[mine])
            own = [weight.numpy() for weight in model.weights]
            first = comm.bcast(own)
            found[f"{name} {schedule}"] = {
                "distance": distance(own, right),
                "ranks apart": float(
                    max(np.abs(a - b).max() for a, b in zip(own, first, strict=True))
                ),
                "names": net.names,
                "sizes": net.sizes,
                "loss": loss,
                "steps": len(trainer.steps),
            }

    def text(call):
        try:
            call()
        except ValueError as error:
            return str(error)
        return "nothing"

    def clipped():
        return keras.optimizers.SGD(0.1, global_clipnorm=1.0)

    untrained = residual()
    untrained.trainable = False
    found["errors"] = [
        text(lambda: KerasLayers(residual(), clipped)),
        text(lambda: KerasLayers(untrained, sgd)),
    ]
    with BucketedOverlap(KerasLayers(residual(), sgd), comm, "overlapped") as trainer:
        odd = comm.rank == comm.size - 1
        found["errors"] += [
            text(lambda: trainer.step(np.zeros((2, 6 - odd)), np.zeros(2, int))),
            text(lambda: trainer.step(np.zeros((2, 6)), np.zeros(2 + odd, int))),
        ]
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_schedule_equals_keras_on_the_whole_batch(tmp_path, ranks):
    everyone = on_ranks(ranks, keras_cases, tmp_path, timeout_s=200)
    for one in everyone:
        clip, untrained, shape, labels = one.pop("errors")
        assert "`optimizer` must not clip by a norm over all layers" in clip
        assert "`model` must have trained weights, got 'none in" in untrained
        assert shape.startswith(f"rank {ranks - 1}: `images` must have samples of shape (6,)")
        text = "`labels` must be one for each of 2 images, got 3."
        assert labels == f"rank {ranks - 1}: {text}"
        assert len(one) == (8 if ranks == 2 else 4)
        for name, case in one.items():
            limit = 1e-12 if name.startswith("residual") else 1e-5
            assert case["distance"] <= limit, (name, case["distance"])
            assert case["ranks apart"] == 0, name
            assert case["steps"] == 2
            if name.startswith("residual"):
                assert case["names"] == ["stem", "way1 to way2", "logits"]
                assert case["sizes"] == [6 * 5 + 5, 2 * (5 * 5 + 5), 4 * 3 + 3]
            else:
                assert case["names"] == ["conv1", "conv2", "hidden", "logits"]
