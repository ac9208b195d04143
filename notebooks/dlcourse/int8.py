"""8-bit integers: post-training quantisation of a trained net, and inference with onnxruntime.

Each array x is stored as q = round(x / scale) + zero, with q in 8 bits. The scales of the weights
come from the weights, one for each output channel. Those of the activations need *calibration*: a
few real images go through the net, and the largest and smallest value of each array are kept.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import measure
from dlguide.errors import require, require_count
from dlguide.machine import topology
from dlguide.machine.topology import describe
from dlguide.measure.limits import in_turns

if TYPE_CHECKING:
    import keras
    import onnx
    import onnxruntime


@dataclass(frozen=True)
class QuantisedModel:
    """A net in two ONNX files, quantised (`path`) and in float32; weights have 8 or 7 bits."""

    path: str
    float32_path: str
    nbytes: int
    float32_nbytes: int
    weight_bits: int


def quantise(
    model: keras.Model, calibration_images: np.ndarray, folder: str | os.PathLike
) -> QuantisedModel:
    """Quantise the weights and activations of a trained Keras net to 8-bit integers.

    Weights have a scale for each output channel. Activations are unsigned and weights signed, as
    VNNI multiplies them. Without VNNI the sum of two such products may overflow 16 bits (see
    `number_formats.dot_in_pairs`), so the weights then get 7 bits. The file has float operators
    between pairs of quantise and dequantise, which onnxruntime fuses when it loads them (QDQ).

    Args:
        model: trained; as for `export`.
        calibration_images: inputs as in training, shape (images, rows, columns, channels).
        folder: where "<name>.onnx" and "<name>_int8.onnx" are written; made if missing.

    Returns:
        QuantisedModel: the two files and their sizes.

    Raises:
        ValueError: if the net cannot be written as ONNX, or the images do not fit it.
    """
    images = np.asarray(calibration_images, "float32")
    shape, name = tuple(model.input_shape[1:]), "calibration_images"
    fits = images.shape[1:] == shape and len(images) > 0
    require(fits, name, f"have shape (images, {', '.join(map(str, shape))})", images.shape)
    require(bool(np.isfinite(images).all()), name, "be finite", "NaN or infinity")
    bits = 8 if topology.has_vnni(describe().simd) else 7

    import onnx
    from onnxruntime import quantization

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plain, narrow = folder / f"{model.name}.onnx", folder / f"{model.name}_int8.onnx"
    export(model, plain)
    # marks the pre-processing, folding, as done
    ready = onnx.load(plain)
    ready.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    quantization.quantize_static(
        ready,
        str(narrow),
        _Reader(images),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        reduce_range=bits == 7,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    sizes = narrow.stat().st_size, plain.stat().st_size
    return QuantisedModel(str(narrow), str(plain), *sizes, bits)


class _Reader:
    """Calibration images for onnxruntime, a few at a time."""

    def __init__(self, images: np.ndarray) -> None:
        self.batches = iter(np.array_split(images, max(1, len(images) // 32)))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch}


@dataclass(frozen=True)
class Int8Comparison:
    """Times of the same batch through the float32 and the int8 net, in turns.

    `same_label` is the share of the images that both assign to the same class, `distance` the
    largest difference of the outputs, relative to the largest output.
    """

    float32: measure.Timing
    int8: measure.Timing
    same_label: float
    distance: float

    @property
    def speed_up(self) -> measure.Ratio:
        """Time of float32 divided by time of int8, with the range of the quartiles."""
        return measure.ratio(self.float32, self.int8)


def session(
    model: str | os.PathLike | bytes, threads: int | None = None, profile: str = ""
) -> onnxruntime.InferenceSession:
    """Load an ONNX net, a file or a serialised graph, for inference on the processor.

    `threads` of one operator are None for the cores this process may use; `profile` is the prefix
    of a file for onnxruntime's profile.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or describe().usable_cores
    options.log_severity_level = 3  # errors only: it warns of every constant that it moves
    # otherwise its threads spin after a run and keep cores from the other net
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    model = os.fspath(model)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def matmul_session(weights: np.ndarray, threads: int | None = None) -> onnxruntime.InferenceSession:
    """Return a session with input "a" and output "c": a product with constant square weights.

    Weights of float32 take float32; those of int8 take unsigned bytes and give 32-bit integers.
    """
    from onnx import TensorProto, helper, numpy_helper

    whole = weights.dtype == np.int8
    types = (TensorProto.UINT8, TensorProto.INT32) if whole else (TensorProto.FLOAT,) * 2
    ends = [
        helper.make_tensor_value_info(name, type, weights.shape)
        for name, type in zip("ac", types, strict=True)
    ]
    node = helper.make_node("MatMulInteger" if whole else "MatMul", ["a", "b"], ["c"])
    constants = [numpy_helper.from_array(weights, "b")]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], constants)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return session(model.SerializeToString(), threads)


def infer(path: str | os.PathLike, images: np.ndarray) -> np.ndarray:
    """Run images, 100 at once, through `QuantisedModel.path` or its `float32_path`.

    Returns:
        numpy.ndarray: outputs, shape (images, classes).

    Raises:
        ValueError: if there are no images.
    """
    require(len(images) > 0, "images", "hold at least one image", len(images))
    net, inputs = session(path), np.asarray(images, "float32")
    batches = [inputs[begin : begin + 100] for begin in range(0, len(inputs), 100)]
    return np.concatenate([net.run(None, {"images": batch})[0] for batch in batches])


def compare(quantised: QuantisedModel, images: np.ndarray, turns: int = 7) -> Int8Comparison:
    """Time float32 and int8 in turns on the same batch of images, and compare their outputs.

    Raises:
        ValueError: if a count is below 1 or there are no images.
    """
    require_count(turns, "turns")
    inputs = {"images": np.asarray(images, "float32")}
    require(len(images) > 0, "images", "hold at least one image", len(images))
    nets = [session(path) for path in (quantised.float32_path, quantised.path)]
    wide, narrow = (net.run(None, inputs)[0] for net in nets)
    seconds: list[tuple[float, ...]] = [(), ()]
    for _ in range(turns):
        for k, net in enumerate(nets):
            # the untimed run brings this net's weights back into the caches
            run = partial(net.run, None, inputs)
            seconds[k] += measure.timing(run, repeats=1, warmup=1).seconds
    timings = map(measure.Timing, seconds)
    same = float(np.mean(wide.argmax(axis=-1) == narrow.argmax(axis=-1)))
    distance = float(np.abs(wide - narrow).max() / np.abs(wide).max())
    return Int8Comparison(*timings, same, distance)


def operators(path: str | os.PathLike, images: np.ndarray) -> dict[str, tuple[int, float]]:
    """List the operators that onnxruntime runs, from its own profile of one batch.

    Those whose name begins with QLinear or ends in Integer compute in 8 bits.

    Returns:
        dict: operator -> (count, seconds of all of them), the slowest first.
    """
    inputs = {"images": np.asarray(images, "float32")}
    with tempfile.TemporaryDirectory() as folder:
        net = session(path, profile=os.path.join(folder, "profile"))
        net.run(None, inputs)  # the first run sets up memory
        net.run(None, inputs)
        events = json.loads(Path(net.end_profiling()).read_text())
    last = max((e["ts"] for e in events if e["name"] == "model_run"), default=0)
    found: dict[str, tuple[int, float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["ts"] >= last:
            kind = event["args"]["op_name"]
            count, total = found.get(kind, (0, 0.0))
            found[kind] = (count + 1, total + event["dur"] / 1e6)
    return dict(sorted(found.items(), key=lambda each: -each[1][1]))


def measure_rates(size: int = 1024, seconds: float = 1.0) -> dict[str, float]:
    """Measure onnxruntime's products of square matrices in fp32 and int8, in turns.

    Returns:
        dict: "fp32" and "int8" -> the most multiplications and additions per second (1/s): what
        the processor can do without other programs.

    Raises:
        ValueError: if `size` is not a whole number of at least 1.
    """
    random = np.random.default_rng(0)
    wide = random.random((require_count(size, "size"), size), "float32")
    weights = random.integers(-127, 128, (size, size)).astype("int8")
    nets = {
        "fp32": (matmul_session(weights.astype("float32")), wide),
        "int8": (matmul_session(weights), (255 * wide).astype("uint8")),
    }
    kernels = {
        name: (partial(net.run, None, {"a": inputs}), 2 * size**3)
        for name, (net, inputs) in nets.items()
    }
    return {name: max(rates) for name, rates in in_turns(kernels, seconds).items()}


# --- export of a Keras net to ONNX ---

_OPSET, _IR = 17, 8  # of 2022: older engines read it too
_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}

# Names and shapes of the inputs of a layer.
_Names = Sequence[str]
_Shapes = Sequence[tuple[int | None, ...]]


def graph(model: keras.Model) -> onnx.ModelProto:
    """Return a functional or sequential Keras net as an ONNX graph.

    Inputs and outputs keep Keras' order (batch, rows, columns, channels) and any batch size;
    weights become float32. Leaves out training, several inputs or outputs, and subclassed models.

    Raises:
        ValueError: if a layer or the shape of the net is not supported; the text names it.
    """
    import onnx
    from onnx import TensorProto, helper

    inputs, outputs = _ends(model)
    writer = _Graph()
    shape, result = tuple(inputs[0].shape), tuple(outputs[0].shape)
    name = "images"
    if len(shape) == 4:
        name = writer.node("Transpose", [name], perm=[0, 3, 1, 2])
    name = writer.walk(model, [name])
    if len(result) == 4:
        name = writer.node("Transpose", [name], perm=[0, 2, 3, 1])
    writer.node("Identity", [name], output="outputs")
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, ["batch", *dims[1:]])
        for end, dims in (("images", shape), ("outputs", result))
    ]
    made = helper.make_graph(writer.nodes, model.name, ends[:1], ends[1:], writer.constants)
    opset = [helper.make_opsetid("", _OPSET)]
    whole = helper.make_model(made, producer_name="dlguide", opset_imports=opset, ir_version=_IR)
    onnx.checker.check_model(whole, full_check=True)
    return whole


def export(model: keras.Model, path: str | os.PathLike) -> Path:
    """Write a Keras net to an ONNX file and return its path; errors as for `graph`."""
    path = Path(path)
    path.write_bytes(graph(model).SerializeToString())
    return path


class _Graph:
    """Nodes and constants of the graph, written while walking a Keras net."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: _Names, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        output = output or f"{name}_out"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name, **attributes))
        return output

    def constant(self, values: Any) -> str:
        from onnx import numpy_helper

        array = np.asarray(values)
        array = array if array.dtype.kind == "i" else array.astype("float32")
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def walk(self, model: keras.Model, names: _Names) -> str:
        """Write a net whose inputs have these names; return the name of its output."""
        inputs, outputs = _ends(model)
        known = {id(tensor): name for tensor, name in zip(inputs, names, strict=True)}
        steps = _steps(inputs, outputs[0])
        readers = Counter(id(tensor) for _, given, _ in steps for tensor in given)
        readers[id(outputs[0])] += 1
        first_reader = {id(tensor): layer for layer, given, _ in steps for tensor in given}
        folded = set()
        for layer, given, made in steps:
            sources = [known[id(tensor)] for tensor in given]
            shapes = [tuple(tensor.shape) for tensor in given]
            reader = first_reader.get(id(made))
            if id(given[0]) in folded:
                name = sources[0]
            elif readers[id(made)] == 1 and _folds(layer, reader):
                folded.add(id(made))
                name = self.conv(layer, sources, shapes, reader)
            else:
                name = self._write(layer, sources, shapes)
            known[id(made)] = name
        return known[id(outputs[0])]

    def _write(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        import keras

        if isinstance(layer, keras.Model):
            return self.walk(layer, names)
        kind = type(layer).__name__
        what = f"{kind} ({layer.name!r})"
        then = "Use another layer, or add it to dlcourse."
        require(kind in _WRITE, "model", f"have layers among {', '.join(_WRITE)}", what, then)
        last = getattr(layer, "data_format", "channels_last") == "channels_last"
        require(last, "model", "have its channels last", what)
        return _WRITE[kind](self, layer, names, shapes)

    def conv(self, layer: Any, names: _Names, shapes: _Shapes, norm: Any = None) -> str:
        """Write a convolution, ordinary or depthwise, with a normalisation folded into it.

        y = g (x - m) / sqrt(v + e) + b is a convolution with kernels times g / sqrt(v + e).
        """
        kernel = np.asarray(layer.kernel, "float64")  # (rows, columns, inputs, filters)
        if type(layer).__name__ == "DepthwiseConv2D":
            rows, columns, groups, multiplier = kernel.shape
            kernel = kernel.reshape(rows, columns, 1, groups * multiplier)
        else:
            groups = layer.groups
        kernel = kernel.transpose(3, 2, 0, 1)
        bias = np.asarray(layer.bias, "float64") if layer.use_bias else np.zeros(len(kernel))
        if norm is not None:
            scale, shift = _scale_and_shift(norm)
            kernel, bias = kernel * scale[:, None, None, None], bias * scale + shift
        inputs = [names[0], self.constant(kernel), self.constant(bias)]
        window = _window(layer, shapes[0], kernel.shape[2:], layer.dilation_rate)
        output = self.node("Conv", inputs, dilations=layer.dilation_rate, group=groups, **window)
        return self.activation(layer, [output], shapes)

    def activation(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        kind = getattr(layer.activation, "__name__", type(layer.activation).__name__)
        if kind == "linear":
            return names[0]
        if kind == "relu6":
            return self.clip(names, 6.0)
        if kind == "softmax":  # classes or channels, both come second
            return self.node("Softmax", names, axis=1)
        known = ", ".join(sorted([*_ACTIVATIONS, "linear", "relu6", "softmax"]))
        must = f"use the activations {known}"
        require(kind in _ACTIVATIONS, "model", must, f"{kind}: {layer.name}")
        return self.node(_ACTIVATIONS[kind], names)

    def clip(self, names: _Names, largest: float) -> str:
        return self.node("Clip", [*names, self.constant(0.0), self.constant(largest)])

    def dense(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        then = "Put a Flatten or a global pooling before it."
        flat, came = len(shapes[0]) == 2, f"{layer.name}: {shapes[0]}"
        require(flat, "model", "flatten before a Dense", came, then)
        bias = layer.bias if layer.use_bias else np.zeros(layer.units)
        product = self.node("Gemm", [names[0], self.constant(layer.kernel), self.constant(bias)])
        return self.activation(layer, [product], shapes)

    def norm(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        _require_last_axis(layer, shapes, "normalise over the last axis")
        scale, shift = _scale_and_shift(layer)
        ones = np.ones_like(scale)
        constants = [self.constant(each) for each in (scale, shift, 0 * ones, ones)]
        return self.node("BatchNormalization", [names[0], *constants], epsilon=0.0)

    def relu(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        plain = not layer.negative_slope and not layer.threshold
        require(plain, "model", "have ReLU without slope and threshold", layer.name)
        unbounded = layer.max_value is None
        return self.node("Relu", names) if unbounded else self.clip(names, layer.max_value)

    def softmax(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        _require_last_axis(layer, shapes, "have Softmax over the last axis")
        return self.node("Softmax", names, axis=1)  # (batch, classes) or (batch, channels, ...)

    def pool(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        window = _window(layer, shapes[0], layer.pool_size)
        if "Max" in type(layer).__name__:
            return self.node("MaxPool", names, **window)
        return self.node("AveragePool", names, count_include_pad=0, **window)

    def global_pool(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        kind = "GlobalMaxPool" if "Max" in type(layer).__name__ else "GlobalAveragePool"
        pooled = self.node(kind, names)
        return pooled if layer.keepdims else self.node("Flatten", [pooled])

    def pad(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        (top, bottom), (left, right) = layer.padding
        pads = np.array([0, 0, top, left, 0, 0, bottom, right], "int64")
        return self.node("Pad", [names[0], self.constant(pads)])

    def add(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        require(len(set(shapes)) == 1, "model", "add equal shapes", f"{layer.name}: {shapes}")
        return reduce(lambda total, name: self.node("Add", [total, name]), names)

    def concat(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        axis = layer.axis % len(shapes[0])
        return self.node("Concat", names, axis=(0, 2, 3, 1)[axis] if len(shapes[0]) == 4 else axis)

    def flatten(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        # Keras flattens (rows, columns, channels); one pixel has no order to restore
        several = len(shapes[0]) == 4 and shapes[0][1:3] != (1, 1)
        name = self.node("Transpose", names, perm=[0, 2, 3, 1]) if several else names[0]
        return self.node("Flatten", [name])


_WRITE: dict[str, Callable[..., str]] = {
    **dict.fromkeys(("Conv2D", "DepthwiseConv2D"), _Graph.conv),
    "Dense": _Graph.dense,
    "BatchNormalization": _Graph.norm,
    "ReLU": _Graph.relu,
    "Activation": _Graph.activation,
    "Softmax": _Graph.softmax,
    **dict.fromkeys(("MaxPooling2D", "AveragePooling2D"), _Graph.pool),
    **dict.fromkeys(("GlobalAveragePooling2D", "GlobalMaxPooling2D"), _Graph.global_pool),
    "ZeroPadding2D": _Graph.pad,
    "Add": _Graph.add,
    "Concatenate": _Graph.concat,
    "Flatten": _Graph.flatten,
    "Dropout": lambda graph, layer, names, shapes: names[0],
}


def _ends(model: keras.Model) -> tuple[list[Any], list[Any]]:
    try:
        inputs, outputs = list(model.inputs or []), list(model.outputs or [])
    except (AttributeError, ValueError):
        inputs = outputs = []
    one = len(inputs) == 1 and len(outputs) == 1
    require(
        one, "model", "be a functional or sequential net with one input and one output",
        f"{type(model).__name__} {model.name!r}", "Begin it with keras.Input.",
    )  # fmt: skip
    return inputs, outputs


def _folds(layer: Any, reader: Any) -> bool:
    """Whether this layer is a convolution and its reader a normalisation that it can take in."""
    return (
        type(layer).__name__ in ("Conv2D", "DepthwiseConv2D")
        and layer.activation.__name__ == "linear"
        and type(reader).__name__ == "BatchNormalization"
        and reader.axis in (-1, 3)
    )


def _steps(inputs: Sequence[Any], output: Any) -> list[tuple[Any, list[Any], Any]]:
    """Return (layer, input tensors, output tensor) in an order in which they can run."""
    steps: list[tuple[Any, list[Any], Any]] = []
    done = {id(tensor) for tensor in inputs}
    # a list of open tensors and no recursion: nets are deep
    open_tensors = [output]
    while open_tensors:
        tensor = open_tensors.pop()
        if id(tensor) in done:
            continue
        layer, call, _ = tensor._keras_history
        given = list(layer._inbound_nodes[call].input_tensors)
        missing = [each for each in given if id(each) not in done]
        if missing:
            open_tensors += [tensor, *missing]
        else:
            steps.append((layer, given, tensor))
            done.add(id(tensor))
    return steps


def _scale_and_shift(norm: keras.layers.BatchNormalization) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = (np.asarray(v, "float64") for v in (norm.moving_mean, norm.moving_variance))
    gamma = np.asarray(norm.gamma, "float64") if norm.scale else np.ones_like(mean)
    beta = np.asarray(norm.beta, "float64") if norm.center else np.zeros_like(mean)
    scale = gamma / np.sqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


def _window(
    layer: Any, shape: Sequence[int | None], size: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> dict[str, list[int]]:
    """Attributes of a window; "same" of TensorFlow: one output per stride, the odd row last."""
    before, after = [0, 0], [0, 0]
    if layer.padding == "same":
        for axis, (length, k) in enumerate(zip(shape[1:3], size, strict=True)):
            stride, reach = layer.strides[axis], (k - 1) * dilation[axis] + 1
            whole = max((-(-length // stride) - 1) * stride + reach - length, 0)
            before[axis], after[axis] = whole // 2, whole - whole // 2
    return {"kernel_shape": list(size), "strides": list(layer.strides), "pads": before + after}


def _require_last_axis(layer: Any, shapes: _Shapes, must: str) -> None:
    last = layer.axis in (-1, len(shapes[0]) - 1)
    require(last, "model", must, f"{layer.name}: axis {layer.axis}")
