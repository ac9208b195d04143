"""The nets of lessons are those of their papers, and their seed alone decides how they start."""

import json
import random
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest

from dlcourse import nets
from dlcourse.nets import images, sequences
from dlguide import models, published

NETS = {**images.NETS, **sequences.NETS}
PUBLISHED = {(row["name"], row["source"]): row for row in published.load("architectures")}

# sizes with which a net is built and trained in a moment
SMALL = {
    "conv_autoencoder": {},
    "dcgan_generator": {"filters": 4},
    "dcgan_discriminator": {"filters": 4},
    "rnn": {"length": 6},
    "lstm": {"length": 6, "layers": 2, "features": 3, "outputs": 2},
    "gru": {"length": 6},
    "transformer": {"length": 6, "features": 3},
    "causal_transformer": {"length": 6, "vocabulary": 11},
    "gpt": {"length": 6, "vocabulary": 11, "width": 32, "layers": 3},
}


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


def weights_digest(model):
    return crc32(b"".join(w.tobytes() for w in model.get_weights()))


def samples(name, batch=5, **sizes):
    """Draw samples that a net takes."""
    rng, shape = np.random.default_rng(1), nets.build(name, **sizes).input_shape[1:]
    if name in ("causal_transformer", "gpt"):
        return rng.integers(0, sizes.get("vocabulary", 128), (batch, *shape)).astype("int32")
    return rng.random((batch, *shape), "float32")


def dense(*widths):
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def autoencoder_parameters(name, image, channels, code, noise, filters):
    widths = (channels, filters, code, filters, channels)
    return sum((9 * inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def dcgan_parameters(name, filters, channels, latent=0):
    """25 C F for a convolution, with a bias only where no normalisation follows."""
    inner, outer = 25 * 2 * filters**2, 25 * channels * filters
    if "generator" in name:
        return latent * 49 * 2 * filters + inner + 2 * 3 * filters + outer + channels
    return outer + filters + inner + 2 * 2 * filters + 49 * 2 * filters + 1


def recurrent_parameters(name, length, features, units, layers, outputs):
    """Gates of u (f + u + 1); GRU has two biases a gate: Keras resets after the product."""
    gates, biases = {"rnn": (1, 1), "lstm": (4, 1), "gru": (3, 2)}[name]
    first = gates * units * (features + units + biases)
    return first + (layers - 1) * gates * units * (2 * units + biases) + dense(units, outputs)


def transformer_parameters(name, length, width, heads, layers, **more):
    """12 d d + 13 d for a block: attention 4, dense 8, biases 9 d, two normalisations."""
    total = layers * (12 * width**2 + 13 * width) + 2 * width + length * width
    if name == "transformer":
        return total + more["features"] * width + dense(width, more["outputs"])
    return total + 2 * more["vocabulary"] * width + width


def gpt_parameters(name, length, vocabulary, width, heads, key_value_heads, hidden, layers, tied):
    """Four kernels of attention, three of SwiGLU, two scales a block, and one more."""
    hidden = hidden or 8 * -(-width // 3)
    head = width // heads
    attention = 2 * width * heads * head + 2 * width * key_value_heads * head
    block = attention + 3 * width * hidden + 2 * width
    return layers * block + width + (1 if tied else 2) * vocabulary * width


def closed_form(name, **sizes):
    kinds = {
        "conv": autoencoder_parameters,
        "causal": transformer_parameters,
        "transformer": transformer_parameters,
        "dcgan": dcgan_parameters,
        "gpt": gpt_parameters,
        **dict.fromkeys(("rnn", "lstm", "gru"), recurrent_parameters),
    }
    kind = max((kind for kind in kinds if name.startswith(kind)), key=len)
    return kinds[kind](name, **{**NETS[name].sizes, **sizes})


def test_parameters_of_gpt_2_are_the_published_124_millions():
    """GPT-2 small shares its last kernel with the embeddings, and does not scale them."""
    gpt = {"layers": 12, "width": 768, "heads": 12, "length": 1024, "vocabulary": 50257}
    ours = closed_form("causal_transformer", **gpt)
    assert ours - 50257 * 768 - 768 == 124_439_808


def test_nets_have_the_counted_parameters_start_from_the_seed_and_can_be_stored(keras, tmp_path):
    policy = keras.config.dtype_policy().name
    for name, sizes in SMALL.items():
        model = nets.build(name, seed=5, **sizes)
        trained = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
        assert trained == closed_form(name, **sizes), name
        assert weights_digest(nets.build(name, seed=5, **sizes)) == weights_digest(model), name
        assert weights_digest(nets.build(name, seed=6, **sizes)) != weights_digest(model), name
        kernels = [w.numpy() for w in model.trainable_weights if w.name == "kernel" and w.ndim > 1]
        assert all(kernel.std() > 0 for kernel in kernels), name
        equal = [kernel.tobytes() for kernel in kernels]
        assert len(set(equal)) == len(equal), name
        path = tmp_path / f"{name}.keras"
        model.save(path)
        again, given = keras.saving.load_model(path), samples(name, **sizes)
        assert np.array_equal(again(given), model(given)), name
        assert json.loads(model.to_json()) == json.loads(again.to_json()), name
    # storing draws from Python's random numbers, building does not
    state = (random.getstate(), np.random.get_state()[1].tolist())
    for name, sizes in SMALL.items():
        nets.build(name, **sizes)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state
    assert keras.config.dtype_policy().name == policy


def test_mixed_nets_compute_in_half_and_give_float32(keras):
    for name, sizes in SMALL.items():
        wide, model = (nets.build(name, dtype=d, **sizes) for d in ("float32", "mixed_bfloat16"))
        assert {w.dtype for w in model.weights} == {"float32"}, name
        assert model.output.dtype == "float32", name
        assert "bfloat16" in {layer.compute_dtype for layer in model.layers[1:-1]}, name
        given = samples(name, **sizes)
        exact = wide(given).numpy()
        distance = np.abs(model(given).numpy() - exact).max()
        assert distance < 0.1 * np.abs(exact).max(), name


def losses_of(keras, name, sizes):
    """Train on one batch, and give the loss before and after."""
    model, given = nets.build(name, dropout=None, **sizes), samples(name, batch=8, **sizes)
    rng, shape = np.random.default_rng(2), (8, *model.output_shape[1:])
    yes_or_no = keras.losses.BinaryCrossentropy(from_logits=True)
    if name in ("causal_transformer", "gpt"):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        wanted = np.roll(given, -1, axis=1)
    elif "autoencoder" in name:
        loss, wanted = yes_or_no, (given > 0.5).astype("float32")
    elif "discriminator" in name:
        loss, wanted = yes_or_no, np.arange(8).reshape(8, 1) % 2
    else:
        loss, wanted = "mean_squared_error", 0.5 * rng.standard_normal(shape)
    model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False, run_eagerly=True)
    return [model.train_on_batch(given, wanted) for _ in range(3)]


def test_steps_on_one_batch_lower_the_loss_of_every_net(keras):
    for name, sizes in SMALL.items():
        losses = losses_of(keras, name, sizes)
        assert np.isfinite(losses).all(), name
        assert losses[-1] < losses[0], name


def test_no_token_sees_a_later_one_and_the_order_of_steps_matters(keras):
    causal = nets.build("causal_transformer", length=6, vocabulary=11)
    tokens = samples("causal_transformer", length=6, vocabulary=11)
    changed = tokens.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    one, other = causal(tokens).numpy(), causal(changed).numpy()
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)
    assert (np.abs(one[:, 3:] - other[:, 3:]).max(axis=(0, 2)) > 1e-4).all()
    model, given = nets.build("transformer", length=6), samples("transformer", length=6)
    assert np.abs(model(given).numpy() - model(given[:, ::-1]).numpy()).max() > 1e-4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_recurrent_nets_are_their_papers_equations_in_numpy(keras):
    for name in ("rnn", "lstm", "gru"):
        model = nets.build(name, length=6, features=3, units=4, dtype="float64")
        rng = np.random.default_rng(4)
        model.set_weights([w + 0.3 * rng.standard_normal(w.shape) for w in model.get_weights()])
        w, u, b, last, bias = model.get_weights()
        x, state, memory = rng.standard_normal((5, 6, 3)), np.zeros((5, 4)), np.zeros((5, 4))
        for step in x.transpose(1, 0, 2):
            if name == "rnn":
                state = np.tanh(step @ w + state @ u + b)
            elif name == "lstm":
                i, f, g, o = np.split(step @ w + state @ u + b, 4, axis=1)
                memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
                state = sigmoid(o) * np.tanh(memory)
            else:
                given, recurrent = step @ w + b[0], state @ u + b[1]
                z, r = (sigmoid(given[:, s] + recurrent[:, s]) for s in (slice(4), slice(4, 8)))
                new = np.tanh(given[:, 8:] + r * recurrent[:, 8:])
                state = z * state + (1 - z) * new
        np.testing.assert_allclose(model(x).numpy(), state @ last + bias, rtol=1e-10, atol=1e-12)


def test_recurrent_weights_start_orthogonal():
    model = nets.build("gru", seed=3)
    (kernel,) = (v.numpy() for v in model.weights if "recurrent_kernel" in v.path)
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(len(kernel)), atol=1e-5)


# --- alexnet, googlenet ---


@pytest.fixture(scope="module")
def costs(keras):
    return {name: models.count(nets.build(name, seed=None)) for name in ("alexnet", "googlenet")}


def test_alexnet_has_the_published_parameters_and_multiply_adds(costs):
    printed, cost = PUBLISHED["AlexNet", "torchvision"], costs["alexnet"]
    assert abs(cost.multiply_adds / printed["multiply_adds"] - 1) < 0.02
    assert cost.parameters == printed["parameters"]
    first = next(layer for layer in cost.layers if layer.multiply_adds)
    assert cost.training_multiply_adds == 3 * cost.multiply_adds - first.multiply_adds


def test_googlenet_is_explained_by_its_heads_and_its_first_convolution(costs):
    """The tutorial's 13 million are with two auxiliary heads; the paper's 1.5 G lack 84 M."""
    heads = sum(
        (channels + 1) * 128 + (4 * 4 * 128 + 1) * 1024 + (1024 + 1) * 1000
        for channels in (512, 528)
    )
    with_heads = costs["googlenet"].parameters + heads
    assert abs(with_heads / PUBLISHED["GoogLeNet", "tutorial S-Caffe"]["parameters"] - 1) < 0.03
    first = next(layer for layer in costs["googlenet"].layers if layer.name == "conv1")
    assert first.multiply_adds == 112 * 112 * 7 * 7 * 3 * 64
    as_printed = costs["googlenet"].multiply_adds - first.multiply_adds + 34e6
    source = "Szegedy et al. 2014 section 1 and Table 1"
    assert abs(as_printed / PUBLISHED["GoogLeNet", source]["multiply_adds"] - 1) < 0.02
