"""Compressed gradients under Horovod, in Keras and in `training.fit`, are those on NumPy.

Tests dlguide.parallel.compression.
"""

from __future__ import annotations

import pytest
from lanes import long
from on_ranks import on_ranks

from dlguide.parallel import compression


def horovod_on_ranks(names):
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    import dlguide.horovod as hvd
    from dlguide.parallel import compression as c

    hvd.init()
    import keras

    comm, wrong = MPI.COMM_WORLD, []
    p, rank = comm.size, comm.rank
    makers = {
        "none": c.none,
        "fp16": c.fp16,
        "bf16": c.bf16,
        "top_k": lambda: c.top_k(0.05),
        "threshold": lambda: c.threshold(0.3),
        "one_bit": c.one_bit,
        "power_sgd": lambda: c.power_sgd(2),
    }
    shapes = [(30, 17), (4, 4, 3, 9), (17,), ()]

    def stepper(optimizer, variables):
        return lambda *these: optimizer.apply(list(these), variables)

    def close(a, b):
        return all(np.allclose(x, y, rtol=2e-5, atol=2e-5) for x, y in zip(a, b, strict=True))

    for name in names:
        make = makers[name]
        # several steps of SGD with rate 1 on a loss whose gradient is the given one
        random = np.random.default_rng(3)
        grads = [[random.normal(size=(p, *s)).astype("f4") for s in shapes] for _ in range(3)]
        alone = make() if p > 1 else c.none()  # Horovod on one rank has nothing to send
        expected = [np.zeros(s, "f4") for s in shapes]
        for each in grads:
            for i, g in enumerate(each):
                expected[i] = expected[i] - alone.allreduce(np.array(g[rank]), comm, key=i)
        for graph in (True, False) if p == 2 and name == "top_k" else (True,):
            variables = [keras.Variable(np.zeros(s, "f4")) for s in shapes]
            compressor = make()
            plain = keras.optimizers.SGD(1.0)
            optimizer = hvd.DistributedOptimizer(plain, compression=compressor, check_every=1)
            optimizer.build(variables)
            step = stepper(optimizer, variables)
            run = tf.function(step) if graph else step
            for each in grads:
                run(*[tf.constant(g[rank]) for g in each])
            ended = [np.asarray(v) for v in variables]
            if not close(ended, expected):
                wrong.append([name, "not as on NumPy", graph])
            if len(set(comm.allgather(b"".join(e.tobytes() for e in ended)))) != 1:
                wrong.append([name, "ranks differ", graph])
            predicted = compressor.step_nbytes(variables, p)
            if not compressor.sent == alone.sent == 3 * predicted:
                wrong.append([name, "bytes", compressor.sent, alone.sent, predicted])
            if p > 1 and compressor.keeps_errors:
                errors = list(compressor.errors.values())
                if not close(errors, list(alone.errors.values())) or len(errors) != 2:
                    wrong.append([name, "errors", graph])
        # the tape, and the sum in place of the mean
        x = keras.Variable(np.ones((30, 17), "f4"))
        g = random.normal(size=(p, 30, 17)).astype("f4")
        for op, times in ((hvd.Average, 1), (hvd.Sum, p)):
            tape = hvd.DistributedGradientTape(tf.GradientTape(), compression=make(), op=op)
            with tape:
                loss = tf.reduce_sum(x.value * g[rank])
            came = tape.gradient(loss, [x.value])[0].numpy()
            want = make().allreduce(g[rank], comm) * np.float32(times) if p > 1 else g[0]
            if not np.allclose(came, want, rtol=1e-2 if name == "fp16" else 2e-5, atol=2e-4):
                wrong.append([name, "tape", op])

    # rows of embeddings go as they are, beside compressed gradients
    compressor = c.top_k(0.05)
    table, kernel = keras.Variable(np.zeros((50, 8), "f4")), keras.Variable(np.zeros((50, 8), "f4"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compressor)
    optimizer.build([table, kernel])
    rows = tf.IndexedSlices(tf.ones((1, 8)), tf.constant([rank]), tf.constant([50, 8]))
    optimizer.apply([rows, tf.ones((50, 8))], [table, kernel])
    if not np.allclose(np.asarray(table)[:p], -1 / p) or not np.allclose(
        np.asarray(kernel).ravel()[:20], -1
    ):
        wrong.append("rows of an embedding")

    # fit of Keras, with accumulation over passes inside
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dense(1)])
    compressor = c.power_sgd(2)
    optimizer = keras.optimizers.SGD(0.02, gradient_accumulation_steps=2)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compressor)
    net.compile(optimizer, "mse", jit_compile=False)
    random = np.random.default_rng(rank)
    x = random.normal(size=(64, 20)).astype("f4")
    first = net.evaluate(x, x[:, :1], verbose=0)
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    net.fit(x, x[:, :1], batch_size=8, epochs=5, verbose=0, callbacks=[begin])
    if not net.evaluate(x, x[:, :1], verbose=0) < 0.5 * first:
        wrong.append("fit does not learn")
    weights = b"".join(w.tobytes() for w in net.get_weights())
    if len(set(comm.allgather(weights))) != 1:
        wrong.append("fit: ranks differ")
    if compressor.sent != 20 * compressor.step_nbytes(net.trainable_variables, p):
        wrong.append(["fit: bytes", compressor.sent])

    def told(call):
        try:
            call()
        except ValueError as error:
            return str(error)
        return "no error"

    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    texts = [
        told(lambda: hvd.DistributedOptimizer(scaled, compression=c.top_k())),
        told(lambda: hvd.DistributedGradientTape(
            tf.GradientTape(), compression=c.top_k(), op=hvd.Max)),
        told(lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), compression="top_k")),
    ]  # fmt: skip
    return [wrong, texts]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "names"),
    # one that casts, one with errors to remember, one of two exchanges; all in the long lane
    [(2, ["fp16", "top_k", "power_sgd"]), *long((2, list(compression.NAMED)), (3, ["power_sgd"]))],
)
def test_horovod_sends_what_numpy_sends(ranks, names, tmp_path):
    results = on_ranks(ranks, horovod_on_ranks, tmp_path, 150, names=names)
    assert [wrong for wrong, _texts in results] == [[]] * ranks
    for _wrong, (scaled, tape, name) in results:
        assert "without a loss scale where `compression` remembers errors" in scaled
        assert "`op` must be Average or Sum with a compression of `dlguide.parallel`" in tape
        assert "`compression` must be one of `hvd.Compression`" in name


def fit_on_ranks():
    import numpy as np
    from fitting import fit

    from dlguide import models
    from dlguide.data import datasets
    from dlguide.parallel import compression as c

    data = datasets.load("mnist").first(64, 50)
    shapes = models.build("mlp").trainable_variables
    runs = [
        fit("mlp", data, batch_per_rank=8, seed=3, compression=way)
        for way in ("none", "one_bit", c.top_k(0.05))
    ]
    predicted = [
        c.named(way).step_nbytes(shapes, runs[0].ranks)
        for way in ("none", "one_bit", c.top_k(0.05))
    ]
    return [[r.compression, r.sent_nbytes, n * len(r.step_s), r.weights_digest]
            for r, n in zip(runs, np.array(predicted).tolist(), strict=True)]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, *long(1)])
def test_a_run_of_fit_tells_compression_and_bytes(ranks, tmp_path):
    results = on_ranks(ranks, fit_on_ranks, tmp_path, 90)
    assert all(result == results[0] for result in results)
    assert [name for name, *_ in results[0]] == ["none", "one_bit", "top_k(0.05)"]
    for _name, sent, predicted, _digest in results[0]:
        assert sent == predicted
        assert (sent > 0) == (ranks > 1)
    assert len({digest for *_, digest in results[0]}) == (3 if ranks > 1 else 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compression": "topk"}, "Did you mean top_k"),
        ({"compression": "one_bit", "checkpoint": "here"}, "`checkpoint` must be None where"),
        ({"compression": "one_bit", "dtype": "mixed_float16"}, "`dtype` must not scale losses"),
    ],
)
def test_fit_refuses_before_any_work(arguments, words):
    from fitting import fit

    with pytest.raises(ValueError, match=words):
        fit("mlp", epochs=1, **arguments)
