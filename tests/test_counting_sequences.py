"""Costs of layers for sequences are those of their equations, done and counted in NumPy."""

import numpy as np
import pytest

from dlcourse import nets
from dlguide import models


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


class Counted:
    """Does products and other arithmetic of one sample, and counts them."""

    def __init__(self):
        self.multiply_adds = self.other = 0

    def product(self, a, b):
        self.multiply_adds += a.shape[-2] * a.shape[-1] * b.shape[-1] * int(np.prod(a.shape[:-2]))
        return a @ b

    def each(self, function, *arrays):
        result = function(*arrays)
        self.other += result.size
        return result

    def add(self, *arrays):
        total = arrays[0]
        for array in arrays[1:]:
            total = self.each(np.add, total, array)
        return total

    def times(self, *arrays):
        return self.each(np.multiply, *arrays)

    def sigmoid(self, x):
        return self.each(lambda y: 1 / (1 + np.exp(-y)), x)

    def tanh(self, x):
        return self.each(np.tanh, x)


def run_recurrent(kind, weights, x, bias):
    """Apply a recurrent layer to one sample step by step."""
    do, (w, u, *rest) = Counted(), weights
    units = u.shape[0]
    state, memory = np.zeros((1, units)), np.zeros((1, units))
    parts = np.atleast_2d(rest[0]) if bias else None
    for step in x[:, None]:
        given, before = do.product(step, w), do.product(state, u)
        if kind == "GRU":
            if bias:
                given, before = do.add(given, parts[:1]), do.add(before, parts[1:])
            cut = [slice(units * n, units * (n + 1)) for n in range(3)]
            z, r = (do.sigmoid(do.add(given[:, s], before[:, s])) for s in cut[:2])
            new = do.tanh(do.add(given[:, cut[2]], do.times(r, before[:, cut[2]])))
            rest_of_z = do.each(lambda one: 1 - one, z)
            state = do.add(do.times(z, state), do.times(rest_of_z, new))
            continue
        total = do.add(given, before, parts) if bias else do.add(given, before)
        if kind == "SimpleRNN":
            state = do.tanh(total)
            continue
        i, f, g, o = np.split(total, 4, axis=1)
        i, f, g, o = do.sigmoid(i), do.sigmoid(f), do.tanh(g), do.sigmoid(o)
        memory = do.add(do.times(f, memory), do.times(i, g))
        state = do.times(o, do.tanh(memory))
    return state[0], do


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_a_recurrent_layer_costs_what_its_equations_do(kind, bias, keras):
    layer = getattr(keras.layers, kind)(4, use_bias=bias, dtype="float64", name="one")
    model = keras.Sequential([keras.Input((6, 3), dtype="float64"), layer])
    rng = np.random.default_rng(1)
    layer.set_weights([0.5 * rng.standard_normal(w.shape) for w in layer.get_weights()])
    x = rng.standard_normal((6, 3))
    result, done = run_recurrent(kind, layer.get_weights(), x, bias)
    np.testing.assert_allclose(model(x[None]).numpy()[0], result, rtol=1e-10, atol=1e-12)
    cost = models.count(model)
    assert (cost.multiply_adds, cost.flops - 2 * cost.multiply_adds) == (
        done.multiply_adds,
        done.other,
    )
    gates = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
    assert done.multiply_adds == 6 * gates * 4 * (3 + 4)


def run_attention(weights, x, heads):
    """Apply multi-head attention of a sequence to itself."""
    do, (wq, bq, wk, bk, wv, bv, wo, bo) = Counted(), weights
    total = []
    for head in range(heads):
        q, k, v = (
            do.add(do.product(x, w[:, head]), np.broadcast_to(b[head], (len(x), w.shape[2])))
            for w, b in ((wq, bq), (wk, bk), (wv, bv))
        )
        q = do.times(q, np.full(q.shape, q.shape[1] ** -0.5))
        scores = do.each(np.exp, do.product(q, k.T))
        do.other += scores.size  # the sum
        scores = do.each(np.divide, scores, scores.sum(axis=1, keepdims=True))
        total.append(do.product(scores, v))
    joined = np.concatenate(total, axis=1)
    result = do.product(joined, wo.reshape(-1, wo.shape[-1]))
    return do.add(result, np.broadcast_to(bo, result.shape)), do


@pytest.mark.parametrize("values", [None, 5])
def test_attention_costs_what_its_equations_do(values, keras):
    layer = keras.layers.MultiHeadAttention(2, 4, values, dtype="float64")
    inputs = keras.Input((6, 8), dtype="float64")
    model = keras.Model(inputs, layer(inputs, inputs))
    rng = np.random.default_rng(2)
    layer.set_weights([0.5 * rng.standard_normal(w.shape) for w in layer.get_weights()])
    x = rng.standard_normal((6, 8))
    # Keras lists queries, keys, values and the result, each with its bias
    result, done = run_attention(layer.get_weights(), x, 2)
    np.testing.assert_allclose(model(x[None]).numpy()[0], result, rtol=1e-10, atol=1e-12)
    cost = models.count(model)
    assert cost.multiply_adds == done.multiply_adds
    assert cost.flops - 2 * cost.multiply_adds == done.other


def test_einsum_costs_each_combination_of_its_indices(keras):
    inputs = keras.Input((6, 8))
    scale = keras.layers.EinsumDense("bld,d->bld", (6, 8), bias_axes="ld")
    cost = models.count(keras.Model(inputs, scale(inputs)))
    assert (cost.multiply_adds, cost.flops) == (48, 3 * 48)
    dense = keras.layers.EinsumDense("blf,fd->bld", (6, 5), activation="relu")
    cost = models.count(keras.Model(inputs, dense(inputs)))
    assert (cost.multiply_adds, cost.flops) == (6 * 8 * 5, 2 * 6 * 8 * 5 + 6 * 5)
    open_equation = keras.layers.EinsumDense("...f,fd->...d", 5)
    with pytest.raises(ValueError, match="have an equation without ellipsis at layer einsum_dense"):
        models.count(keras.Model(inputs, open_equation(inputs)))


def test_a_transformer_costs_what_its_closed_form_says(keras):
    """12 d d for each position and block, and 2 L d for the scores and their mean."""
    length, width, vocabulary, layers = 6, 8, 11, 3
    sizes = {"length": length, "width": width, "heads": 2, "layers": layers}
    cost = models.count(nets.build("causal_transformer", vocabulary=vocabulary, **sizes))
    block = 12 * width**2 + 2 * length * width
    assert cost.multiply_adds == length * (layers * block + width + width * vocabulary)
    assert not cost.uncounted


class Products:
    """Counts the multiply-adds of the products in a graph of TensorFlow."""

    def __init__(self, model, batch):
        import tensorflow as tf

        def step(inputs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(inputs, training=True) ** 2)
            given = tape.gradient(loss, [v.value for v in model.trainable_variables])
            return [tf.convert_to_tensor(one) for one in given]

        spec = tf.TensorSpec((batch, *model.input_shape[1:]), model.inputs[0].dtype)
        graph = tf.function(step).get_concrete_function(spec).graph
        todo, self.seen = [tensor.op for tensor in graph.outputs], {}
        while todo:
            op = todo.pop()
            if op.name not in self.seen:
                self.seen[op.name] = op
                todo += [tensor.op for tensor in op.inputs]
        self.multiply_adds = sum(map(self._of, self.seen.values())) / batch

    @staticmethod
    def _of(op):
        if op.type == "Einsum":
            letters = {}
            subscripts = op.get_attr("equation").decode().split("->")[0].split(",")
            for names, tensor in zip(subscripts, op.inputs, strict=True):
                letters |= dict(zip(names, tensor.shape, strict=True))
            return int(np.prod(list(letters.values()))) if len(subscripts) == 2 else 0
        if op.type in ("MatMul", "BatchMatMulV2"):
            turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            inner = op.inputs[0].shape[-2 if turned else -1]
            return int(np.prod(op.outputs[0].shape)) * inner
        return 0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU", "MultiHeadAttention"])
def test_training_costs_the_products_of_tensorflows_graph(kind, before, keras):
    """The first step's state is 0 and needs no gradient: the graph saves its product."""
    inputs = x = keras.Input((6, 8))
    if before:
        x = keras.layers.Dense(8, use_bias=False)(x)
    if kind == "MultiHeadAttention":
        x, saved = keras.layers.MultiHeadAttention(2, 4)(x, x), 0
    else:
        gates = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
        x, saved = getattr(keras.layers, kind)(5, unroll=True)(x), gates * 5 * 5
    model = keras.Model(inputs, x)
    assert models.count(model).training_multiply_adds == Products(model, 11).multiply_adds + saved


def kept_by_tensorflow(model, batch=11):
    """Follow the gradients of a step back to the arrays of the forward pass that they need."""
    import tensorflow as tf

    forward = set()

    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(model(inputs, training=True), "float32"))
        forward.update(op.name for op in tf.compat.v1.get_default_graph().get_operations())
        given = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return [tf.convert_to_tensor(one) for one in given]

    spec = tf.TensorSpec((batch, *model.input_shape[1:]), model.inputs[0].dtype)
    graph = tf.function(step).get_concrete_function(spec).graph
    todo, seen, arrays = [tensor.op for tensor in graph.outputs], set(), {}
    while todo:
        op = todo.pop()
        if op.name in seen or op.name in forward:
            continue
        seen.add(op.name)
        for tensor in op.inputs:
            todo.append(tensor.op)
            if tensor.op.name in forward and "Shape" not in op.type:
                while tensor.op.type in ("Reshape", "Identity", "ExpandDims", "Squeeze"):
                    tensor = tensor.op.inputs[0]  # the same memory under another shape
                arrays[tensor.ref()] = tensor
    total = 0
    for tensor in arrays.values():
        array = tensor.dtype not in (tf.resource, tf.variant) and tensor.shape.rank
        if array and tensor.shape[0] % batch == 0:
            total += int(np.prod(tensor.shape)) * tensor.dtype.size
    return total / batch


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "name", ["transformer", "causal_transformer", "conv_autoencoder", "resnet20"]
)
def test_activations_are_the_arrays_that_a_step_of_tensorflow_needs(name, precision, keras):
    sizes = {"length": 6, "layers": 1} if "transformer" in name else {}
    build = models.build if name in models.names() else nets.build
    model = build(name, dtype=precision, **sizes)
    assert models.memory(model, 10).activations / 10 == kept_by_tensorflow(model)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("sizes", [{}, {"key_value_heads": 4}, {"tied": 1}])
def test_a_gpt_keeps_the_arrays_that_a_step_of_tensorflow_needs(sizes, precision, keras):
    # a hidden width that is no multiple of the batch by which the arrays are recognised
    model = nets.build("gpt", dtype=precision, length=6, layers=1, hidden=20, **sizes)
    assert models.memory(model, 10).activations / 10 == kept_by_tensorflow(model)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_recurrent_layers_keep_the_arrays_of_their_steps(kind, rows, keras):
    """With the steps written out; TensorFlow's loop hides them in lists."""
    dense = keras.layers.Dense
    layer = getattr(keras.layers, kind)(7, unroll=True, return_sequences=rows)
    model = keras.Sequential([keras.Input((5, 3)), dense(4), layer, dense(2)])
    assert models.memory(model, 1).activations == kept_by_tensorflow(model)
