"""Chains of products are as long as the nets are deep, and gates let through what they should.

Tests dlcourse.taken_apart.
"""

import numpy as np
import pytest

from dlcourse import nets
from dlcourse.taken_apart import longest_chain, memory_rate


@pytest.fixture(scope="module")
def keras():
    import keras

    return keras


@pytest.mark.parametrize("depth", [1, 3])
def test_dense_layers_wait_for_each_other(keras, depth):
    net = keras.Sequential([keras.layers.Dense(4) for _ in range(depth)])
    assert longest_chain(net, np.zeros((2, 4), "float32")) == depth


@pytest.mark.parametrize("length", [2, 9])
def test_recurrent_net_waits_at_every_step(keras, length):
    # the first input's product and one of the state at each further step, then the dense layer;
    # the product of the zero state at the first step may stand beside it
    layers = [keras.layers.SimpleRNN(3, unroll=True), keras.layers.Dense(1)]
    net = keras.Sequential(layers)
    assert longest_chain(net, np.zeros((1, length, 2), "float32")) == length + 1


@pytest.mark.parametrize(("length", "layers"), [(4, 1), (4, 3), (32, 1)])
def test_transformer_waits_at_every_layer_and_not_at_every_step(length, layers):
    net = nets.build("causal_transformer", length=length, layers=layers, width=8, heads=2)
    assert longest_chain(net, np.zeros((1, length), "int32")) == 6 * layers + 2


@pytest.mark.parametrize("bias", [-1.0, 1.0, 5.0])
def test_memory_keeps_the_share_of_its_forget_gate_where_the_state_has_no_effect(bias):
    inputs = 0.01 * np.random.default_rng(0).normal(size=(12, 4))
    gate = 1 / (1 + np.exp(-bias))
    assert memory_rate(bias, inputs, 0.0, units=8) == pytest.approx(gate, rel=0.01)
    assert memory_rate(bias, inputs[:1], units=8) == pytest.approx(gate, rel=0.01)
    assert memory_rate(bias, inputs, units=8) > 1.05 * gate
