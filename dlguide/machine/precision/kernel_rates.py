"""How quickly oneDNN and onnxruntime multiply matrices, in each format, by which kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from dlguide import commands, measure
from dlguide.errors import require_count, require_known
from dlguide.machine import extensions, onednn
from dlguide.machine.describe import describe

# oneDNN's names, from the oldest on; "DEFAULT" lets it use whatever the processor has
LEVELS = ("AVX2", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "DEFAULT")
# oneDNN's name of the activations' type -> ours
_TYPES = {"f32": "fp32", "bf16": "bf16", "u8": "int8", "s8": "int8"}
_LIMIT_S = 120.0
_PROGRAM = (
    "from dlguide.machine.precision.kernel_rates import multiply; "
    "multiply({formats}, {size}, {repeats})"
)
# below these TensorFlow's bf16 products crash when the processor has more than oneDNN may use
_WITH_BF16 = ("AVX512_CORE_BF16", "DEFAULT")


@dataclass(frozen=True)
class Rate:
    """How quickly one kernel multiplied matrices.

    Args:
        level: the newest instructions that it was allowed, one of `LEVELS`.
        format: of the factors: "fp32", "bf16" or "int8".
        kernel: oneDNN's name of it.
        flops_per_s: multiplications and additions a second, the median of the repeats (1/s).
    """

    level: str
    format: str
    kernel: str
    flops_per_s: float


def multiply(formats: Sequence[str], size: int, repeats: int) -> None:
    """Multiply square matrices and add a bias with TensorFlow, in several formats.

    Runs in a process of its own, whose log `measure_onednn` reads. Says so and goes on where
    TensorFlow has no product in a format on this machine.
    """
    for format in formats:
        require_known(format, _TYPES.values(), "formats")
    require_count(size, "size")
    require_count(repeats, "repeats")
    import tensorflow as tf

    random = np.random.default_rng(0)
    left = random.random((size, size), "float32")
    right = random.normal(size=(size, size)).astype("float32")
    widest = float(np.abs(right).max())
    bias = tf.zeros(size)

    @tf.function
    def floats(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        # with a bias TensorFlow hands the product to the same kind of kernel as in a net
        return tf.nn.bias_add(tf.matmul(a, b), tf.cast(bias, a.dtype))

    @tf.function
    def integers(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        ranges = {"min_a": 0.0, "max_a": 1.0, "min_b": -widest, "max_b": widest}
        return tf.raw_ops.QuantizedMatMulWithBias(
            a=a, b=b, bias=bias, Toutput=tf.qint32, input_quant_mode="MIN_FIRST", **ranges
        ).out

    for format in formats:
        if format == "int8":
            a = tf.bitcast(tf.constant((255 * left).astype("uint8")), tf.quint8)
            b = tf.bitcast(tf.constant((127 / widest * right).astype("int8")), tf.qint8)
        else:
            dtype = {"fp32": tf.float32, "bf16": tf.bfloat16}[format]
            a, b = tf.cast(left, dtype), tf.cast(right, dtype)
        product = integers if format == "int8" else floats
        try:
            product(a, b)
        except (tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
            print(f"no product in {format} here: {error.message}", file=sys.stderr)
            continue
        for _ in range(repeats - 1):
            product(a, b)


def measure_onednn(
    levels: Sequence[str] = LEVELS, size: int = 1024, repeats: int = 12
) -> tuple[Rate, ...]:
    """Let oneDNN multiply matrices, with ever newer instructions allowed.

    Each level is a process of its own with ONEDNN_MAX_CPU_ISA set, as oneDNN reads it once. The
    times are those in its log, without the preparation around them. A level that the processor
    does not have is the best one below it: the kernel's name tells. A format for which oneDNN has
    no kernel at a level is missing for it.

    Args:
        levels: of `LEVELS`, "DEFAULT" for all that the processor has.
        size: rows and columns of the matrices (count).
        repeats: products in each format, the first quarter of them not counted (count).

    Returns:
        tuple: one Rate for each level and format.

    Raises:
        ValueError: when a level is unknown or a count below 1.
        RuntimeError: when a process failed; with the last lines that it printed.
    """
    require_count(size, "size")
    require_count(repeats, "repeats")
    for level in levels:
        require_known(level, LEVELS, "levels")
    found = []
    for level in levels:
        environment = commands.without_mpi() | {
            "ONEDNN_VERBOSE": "1",
            "ONEDNN_MAX_CPU_ISA": level,
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "TF_NUM_INTRAOP_THREADS": str(describe().usable_cores),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        wide = extensions.has(describe().simd, "bf16") and level in _WITH_BF16
        formats = ("fp32", "bf16", "int8") if wide else ("fp32", "int8")
        program = _PROGRAM.format(formats=formats, size=size, repeats=repeats)
        done = commands.run([sys.executable, "-c", program], _LIMIT_S, environment)
        if not done.ok:
            raise RuntimeError(
                f"Multiplying with {level} failed (status {done.status}):\n{done.tail()}"
            )
        found += read_rates(done.output, level, size)
    return tuple(found)


def read_rates(log: str, level: str, size: int) -> list[Rate]:
    """Read rates out of oneDNN's verbose log of square matrix products."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for primitive in onednn.parse(log).primitives:
        sources = [each.dtype for each in primitive.tensors if each.role.startswith("src")]
        product = primitive.kind in ("matmul", "inner_product", "gemm_api")
        if product and sources[:1] and sources[0] in _TYPES:
            key = _TYPES[sources[0]], primitive.implementation or primitive.kind
            seconds.setdefault(key, []).append(primitive.seconds)
    best: dict[str, Rate] = {}
    for (format, kernel), times in sorted(seconds.items(), key=lambda each: len(each[1])):
        counted = times[len(times) // 4 :]
        best[format] = Rate(level, format, kernel, 2 * size**3 / median(counted))
    return [best[format] for format in ("fp32", "bf16", "int8") if format in best]


def measure_onnxruntime(size: int = 1024, repeats: int = 15) -> dict[str, float]:
    """Measure how quickly onnxruntime multiplies square matrices in fp32 and in int8.

    The two take turns, and the best time of each counts: what the processor can do, not what
    other programs leave of it.

    Args:
        size: rows and columns (count).
        repeats: products that count (count).

    Returns:
        dict: "fp32" and "int8" -> multiplications and additions a second (1/s).

    Raises:
        ValueError: when a count is below 1.
    """
    require_count(size, "size")
    require_count(repeats, "repeats")
    random = np.random.default_rng(0)
    wide = random.random((size, size), "float32")
    weights = random.integers(-127, 128, (size, size)).astype("int8")
    nets = {
        "fp32": (_product("MatMul", weights.astype("float32"), size), wide),
        "int8": (_product("MatMulInteger", weights, size), (255 * wide).astype("uint8")),
    }
    best = dict.fromkeys(nets, float("inf"))
    for _ in range(repeats):
        for name, (net, inputs) in nets.items():
            once = measure.timing(lambda n=net, x=inputs: n.run(None, {"a": x}), 1, warmup=1)
            best[name] = min(best[name], *once.seconds)
    return {name: 2 * size**3 / seconds for name, seconds in best.items()}


def _product(kind: str, weights: np.ndarray, size: int) -> Any:
    """An onnxruntime session that multiplies with constant weights."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    whole = kind == "MatMulInteger"
    types = (TensorProto.UINT8, TensorProto.INT32) if whole else (TensorProto.FLOAT,) * 2
    ends = [
        helper.make_tensor_value_info(name, type, [size, size])
        for name, type in zip("ac", types, strict=True)
    ]
    node = helper.make_node(kind, ["a", "b"], ["c"])
    graph = helper.make_graph(
        [node], "product", ends[:1], ends[1:], [numpy_helper.from_array(weights, "b")]
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = describe().usable_cores
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
