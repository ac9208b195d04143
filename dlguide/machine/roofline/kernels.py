"""The kernels whose rates are the roof; runs as a program of its own, one part at a time.

    python -m dlguide.machine.roofline.kernels memory '{"cpus": [0], "seconds": 1, ...}'

It binds itself to the given logical CPUs before a library starts its threads, and ends with one
line, ROOF and JSON: for each quantity its highest and middle rate and how it was measured.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

Rates = dict[str, dict[str, Any]]


def repeated(function: Callable[[], Any], work: float, seconds: float) -> list[float]:
    """Call a function until the time is used up and give its rates."""
    for _ in range(2):
        function()
    rates, end = [], perf_counter() + seconds
    while perf_counter() < end or len(rates) < 3:
        start = perf_counter()
        function()
        rates.append(work / (perf_counter() - start))
    return rates


def in_turns(
    kernels: dict[Any, tuple[Callable[[], Any], float]], seconds: float, rounds: int = 3
) -> dict[Any, list[float]]:
    """Call several functions in turns, so that a disturbance of a second hits all alike."""
    rates: dict[Any, list[float]] = {name: [] for name in kernels}
    for _ in range(rounds):
        for name, (function, work) in kernels.items():
            rates[name] += repeated(function, work, seconds / rounds / len(kernels))
    return rates


def memory(job: dict[str, Any]) -> Rates:
    """Measure the bandwidth of memory by NumPy in threads, each on its own part of the arrays.

    Copy counts 16 bytes an element, Add 24, a sum 8: what the program names, as STREAM counts.
    A processor may read a line before it writes it (write-allocate), which nobody counts; so
    Copy and Add may show less than the wires carry, and the sum, which writes nothing, may not.

    Args:
        job: `cpus`, `seconds` and `array_bytes`, the size of each of three arrays (bytes).

    Returns:
        dict: "memory" with its rates; the kernel with the highest one.
    """
    threads = len(job["cpus"])
    count = max(threads, job["array_bytes"] // 8)
    parts = [slice(count * k // threads, count * (k + 1) // threads) for k in range(threads)]
    a, b, c = (np.empty(count) for _ in range(3))
    with ThreadPoolExecutor(threads) as pool:

        def on_all(kernel: Callable[[slice], Any]) -> Callable[[], Any]:
            return lambda: list(pool.map(kernel, parts))

        def first_touch(part: slice) -> None:
            # memory belongs to the NUMA node of the thread that writes it first
            a[part], b[part], c[part] = 0.0, 1.0, 2.0

        on_all(first_touch)()
        kernels = {
            "Copy": (on_all(lambda part: np.copyto(c[part], a[part])), 16),
            "Add": (on_all(lambda part: np.add(a[part], b[part], out=c[part])), 24),
            "a sum": (on_all(lambda part: np.add.reduce(b[part])), 8),
        }
        rates = in_turns(
            {name: (kernel, nbytes * count) for name, (kernel, nbytes) in kernels.items()},
            job["seconds"],
        )
    name = max(rates, key=lambda each: max(rates[each]))
    told = ", ".join(f"{each} {max(values):.3g}" for each, values in rates.items())
    how = f"{name} by NumPy over arrays of {8 * count} bytes, best of {told}"
    return {"memory": _told(rates[name], how)}


def integers(job: dict[str, Any]) -> Rates:
    """Measure products of 8-bit integers, unsigned by signed, summed in 32 bits: onnxruntime."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    kernels = {}
    for size in _sizes(len(job["cpus"])):
        left = random.integers(0, 128, (size, size)).astype(np.uint8)
        right = random.integers(-64, 64, (size, size)).astype(np.int8)
        graph = helper.make_graph(
            [helper.make_node("MatMulInteger", ["left", "right"], ["product"])],
            "product",
            [helper.make_tensor_value_info("left", TensorProto.UINT8, [size, size])],
            [helper.make_tensor_value_info("product", TensorProto.INT32, [size, size])],
            [numpy_helper.from_array(right, "right")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(job["cpus"])
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        binding.bind_ortvalue_input("left", onnxruntime.OrtValue.ortvalue_from_numpy(left))
        product = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty((size, size), np.int32))
        binding.bind_ortvalue_output("product", product)
        session.run_with_iobinding(binding)
        _must_equal(product.numpy()[:8], left[:8].astype(np.int32) @ right.astype(np.int32))
        kernels[size] = (partial(session.run_with_iobinding, binding), 2 * size**3)
    return {
        "int8": _best(
            in_turns(kernels, job["seconds"]), "onnxruntime MatMulInteger, uint8 x int8 -> int32"
        )
    }


def floats(job: dict[str, Any]) -> Rates:
    """Measure products of float32 and, where there is an instruction, of bfloat16: TensorFlow."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    product = tf.function(tf.matmul, jit_compile=False)
    found: Rates = {}
    for dtype in ("float32", "bfloat16") if job["bfloat16"] else ("float32",):
        kernels = {}
        for size in _sizes(len(job["cpus"])):
            # small whole numbers are exact in both formats, and so are their sums
            numbers = [random.integers(-4, 5, (size, size)) for _ in range(2)]
            left, right = (tf.constant(each, dtype) for each in numbers)
            first = tf.cast(product(left[:8], right), tf.float32).numpy()
            rounding = 0.0 if dtype == "float32" else 2**-8
            _must_equal(first, (numbers[0][:8] @ numbers[1]).astype(np.float32), rounding)
            kernels[size] = (partial(product, left, right), 2 * size**3)
        rates = in_turns(kernels, job["seconds"])
        found[dtype] = _best(rates, f"TensorFlow (oneDNN) matmul in {dtype}")
    return found


PARTS = {"memory": memory, "integers": integers, "floats": floats}


def _sizes(threads: int) -> tuple[int, int]:
    """Edges of the matrices: with more threads there must be more to divide."""
    smallest = 1024
    scale = 2 ** math.ceil(math.log2(max(1.0, math.sqrt(threads / 4))))
    return smallest * scale, 2 * smallest * scale


def _best(rates: dict[int, list[float]], what: str) -> dict[str, Any]:
    size = max(rates, key=lambda each: max(rates[each]))
    return _told(rates[size], f"{what}, {size} x {size}")


def _told(rates: list[float], how: str) -> dict[str, Any]:
    return {"best": max(rates), "median": statistics.median(rates), "how": how}


def _must_equal(came: np.ndarray, right: np.ndarray, relative: float = 0.0) -> None:
    if not np.allclose(came, right, rtol=relative, atol=0.0):
        raise RuntimeError("the library's product differs from NumPy's")


if __name__ == "__main__":
    order = json.loads(sys.argv[2])
    os.sched_setaffinity(0, order["cpus"])
    sys.stdout.write(f"\nROOF {json.dumps(PARTS[sys.argv[1]](order))}\n")
