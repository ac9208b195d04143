"""p ranks with DistributedOptimizer are one process with the global batch."""

from __future__ import annotations

import pytest
from lanes import long
from on_ranks import on_ranks

pytestmark = pytest.mark.timeout(600)


def optimizers_on_ranks():
    from functools import partial

    import keras
    from horovod_cases import compare

    import dlguide.horovod as hvd

    hvd.init()
    o = keras.optimizers
    schedule = o.schedules.ExponentialDecay(0.2, 3, 0.5)
    distributed = hvd.DistributedOptimizer

    def scaled(optimizer):
        return o.LossScaleOptimizer(distributed(optimizer), initial_scale=64.0)

    cases = {
        "momentum": (lambda: o.SGD(0.1, momentum=0.9), {}),
        "nesterov": (lambda: o.SGD(0.1, momentum=0.9, nesterov=True), {}),
        "adam": (lambda: o.Adam(0.05), {}),
        "adamw": (lambda: o.AdamW(0.05, weight_decay=0.1), {}),
        "rmsprop": (lambda: o.RMSprop(0.01, momentum=0.5, centered=True), {}),
        "clipnorm": (lambda: o.SGD(0.3, clipnorm=0.1), {}),
        "clipvalue": (lambda: o.SGD(0.3, clipvalue=0.02), {}),
        "global_clipnorm": (lambda: o.SGD(0.3, global_clipnorm=0.1), {}),
        "schedule": (lambda: o.SGD(schedule, momentum=0.5), {}),
        "loss_scale_factor": (lambda: o.SGD(0.3, loss_scale_factor=64.0), {}),
        "two_groups": (lambda: o.SGD(0.3), {"wrap": partial(distributed, groups=2)}),
        "sum": (
            lambda: o.SGD(0.125),  # times the ranks without rounding
            {
                "wrap": partial(distributed, op=hvd.Sum),
                "make_serial": lambda: o.SGD(0.125 * hvd.size()),
            },
        ),
        "fp16": (
            lambda: o.SGD(0.3),
            {"wrap": partial(distributed, compression=hvd.Compression.fp16)},
        ),
        "momentum_float32": (lambda: o.SGD(0.1, momentum=0.9), {"dtype": "float32"}),
        "adam_float32": (lambda: o.Adam(0.05), {"dtype": "float32"}),
        "momentum_graph": (lambda: o.SGD(0.1, momentum=0.9), {"graph": True}),
        "ema_graph": (
            lambda: o.SGD(0.3, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
            {"graph": True},
        ),
        "accumulation_graph": (
            lambda: o.SGD(0.3, gradient_accumulation_steps=3, global_clipnorm=0.1),
            {"graph": True},
        ),
        "accumulation_scaled_graph": (
            lambda: o.Adam(0.05, gradient_accumulation_steps=2, loss_scale_factor=64.0),
            {"graph": True},
        ),
        "loss_scale_inside_graph": (
            lambda: o.LossScaleOptimizer(o.SGD(0.3), initial_scale=64.0),
            {"graph": True},
        ),
        "loss_scale_outside_graph": (lambda: o.SGD(0.3), {"wrap": scaled, "graph": True}),
        "accumulation_in_loss_scale_graph": (
            lambda: o.SGD(0.3, gradient_accumulation_steps=2),
            {"wrap": scaled, "graph": True},
        ),
    }
    return {name: compare(make, **settings) for name, (make, settings) in cases.items()}


@pytest.fixture(scope="module", params=[2, *long(3, 1, 4)])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return on_ranks(request.param, optimizers_on_ranks, folder, timeout_s=500)


def test_weights_of_ranks_equal_one_process_in_float64(trained):
    exact = {"fp16", "momentum_float32", "adam_float32"} ^ trained[0].keys()
    assert len(exact) == 19
    errors = {name: result[name]["error"] for result in trained for name in exact}
    assert {name: e for name, e in errors.items() if not e <= 1e-12} == {}


def test_weights_of_ranks_equal_one_process_in_float32(trained):
    for name in ("momentum_float32", "adam_float32"):
        assert max(result[name]["error"] for result in trained) <= 1e-5, name


def test_all_ranks_hold_the_same_bits(trained):
    spread = {name: case["spread"] for result in trained for name, case in result.items()}
    assert {name: s for name, s in spread.items() if s != 0.0} == {}


def test_every_case_moves_the_weights(trained):
    assert min(case["moved"] for case in trained[0].values()) > 1e-3


def test_fp16_compression_costs_precision_but_not_agreement(trained):
    ranks = len(trained)
    assert trained[0]["fp16"]["error"] <= 2e-3
    assert (trained[0]["fp16"]["error"] > 1e-6) == (ranks > 1)


def gradients_on_ranks():
    import warnings

    import keras
    import numpy as np
    import tensorflow as tf
    from horovod_cases import error_of, names_of_operators

    import dlguide.horovod as hvd

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    o = keras.optimizers
    mean_rank = np.mean(np.arange(ranks))
    done = {}

    # Sparse gradients: rank r touches rows r and 1, row 1 twice.
    def slices(r):
        rows = np.array([[1.0 + r, 2.0], [3.0, 4.0], [5.0, 6.0 + r]])
        return rows, np.array([r, 1, 1])

    expected = np.ones((6, 2))
    for r in range(ranks):
        rows, places = slices(r)
        np.subtract.at(expected, places, 0.125 * rows / ranks)
    for sparse_as_dense in (False, True):
        table = keras.Variable(np.ones((6, 2)), dtype="float64")
        bias = keras.Variable(np.zeros(2), dtype="float64")
        optimizer = hvd.DistributedOptimizer(o.SGD(0.125), sparse_as_dense=sparse_as_dense)
        rows, places = slices(rank)
        grad = tf.IndexedSlices(tf.constant(rows), tf.constant(places), tf.constant([6, 2]))
        optimizer.apply([grad, tf.constant([1.0 * rank, 1.0], tf.float64)], [table, bias])
        done[f"sparse_{sparse_as_dense}"] = float(np.abs(np.asarray(table) - expected).max())
        done[f"beside_sparse_{sparse_as_dense}"] = np.asarray(bias).tolist()
    done["beside_sparse_expected"] = [-0.125 * mean_rank, -0.125]

    # Adam squares gradients: rows that several ranks touch must be added up first.
    tables = [keras.Variable(np.ones((6, 2)), dtype="float64") for _ in range(2)]
    sparse, dense = hvd.DistributedOptimizer(o.Adam(0.125)), o.Adam(0.125)
    rows, places = slices(rank)
    sparse.apply([tf.IndexedSlices(tf.constant(rows), tuple(places), (6, 2))], tables[:1])
    whole = np.zeros((6, 2))
    for r in range(ranks):
        rows, places = slices(r)
        np.add.at(whole, places, rows / ranks)
    dense.apply([tf.constant(whole)], tables[1:])
    apart = np.abs(np.asarray(tables[0]) - np.asarray(tables[1])).max()
    done["sparse_adam"] = 0.0 if ranks == 1 else float(apart)  # on one rank it is Keras' own

    # Several dtypes, and a variable without gradient.
    dtypes = ["float32", "float16", "float64", "bfloat16", "float32"]
    several = [keras.Variable(np.zeros(3), dtype=dtype) for dtype in dtypes]
    optimizer = hvd.DistributedOptimizer(o.SGD(1.0))
    grads = [tf.cast([1.0, rank, 2.0 * rank], dtype) for dtype in dtypes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.apply([*grads[:4], None], several)
    done["dtypes"] = [np.asarray(v.numpy(), np.float64).tolist() for v in several]
    done["dtypes_expected"] = [[-1.0, -mean_rank, -2.0 * mean_rank]] * 4 + [[0.0, 0.0, 0.0]]

    # One rank's gradients overflow: all skip together, inside and outside the loss scale.
    def overflow(optimizer):
        variable = keras.Variable(np.zeros(2), dtype="float32")
        step = tf.function(lambda grad: optimizer.apply([grad], [variable]))
        finite = tf.constant([8.0 * rank, 8.0])
        step(tf.constant([np.inf, 1.0], tf.float32) if rank == ranks - 1 else finite)
        skipped = np.asarray(variable).tolist()
        step(finite)
        scale, iterations = float(optimizer.dynamic_scale), int(optimizer.iterations)
        return [skipped, scale, iterations, np.asarray(variable).tolist()]

    outside = o.LossScaleOptimizer(hvd.DistributedOptimizer(o.SGD(1.0)), initial_scale=8.0)
    inside = hvd.DistributedOptimizer(o.LossScaleOptimizer(o.SGD(1.0), initial_scale=8.0))
    done["overflow_True"], done["overflow_False"] = overflow(outside), overflow(inside)
    done["overflow_expected"] = [[0.0, 0.0], 4.0, 1, [-2.0 * mean_rank, -2.0]]

    # What is in the graph: one grouped exchange a step, and nothing at all on one rank.
    several = [keras.Variable(np.zeros((2, i + 1)), dtype="float32") for i in range(4)]
    optimizer = hvd.DistributedOptimizer(o.SGD(0.1), name="mine", check_every=0)
    optimizer.build(several)

    @tf.function
    def step(grads):
        optimizer.apply(grads)

    traced = step.get_concrete_function([tf.TensorSpec(v.shape) for v in several])
    done["operators"] = names_of_operators(traced)

    # The tape, and a tape in a loop of one's own.
    variable = keras.Variable(np.array([2.0, 3.0]), dtype="float64")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable.value**2) * (rank + 1.0)
    (grad,) = hvd.DistributedGradientTape(tape).gradient(loss, [variable.value])
    done["tape"] = np.asarray(grad).tolist()
    done["tape_expected"] = [4.0 * (mean_rank + 1), 6.0 * (mean_rank + 1)]

    # A built optimizer keeps what it has learnt.
    def half(optimizer, wrap):
        variable = keras.Variable(np.zeros(2), dtype="float64")
        for i in range(6):
            if i == 3:
                optimizer = wrap(optimizer)
            own = wrap is not (lambda x: x) and i >= 3
            value = (rank if own and wrap is hvd.DistributedOptimizer else mean_rank) + i
            optimizer.apply([tf.constant([value, 1.0], tf.float64)], [variable])
        return np.asarray(variable)

    plain = half(o.Adam(0.1), lambda x: x)
    done["kept"] = float(np.abs(half(o.Adam(0.1), hvd.DistributedOptimizer) - plain).max())

    # XLA is refused with the remedy.
    @tf.function(jit_compile=True)
    def compiled(grad):
        hvd.DistributedOptimizer(o.SGD(0.1)).apply([grad], [several[0]])

    done["xla"] = error_of(lambda: compiled(tf.zeros((2, 1))))

    # Ranks that exchange different things are told before they wait for each other.
    two = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros(3))]
    optimizer = hvd.DistributedOptimizer(o.SGD(0.1))
    missing = [tf.ones(2), None if rank == ranks - 1 else tf.ones(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done["mismatch"] = error_of(lambda: optimizer.apply(missing, two))
    return done


@pytest.fixture(scope="module", params=[2, *long(3, 1, 4)])
def gradients(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    return on_ranks(request.param, gradients_on_ranks, folder, timeout_s=500)


def test_sparse_gradients_add_up_like_dense_ones(gradients):
    for result in gradients:
        assert result["sparse_False"] <= 1e-15
        assert result["sparse_True"] <= 1e-15
        assert result["sparse_adam"] <= 1e-15
        for kind in ("beside_sparse_False", "beside_sparse_True"):
            assert result[kind] == pytest.approx(result["beside_sparse_expected"], abs=1e-15)


def test_gradients_of_several_dtypes_and_none_are_averaged(gradients):
    for result in gradients:
        for got, expected in zip(result["dtypes"], result["dtypes_expected"], strict=True):
            assert got == pytest.approx(expected, rel=1e-2)  # bfloat16 has 8 bits


def test_overflow_on_one_rank_makes_all_ranks_skip(gradients):
    for result in gradients:
        for outside in (True, False):
            skipped, scale, iterations, end = result[f"overflow_{outside}"]
            expected = result["overflow_expected"]
            assert [skipped, scale, iterations] == expected[:3]
            assert end == pytest.approx(expected[3])


def test_one_exchange_a_step_under_the_name_given(gradients):
    names = gradients[0]["operators"]
    if len(gradients) == 1:
        assert names == []
    else:
        assert len(names) == 1
        assert names[0].startswith("mine.4gradients.")
        assert all(result["operators"] == names for result in gradients)


def test_tape_returns_the_mean_gradient(gradients):
    for result in gradients:
        assert result["tape"] == pytest.approx(result["tape_expected"])


def test_built_optimizer_keeps_its_state(gradients):
    assert max(result["kept"] for result in gradients) <= 1e-12


def test_xla_is_refused_with_the_remedy(gradients):
    for result in gradients:
        if len(gradients) > 1:
            assert "jit_compile=False" in result["xla"]


def test_ranks_that_exchange_different_gradients_are_told(gradients):
    last = len(gradients) - 1
    for result in gradients:
        if last:
            assert "RanksDifferError" in result["mismatch"]
            assert f"rank {last} has no gradient as number 2" in result["mismatch"]
        else:
            assert result["mismatch"] == "no error"


def copies_move():
    import copy
    import pickle

    import cloudpickle
    import keras
    import tensorflow as tf

    import dlguide.horovod as hvd

    hvd.init()
    moved = []
    for make in (
        copy.copy,
        copy.deepcopy,
        lambda given: pickle.loads(pickle.dumps(given)),
        lambda given: cloudpickle.loads(cloudpickle.dumps(given)),
    ):
        variable = keras.Variable(0.0)
        optimizer = make(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
        optimizer.apply([tf.constant(float(hvd.rank()))], [variable])
        moved.append(float(variable.numpy()))
    return moved


def test_copies_move_by_the_mean_of_all_ranks(tmp_path):
    assert on_ranks(2, copies_move, tmp_path) == [[-0.25] * 4] * 2


def several_move_with_a_loss_scale():
    import keras
    import tensorflow as tf

    import dlguide.horovod as hvd

    hvd.init()
    moved = []
    for count in (1, 2, 3):
        variables = [keras.Variable(0.0, name=f"v{number}") for number in range(count)]
        parts = keras.optimizers.OptimizerMap(keras.optimizers.SGD(1.0))
        for variable in variables:
            parts[variable.path] = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
        several = keras.optimizers.MultiOptimizer(parts)
        optimizer = keras.optimizers.LossScaleOptimizer(several, initial_scale=8.0)
        with tf.GradientTape() as tape:
            loss = sum(v.value * float(hvd.rank()) for v in variables)
            scaled = optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, [v.value for v in variables])
        optimizer.apply(grads, variables)
        moved += [float(v.numpy()) for v in variables]
    return moved


def test_several_distributed_optimizers_share_a_loss_scale(tmp_path):
    assert on_ranks(2, several_move_with_a_loss_scale, tmp_path) == [[-0.25] * 6] * 2


def twins_and_unequal_steps():
    """Two nets of equal shapes in one step; then ranks with unequal steps, ended by `join`."""
    import keras
    import numpy as np
    import tensorflow as tf

    import dlguide.horovod as hvd

    hvd.init()
    nets = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]) for _ in range(2)]
    every = {"check_every": 4}
    adams = [hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), **every) for _ in nets]
    for net in nets:
        hvd.broadcast_variables(net.weights, root_rank=0)
    x = tf.constant(np.random.default_rng(hvd.rank()).normal(size=(8, 4)), tf.float32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            there = nets[0](x)
            loss = tf.reduce_mean((nets[1](there) - x) ** 2) + tf.reduce_mean((there + x) ** 2)
        first, second = (net.trainable_variables for net in nets)
        found = tape.gradient(loss, [*first, *second])
        adams[0].apply(found[:2], first)
        adams[1].apply(found[2:], second)

    for _ in range(10):
        step()
    mine = np.concatenate([np.ravel(w) for net in nets for w in net.get_weights()])
    rows = hvd.allgather(mine[None], "weights").numpy()
    for _ in range(9 if hvd.rank() == 0 else 5):
        step()
    last = hvd.join()
    return float(np.abs(rows - rows[0]).max()), int(last)


def test_twin_nets_train_in_one_step_and_join_ends_unequal_steps(tmp_path):
    assert on_ranks(2, twins_and_unequal_steps, tmp_path) == [[0.0, 0]] * 2
