"""Layers and nets cut across ranks equal the whole ones, and send what the formulas say."""

import pytest
from lanes import RANKS
from on_ranks import on_ranks


def cut_against_whole():
    import os

    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    from dlcourse.parallel import tensor
    from dlcourse.parallel.tensor import TensorParallelModel
    from dlguide import models

    comm, wrong = MPI.COMM_WORLD, []
    random = np.random.default_rng(5)
    x = random.normal(size=(6, 7))
    w1, b1 = random.normal(size=(7, 9)), random.normal(size=9)
    w2, b2 = random.normal(size=(9, 5)), random.normal(size=5)
    upper = random.normal(size=(6, 5))
    images = random.normal(size=(2, 6, 6, 4))
    k1, c1 = random.normal(size=(3, 3, 4, 6)), random.normal(size=6)
    k2, c2 = random.normal(size=(3, 3, 6, 5)), random.normal(size=5)

    def near(name, came, right):
        if not np.allclose(came, right, rtol=1e-12, atol=1e-12):
            wrong.append(name)

    # NumPy's own forward and backward of the two dense layers, tanh between
    hidden = np.tanh(x @ w1 + b1)
    right = hidden @ w2 + b2
    back = (upper @ w2.T) * (1 - hidden**2)
    sent = []
    told = lambda *message: sent.append(message)  # noqa: E731
    ours = slice(comm.rank * 9 // comm.size, (comm.rank + 1) * 9 // comm.size)
    columns, rows = (
        lambda array, own=ours: array[..., own],
        lambda array, own=ours: array[..., own, :],
    )
    parts = [tf.Variable(columns(w1)), tf.Variable(columns(b1)),
             tf.Variable(rows(w2)), tf.Variable(b2)]  # fmt: skip
    with tf.GradientTape() as tape:
        start = tf.constant(x)
        tape.watch(start)
        middle = tf.tanh(tensor.copy_to_region(start, comm, told) @ parts[0] + parts[1])
        y = tensor.reduce_from_region(middle @ parts[2], comm, told) + parts[3]
    gradients = tape.gradient(y, [*parts, start], output_gradients=tf.constant(upper))
    near("forward", y, right)
    whole = [x.T @ back, back.sum(0), hidden.T @ upper, upper.sum(0), back @ w1.T]
    cut = [columns, columns, rows, lambda a: a, lambda a: a]
    for place, (came, one, take) in enumerate(zip(gradients, whole, cut, strict=True)):
        near(f"gradient {place}", came, take(one))
    if sent != [("forward", "allreduce", 6 * 5 * 8), ("backward", "allreduce", 6 * 7 * 8)]:
        wrong.append(["sent", sent])

    six = slice(comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size)
    # convolutions: TensorFlow's own on whole kernels
    for stride, padding in ((1, "valid"), (2, "same")):
        variables = [tf.Variable(each) for each in (k1, c1, k2, c2)]
        with tf.GradientTape() as tape:
            start = tf.constant(images)
            tape.watch(start)
            y = tf.nn.relu(tf.nn.conv2d(start, variables[0], stride, padding.upper()) + c1)
            y = tf.nn.conv2d(y, variables[2], 1, "VALID") + variables[3]
        right, slopes = y, tape.gradient(y, [variables[0], variables[2], variables[3], start])
        mine = [tf.Variable(each) for each in (k1[..., six], c1[six], k2[..., six, :], c2)]
        with tf.GradientTape() as tape:
            start = tf.constant(images)
            tape.watch(start)
            whole = tensor.copy_to_region(start, comm)
            y = tf.nn.relu(tf.nn.conv2d(whole, mine[0], stride, padding.upper()) + mine[1])
            y = tensor.reduce_from_region(tf.nn.conv2d(y, mine[2], 1, "VALID"), comm) + mine[3]
        near("convolution", y, right)
        came = tape.gradient(y, [mine[0], mine[2], mine[3], start])
        takes = [lambda a: a[..., six], lambda a: a[..., six, :], lambda a: a, lambda a: a]
        for place, (one, whole_one, take) in enumerate(zip(came, slopes, takes, strict=True)):
            near(f"convolution gradient {place}", one, take(whole_one.numpy()))

    # gathering: forward the whole, backward the own part
    part = tf.Variable(columns(w1))
    with tf.GradientTape() as tape:
        y = tensor.gather_from_region(part, comm)
    near("gathered", y, w1)
    slope = random.normal(size=w1.shape)
    near("gathered back", tape.gradient(y, part, tf.constant(slope)), columns(slope))

    # whole nets: what Keras trains
    steps, batch, found = 3, 8, {}
    random = np.random.default_rng(6)

    def three(dtype):
        start = dict(kernel_initializer=keras.initializers.GlorotUniform(seed=2), dtype=dtype)
        return keras.Sequential([
            keras.Input((28, 28, 1), dtype=dtype),
            keras.layers.AveragePooling2D(4, dtype=dtype),
            keras.layers.Conv2D(5, 3, padding="same", activation="tanh", name="c1", **start),
            keras.layers.Flatten(dtype=dtype),
            keras.layers.Dense(7, "tanh", name="d1", **start),
            keras.layers.Dense(10, name="d2", **start),
        ])  # fmt: skip

    cnn = lambda dtype: models.build("mnist_cnn", dropout=0.0, dtype=dtype)  # noqa: E731
    cases = {
        "mlp": (lambda dtype: models.build("mlp", dtype=dtype), "float64"),
        "cnn": (cnn, "float64"),
        # without ReLU: in float32 a unit at zero may pass on one side and not on the other
        "smooth net in float32": (three, "float32"),
        "odd number of layers": (three, "float64"),
    }
    for name, (net, dtype) in cases.items():
        images = random.normal(size=(batch, 28, 28, 1)).astype(dtype)
        labels = random.integers(0, 10, batch)
        # Keras keeps numbers in float32: powers of two and eighths are exact
        whole, sgd = net(dtype), keras.optimizers.SGD(0.015625)
        split = TensorParallelModel(net(dtype), comm, 0.015625)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, whole(images))
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, whole.trainable_variables)
            sgd.apply(gradients, whole.trainable_variables)
            mine = split.step(images, labels)
        came = split.weights()
        right = {"/".join(w.path.split("/")[-2:]): w.numpy() for w in whole.weights}
        scale = max(np.abs(value).max() for value in right.values())
        apart = max(np.abs(came[path] - right[path]).max() for path in right) / scale
        size = np.dtype(dtype).itemsize
        found[name] = {
            "dtype": dtype,
            "apart": float(max(apart, abs(mine - float(loss)))),
            "sent": [list(each) for each in split.sent],
            "weights": split.weight_bytes / size,
            "size": size,
        }
    return [wrong, found]


@pytest.mark.parametrize("ranks", RANKS)
def test_cut_layers_and_nets_equal_whole_ones(tmp_path, ranks):
    # one launch for both: starting TensorFlow takes longer than all the rest
    both = on_ranks(ranks, cut_against_whole, tmp_path)
    assert [wrong for wrong, _ in both] == [[]] * ranks
    everyone = [found for _, found in both]
    for case in (one[name] for one in everyone for name in one):
        assert case["apart"] <= (1e-5 if case["dtype"] == "float32" else 1e-12), case
    found, batch = everyone[0], 8
    # one allreduce for a pair; the images need no gradient
    assert found["mlp"]["sent"] == [["forward", "allreduce", batch * 10 * 8]]
    # two pairs; backward at the start of the second, at what comes out of the last pooling
    pair = [["forward", "allreduce", batch * 8 * 8 * 64 * 8], ["forward", "allreduce", 640]]
    assert found["cnn"]["sent"] == [*pair, ["backward", "allreduce", batch * 4 * 4 * 64 * 8]]
    odd = [["forward", "allreduce", batch * 7 * 8], ["forward", "allgather", batch * 10 * 8]]
    assert found["odd number of layers"]["sent"] == [
        *odd,
        ["backward", "allreduce", batch * 7 * 8],
    ]
    # no weight is on two ranks, but the bias of a layer cut by its inputs is on all
    total = sum(one["mlp"]["weights"] for one in everyone)
    assert total == 785 * 64 + 64 * 10 + 10 * ranks
