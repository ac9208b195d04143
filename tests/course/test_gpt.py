"""The GPT is its papers' equations in NumPy, and its counts are those of closed forms.

Tests dlcourse.nets.sequences.
"""

import numpy as np
import pytest

from dlcourse import nets
from dlcourse.nets import GPTShape, sequences
from dlguide import models

SIZES = [
    {"length": 7, "vocabulary": 11, "width": 16, "heads": 4, "layers": 2},
    {"length": 5, "vocabulary": 9, "width": 24, "heads": 3, "key_value_heads": 1, "tied": 1},
    {"length": 4, "vocabulary": 6, "width": 8, "heads": 2, "hidden": 10, "layers": 1},
]


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


def normalised(x, scale):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotated(x, position):
    """Turn each pair of a head, one value of each half, by an angle that grows with position."""
    half = len(x) // 2
    pairs = x[:half] + 1j * x[half:]
    turned = pairs * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
    return np.concatenate([turned.real, turned.imag])


def attention(q, k, v):
    """One head after the other, one position after the other."""
    length, heads, width = q.shape
    out = np.zeros((length, heads, width))
    for head in range(heads):
        group = head * k.shape[1] // heads
        for t in range(length):
            here = rotated(q[t, head], t)
            scores = np.array([here @ rotated(k[s, group], s) for s in range(t + 1)])
            weights = np.exp(scores / width**0.5)
            out[t, head] = weights @ v[: t + 1, group] / weights.sum()
    return out.reshape(length, -1)


def logits(model, tokens, layers, tied):
    """Compute the logits of one sequence by the equations."""
    w = {weight.path.removeprefix("gpt/"): weight.numpy() for weight in model.weights}
    x = w["tokens/embeddings"][tokens]
    for n in range(1, layers + 1):
        y = normalised(x, w[f"block{n}_norm1/scale"])
        q, k, v = (
            np.einsum("ld,dhk->lhk", y, w[f"block{n}_{one}/kernel"])
            for one in ("query", "key", "value")
        )
        x = x + attention(q, k, v) @ w[f"block{n}_attention_out/kernel"]
        y = normalised(x, w[f"block{n}_norm2/scale"])
        gate = y @ w[f"block{n}_gate/kernel"]
        hidden = gate / (1 + np.exp(-gate)) * (y @ w[f"block{n}_up/kernel"])
        x = x + hidden @ w[f"block{n}_mlp_out/kernel"]
    last = w["tokens/embeddings"].T if tied else w["logits/kernel"]
    return normalised(x, w["norm/scale"]) @ last


@pytest.mark.parametrize("sizes", SIZES)
def test_the_net_is_its_equations(sizes, keras):
    model = nets.build("gpt", dtype="float64", **sizes)
    rng = np.random.default_rng(2)
    model.set_weights([w + 0.3 * rng.standard_normal(w.shape) for w in model.get_weights()])
    tokens = rng.integers(0, sizes["vocabulary"], (3, sizes["length"]))
    shape = GPTShape(**sizes)
    right = np.array([logits(model, row, shape.layers, shape.tied) for row in tokens])
    assert np.abs(model(tokens).numpy() - right).max() <= 1e-12 * np.abs(right).max()
    changed = tokens.copy()
    changed[:, -2] = (changed[:, -2] + 1) % sizes["vocabulary"]
    same = model(tokens).numpy() == model(changed).numpy()
    assert same[:, :-2].all()  # no token sees a later one
    assert not same[:, -2:].all(axis=-1).any()


def test_a_product_of_query_and_key_depends_on_their_distance_only():
    cos, sin = sequences.rotations(20, 8)
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 8))
    turn = lambda x, t: x * cos[t, 0] + np.roll(x, 4) * sin[t, 0]  # noqa: E731
    assert turn(q, 3) @ turn(q, 3) == pytest.approx(q @ q)
    assert turn(q, 5) @ turn(k, 2) == pytest.approx(turn(q, 17) @ turn(k, 14))
    assert turn(q, 5) @ turn(k, 2) != pytest.approx(turn(q, 5) @ turn(k, 3))


@pytest.mark.parametrize("sizes", [{}, *SIZES])
def test_closed_forms_are_what_is_counted_from_the_layers(sizes, keras):
    shape, model = GPTShape(**sizes), nets.build("gpt", **sizes)
    counted = models.count(model)
    assert shape.parameters == counted.parameters == counted.trainable
    assert shape.parameters == sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert shape.multiply_adds == counted.multiply_adds
    assert shape.training_flops == 2 * counted.training_multiply_adds
    assert counted.uncounted == ()
    # 6 N D leaves out the attention between positions only
    between = 12 * shape.layers * shape.width * shape.length**2
    assert shape.training_flops == 6 * shape.multiplied * shape.length + between


def test_published_models_have_their_published_parameters():
    """Touvron et al. 2023 (arXiv:2302.13971), table 2; Llama 3 herd (arXiv:2407.21783), table 3."""
    seven = GPTShape(2048, 32_000, 4096, 32, 32, 11_008, 32)
    assert seven.parameters == 6_738_415_616
    assert GPTShape(8192, 128_256, 4096, 32, 8, 14_336, 32).parameters == 8_030_261_248
    assert GPTShape(8192, 128_256, 8192, 64, 8, 28_672, 80).parameters == 70_553_706_496
    large = GPTShape(8192, 128_256, 16_384, 128, 8, 53_248, 126)
    assert large.parameters == 405_853_388_800
    # the paper's 3.8e25 flops for 15.6e12 tokens are 6 N D
    assert 6 * large.multiplied * 15.6e12 == pytest.approx(3.8e25, rel=0.01)
    routed = GPTShape(64, 128, 64, 4, 2, 32, 2, experts=8, active=2)
    dense = GPTShape(64, 128, 64, 4, 2, 32, 2)
    assert routed.parameters - dense.parameters == 2 * 7 * dense.swiglu
    assert routed.multiplied - dense.multiplied == 2 * dense.swiglu
