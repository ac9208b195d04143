"""LARS, LAMB and momentum do what the papers' formulas say, compiled, saved and on two ranks.

The references are NumPy, written from arXiv:1708.03888 (equation 6, algorithm 1),
arXiv:1904.00962 (algorithm 2) and arXiv:1706.02677 (equations 9 and 10).
Tests dlguide.training.optimizers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from command_line import python
from on_ranks import on_ranks

from dlguide.training import optimizers, schedules

STEPS = 8
SHAPES = {"kernel": (4, 3), "bias": (3,), "filters": (3, 3, 2, 2), "gates/bias": (2, 3)}
RATES = (
    schedules.warmup("gradual", 2.0, 3, start=0.1).then(schedules.Polynomial(2.0, 5)).to_steps(1)
)
ADAPTED = ("kernel", "filters")
LENGTHS = {"kernel": 0.3, "bias": 1.0, "filters": 7.0, "gates/bias": 2.0}


@pytest.fixture(scope="module")
def keras():
    import keras

    return keras


def start():
    random = np.random.default_rng(11)
    return {name: LENGTHS[name] * random.normal(size=shape) for name, shape in SHAPES.items()}


def gradients():
    random = np.random.default_rng(12)
    return [
        {name: random.normal(size=shape) * 10.0**step for name, shape in SHAPES.items()}
        for step in np.linspace(-2, 1, STEPS)
    ]


def run(keras, optimizer, weights=None, gradients_of=None, dtype="float64", compiled=False):
    """Apply gradients to variables of those names; give the weights at the end."""
    import tensorflow as tf

    weights = start() if weights is None else weights
    variables = []
    for name, value in weights.items():
        with keras.name_scope(name.split("/")[0]):
            own = name.split("/")[-1]
            variables.append(keras.Variable(value, dtype=dtype, name=own))
    optimizer.build(variables)
    apply = tf.function(lambda grads: optimizer.apply(grads, variables), jit_compile=True)
    for step in gradients() if gradients_of is None else gradients_of:
        grads = [tf.constant(step[name], variables[0].dtype) for name in weights]
        apply(grads) if compiled else optimizer.apply(grads, variables)
    return dict(zip(weights, (np.asarray(v).copy() for v in variables), strict=True))


def assert_equal(ours, reference, rtol):
    assert ours.keys() == reference.keys()
    for name, value in reference.items():
        np.testing.assert_allclose(ours[name], value, rtol=rtol, atol=rtol, err_msg=name)


def momentum_numpy(rates, m=0.9, decay=1e-4, trust=None, corrected=True, weights=None):
    """Momentum and LARS: trust None is plain momentum."""
    weights = start() if weights is None else weights
    velocity = {name: np.zeros_like(w) for name, w in weights.items()}
    for t, grads in enumerate(gradients()):
        for name, w in weights.items():
            g, beta = grads[name], decay if name in ADAPTED else 0.0
            local = 1.0
            if trust is not None and name in ADAPTED:
                w_norm, g_norm = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                local = trust * w_norm / (g_norm + beta * w_norm)
            step = rates(t) * local * (g + beta * w)
            # Equation 10: the old velocity was made with the old rate.
            change = rates(t) / rates(t - 1) if corrected and t else 1.0
            velocity[name] = m * change * velocity[name] + step
            weights[name] = w - velocity[name]
    return weights


def lamb_numpy(rate, decay=0.01):
    weights, m, v = start(), {}, {}
    for t, grads in enumerate(gradients(), start=1):
        for name, x in weights.items():
            g = grads[name]
            m[name] = 0.9 * m.get(name, 0.0) + 0.1 * g
            v[name] = 0.999 * v.get(name, 0.0) + 0.001 * g**2
            r = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-6)
            ratio = 1.0
            if name in ADAPTED:
                r = r + decay * x
                ratio = np.linalg.norm(x) / np.linalg.norm(r)
            weights[name] = x - rate * ratio * r
    return weights


# --- the papers' formulas ------------------------------------------------------------------------


@pytest.mark.parametrize("corrected", [True, False])
def test_momentum_equals_goyals_equations(keras, corrected):
    make = optimizers.MomentumSGD(RATES, correct_momentum=corrected, weight_decay=0.01)
    expected = momentum_numpy(RATES.rate, decay=0.01, corrected=corrected)
    assert_equal(run(keras, make), expected, 2e-6)  # the rates are of single precision


@pytest.mark.parametrize("trust", [None, 0.02])
def test_at_a_constant_rate_they_are_exact(keras, trust):
    own = {} if trust is None else {"trust": trust}
    make = optimizers.MomentumSGD if trust is None else optimizers.LARS
    ours = run(keras, make(0.5, weight_decay=0.01, **own))
    assert_equal(ours, momentum_numpy(lambda t: 0.5, decay=0.01, trust=trust), 1e-12)


@pytest.mark.parametrize("corrected", [True, False])
def test_lars_equals_the_papers_algorithm(keras, corrected):
    make = optimizers.LARS(RATES, weight_decay=0.01, trust=0.02, correct_momentum=corrected)
    expected = momentum_numpy(RATES.rate, decay=0.01, trust=0.02, corrected=corrected)
    assert_equal(run(keras, make), expected, 2e-6)


def test_a_lars_step_does_not_depend_on_the_gradients_length(keras):
    """Also where the squares of single precision overflow or vanish."""
    weights = {"kernel": start()["kernel"]}
    slope = gradients()[0]["kernel"]
    moves = []
    for length in (1.0, 1e-25, 1e25):
        lars = optimizers.LARS(1.0, weight_decay=None)
        steps = [{"kernel": length * slope}]
        moved = run(keras, lars, weights, steps, "float32")["kernel"] - weights["kernel"]
        moves.append(moved)
        part = np.linalg.norm(moved) / np.linalg.norm(weights["kernel"])
        assert part == pytest.approx(0.001, rel=1e-3)
    for each in moves[1:]:
        np.testing.assert_allclose(each, moves[0], rtol=1e-3, atol=1e-7)


def test_lamb_equals_the_papers_algorithm(keras):
    make = optimizers.LAMB(0.0625, weight_decay=0.1)
    assert_equal(run(keras, make), lamb_numpy(0.0625, 0.1), 1e-12)


def test_vectors_biases_and_excluded_names_have_neither_decay_nor_a_local_rate(keras):
    still = [{name: np.zeros(shape) for name, shape in SHAPES.items()}]
    for make in (optimizers.MomentumSGD, optimizers.LARS, optimizers.LAMB):
        moved = run(keras, make(0.5, weight_decay=0.1), gradients_of=still)
        changed = {name for name in SHAPES if not np.array_equal(moved[name], start()[name])}
        assert changed == set(ADAPTED)


# --- zero and not finite -------------------------------------------------------------------------


def test_zero_weights_leave_zero_with_a_local_rate_of_1(keras):
    weights, slope = {"kernel": np.zeros((2, 2))}, [{"kernel": np.full((2, 2), 3.0)}]
    moved = run(keras, optimizers.LARS(0.5, weight_decay=0.1), weights, slope)
    assert moved["kernel"] == pytest.approx(np.full((2, 2), -1.5))
    moved = run(keras, optimizers.LAMB(0.5), weights, slope)  # the first step of Adam is the sign
    assert moved["kernel"] == pytest.approx(np.full((2, 2), -0.5), rel=1e-5)


def test_zero_gradients_leave_only_decay(keras):
    weights, still = {"kernel": np.full((2, 2), 4.0)}, [{"kernel": np.zeros((2, 2))}]
    for make in (optimizers.LARS, optimizers.LAMB):
        same = run(keras, make(0.5, weight_decay=None), weights, still)
        assert np.array_equal(same["kernel"], weights["kernel"])
    moved = run(keras, optimizers.LARS(0.5, weight_decay=0.1), weights, still)
    assert moved["kernel"] == pytest.approx(4.0 * (1 - 0.5 * 0.1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_shows_in_its_own_layer_only(keras, bad):
    slope = gradients()[0] | {"kernel": np.full(SHAPES["kernel"], bad)}
    for make in (optimizers.MomentumSGD, optimizers.LARS, optimizers.LAMB):
        moved = run(keras, make(0.1), gradients_of=[slope])
        assert not np.isfinite(moved["kernel"]).any()
        assert all(np.isfinite(moved[name]).all() for name in SHAPES if name != "kernel")


def test_a_loss_scale_leaves_out_updates_that_are_not_finite(keras):
    for make in (optimizers.LARS, optimizers.LAMB):
        scaled = keras.optimizers.LossScaleOptimizer(make(0.1), initial_scale=1.0)
        slope = {name: np.full(shape, math.nan) for name, shape in SHAPES.items()}
        moved = run(keras, scaled, gradients_of=[slope])
        assert all(np.array_equal(moved[name], start()[name]) for name in SHAPES)


# --- with what Keras does around them ------------------------------------------------------------


def makers():
    return {
        "momentum": lambda: optimizers.MomentumSGD(RATES, weight_decay=0.01),
        "lars": lambda: optimizers.LARS(RATES, trust=0.02),
        "lamb": lambda: optimizers.LAMB(0.05),
    }


@pytest.mark.parametrize("name", makers())
def test_compiled_by_xla_they_do_the_same(keras, name):
    make = makers()[name]
    assert_equal(run(keras, make(), compiled=True), run(keras, make()), 1e-6)


@pytest.mark.parametrize("name", makers())
def test_accumulated_gradients_are_one_of_their_mean(keras, name):
    twice = [each for each in gradients() for _ in (0, 1)]
    make, rate = {
        "momentum": (optimizers.MomentumSGD, 0.1),
        "lars": (optimizers.LARS, 2.0),
        "lamb": (optimizers.LAMB, 0.05),
    }[name]
    once, halves = make(rate), make(rate, gradient_accumulation_steps=2)
    assert_equal(run(keras, halves, gradients_of=twice), run(keras, once), 1e-12)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("momentum", "mixed_bfloat16"), ("lars", "mixed_float16"), ("lamb", "float32")],
)
def test_models_train_in_every_precision_and_with_sparse_gradients(keras, name, policy):
    random = np.random.default_rng(1)
    words = random.integers(0, 20, (64, 6))
    labels = (words.sum(1) > 57).astype("float32")
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(20, 8, dtype=policy),
            layers.Flatten(dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Dense(16, activation="relu", dtype=policy),
            layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = {
        "momentum": lambda: optimizers.MomentumSGD(0.1),
        "lars": lambda: optimizers.LARS(20.0),
        "lamb": lambda: optimizers.LAMB(0.02),
    }[name]()
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=128.0)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, jit_compile=policy == "float32")
    losses = model.fit(words, labels, batch_size=32, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0], losses


GO_ON = """
import sys
import keras
import numpy as np
from dlguide.training import optimizers

optimizers.register()
x, y = np.load("x.npy"), np.load("y.npy")
for name in sys.argv[1:]:
    model = keras.saving.load_model(name + ".keras")
    for _ in range(2):
        model.train_on_batch(x, y)
    np.savez(name + ".npz", *[each.numpy() for each in model.variables])
"""


def test_saved_models_go_on_in_a_fresh_process_with_the_same_bits(keras, tmp_path):
    random = np.random.default_rng(2)
    x, y = random.normal(size=(16, 4)), random.normal(size=(16, 1))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    cases = makers() | {"decay": lambda: optimizers.LARS(RATES, weight_decay=RATES)}
    models = {}
    for name, make in cases.items():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(make(), loss="mse", run_eagerly=True)
        model.train_on_batch(x, y)
        model.save(tmp_path / f"{name}.keras")
        models[name] = model
    python(GO_ON, *models, timeout_s=200, cwd=tmp_path)
    for name, model in models.items():
        before = [each.numpy() for each in model.trainable_variables]
        for _ in range(2):
            model.train_on_batch(x, y)
        assert not np.array_equal(before[0], model.trainable_variables[0].numpy())
        theirs = np.load(tmp_path / f"{name}.npz")
        for mine, key in zip(model.variables, theirs.files, strict=True):
            assert np.array_equal(mine.numpy(), theirs[key]), name


# --- on ranks ------------------------------------------------------------------------------------


def train_on_ranks():
    from horovod_cases import compare

    import dlguide.horovod as hvd
    from dlguide.training import optimizers, schedules

    hvd.init()
    rates = (
        schedules.warmup("gradual", 1.0, 3, start=0.25).then(schedules.Cosine(1.0, 3)).to_steps(1)
    )

    def lars():
        return optimizers.LARS(rates, trust=0.1, weight_decay=0.01)

    return {
        "momentum": compare(lambda: optimizers.MomentumSGD(rates, weight_decay=0.01), steps=4),
        "lars": compare(lars, steps=4),
        "lars compiled": compare(lars, steps=4, graph=True),
        "lamb": compare(lambda: optimizers.LAMB(0.05), steps=4),
    }


def test_two_ranks_are_one_process_with_the_global_batch(tmp_path):
    results = on_ranks(2, train_on_ranks, tmp_path)
    assert len(results[0]) == 4
    for result in results:
        for name, case in result.items():
            assert case["error"] <= 1e-12, name
            assert case["spread"] == 0.0, name
            assert case["moved"] > 1e-2, name
