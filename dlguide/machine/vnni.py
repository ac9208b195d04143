"""Rates of matrix products by format, the kernels that oneDNN runs for them, and evidence of VNNI.

A flag shows what the processor could do. That a program used it shows in two ways: oneDNN, below
TensorFlow, names its kernels in its log; and a rate above what older instructions could reach at
best has no other explanation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from dlguide import measure
from dlguide.errors import require_count, require_known
from dlguide.machine import int8, onednn, simd
from dlguide.machine.describe import describe
from dlguide.machine.number_formats import peak_ratio

__all__ = [
    "LEVELS",
    "MatmulRate",
    "VnniEvidence",
    "measure_onednn",
    "measure_onnxruntime",
    "vnni_evidence",
]

# oneDNN's names, the oldest first; "DEFAULT" allows all that the processor has
LEVELS = ("AVX2", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "DEFAULT")
# oneDNN's name of the activations' type -> ours
_TYPES = {"f32": "fp32", "bf16": "bf16", "u8": "int8", "s8": "int8"}
_LIMIT_S = 120.0
# below these TensorFlow's bf16 products crash when the processor has more than oneDNN may use
_WITH_BF16 = ("AVX512_CORE_BF16", "DEFAULT")


@dataclass(frozen=True)
class MatmulRate:
    """Rate of one kernel for products of square matrices.

    Args:
        level: newest instructions that were allowed, one of `LEVELS`.
        format: of the factors: "fp32", "bf16" or "int8".
        kernel: oneDNN's name.
        flops_per_s: multiplications and additions per second, median of the repeats (1/s).
    """

    level: str
    format: str
    kernel: str
    flops_per_s: float


def multiply(formats: Sequence[str], size: int, repeats: int) -> None:
    """Multiply square matrices and add a bias with TensorFlow, in several formats.

    Runs in the process whose log `measure_onednn` reads. Skips a format, with a message, if
    TensorFlow has no product in it on this machine.
    """
    import tensorflow as tf

    random = np.random.default_rng(0)
    left = random.random((size, size), "float32")
    right = random.normal(size=(size, size)).astype("float32")
    widest = float(np.abs(right).max())
    bias = tf.zeros(size)

    @tf.function
    def floats(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        # with a bias TensorFlow uses the same kind of kernel as in a net
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
) -> tuple[MatmulRate, ...]:
    """Measure oneDNN's matrix products, with newer and newer instructions allowed.

    Each level is a new process with ONEDNN_MAX_CPU_ISA set, which oneDNN reads once. The times are
    those of its log. If the processor lacks a level, the best one below it is used, as the
    kernel's name shows. A format for which oneDNN has no kernel at a level is missing.

    Args:
        levels: of `LEVELS`; "DEFAULT" for all that the processor has.
        size: rows and columns of the matrices.
        repeats: products in each format; the first quarter is not counted.

    Returns:
        tuple: one MatmulRate for each level and format.

    Raises:
        ValueError: if a level is unknown or a count below 1.
        RuntimeError: if a process failed, with its last lines.
    """
    require_count(size, "size")
    require_count(repeats, "repeats")
    for level in levels:
        require_known(level, LEVELS, "levels")
    found, machine = [], describe()
    for level in levels:
        environment = {
            "ONEDNN_MAX_CPU_ISA": level,
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "TF_NUM_INTRAOP_THREADS": str(machine.usable_cores),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        wide = machine.has("bf16") and level in _WITH_BF16
        formats = ("fp32", "bf16", "int8") if wide else ("fp32", "int8")
        call = f"vnni.multiply({formats}, {size}, {repeats})"
        program = f"from dlguide.machine import vnni; {call}"
        found += read_rates(onednn.run_verbose(program, _LIMIT_S, environment), level, size)
    return tuple(found)


def read_rates(log: onednn.VerboseLog, level: str, size: int) -> list[MatmulRate]:
    """Return the rates in oneDNN's verbose log of square matrix products."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for primitive in log.primitives:
        sources = [each.dtype for each in primitive.tensors if each.role.startswith("src")]
        product = primitive.kind in ("matmul", "inner_product", "gemm_api")
        if product and sources[:1] and sources[0] in _TYPES:
            key = _TYPES[sources[0]], primitive.implementation or primitive.kind
            seconds.setdefault(key, []).append(primitive.seconds)
    best: dict[str, MatmulRate] = {}
    for (format, kernel), times in sorted(seconds.items(), key=lambda each: len(each[1])):
        counted = times[len(times) // 4 :]
        best[format] = MatmulRate(level, format, kernel, 2 * size**3 / median(counted))
    return [best[format] for format in ("fp32", "bf16", "int8") if format in best]


def measure_onnxruntime(size: int = 1024, repeats: int = 15) -> dict[str, float]:
    """Measure onnxruntime's products of square matrices in fp32 and int8, in turns.

    The best time of each counts: it is what the processor can do without other programs.

    Args:
        size: rows and columns.
        repeats: products that count (count).

    Returns:
        dict: "fp32" and "int8" -> multiplications and additions per second (1/s).

    Raises:
        ValueError: if a count is below 1.
    """
    require_count(size, "size")
    require_count(repeats, "repeats")
    random = np.random.default_rng(0)
    wide = random.random((size, size), "float32")
    weights = random.integers(-127, 128, (size, size)).astype("int8")
    nets = {
        "fp32": (int8.matmul_session(weights.astype("float32")), wide),
        "int8": (int8.matmul_session(weights), (255 * wide).astype("uint8")),
    }
    best = dict.fromkeys(nets, float("inf"))
    for _ in range(repeats):
        for name, (net, inputs) in nets.items():
            once = measure.timing(lambda n=net, x=inputs: n.run(None, {"a": x}), 1, warmup=1)
            best[name] = min(best[name], *once.seconds)
    return {name: 2 * size**3 / seconds for name, seconds in best.items()}


@dataclass(frozen=True)
class VnniEvidence:
    """Whether VNNI was used, and by what evidence.

    Args:
        flag: whether the processor has it.
        kernels: names of the int8 kernels that oneDNN ran with all instructions allowed.
        float32_flops_per_s: best fp32 rate measured (1/s).
        int8_flops_per_s: onnxruntime's best int8 rate (1/s).
        most_without: highest int8 rate possible without VNNI (1/s).
        used_by_onednn: whether a kernel's name shows it; None if the names do not show it.
        used_by_onnxruntime: whether its rate is above `most_without`; False is no proof that it
            was not used.
    """

    flag: bool
    kernels: tuple[str, ...]
    float32_flops_per_s: float
    int8_flops_per_s: float
    most_without: float
    used_by_onednn: bool | None
    used_by_onnxruntime: bool

    def summary(self) -> str:
        """Return the evidence as lines of text."""
        has = "has" if self.flag else "does not have"
        lines = [f"flag: this processor {has} 8-bit products with 32-bit sums (VNNI)"]
        names = {True: "VNNI is in its name", False: "VNNI is not in its name"}
        shown = names.get(self.used_by_onednn, "its name does not show it")
        lines.append(f"oneDNN: {', '.join(self.kernels) or 'no int8 kernel'}: {shown}")
        ratio = self.int8_flops_per_s / self.float32_flops_per_s
        most = self.most_without / self.float32_flops_per_s
        verdict = "VNNI was used" if self.used_by_onnxruntime else "no proof that VNNI was used"
        if not self.flag:
            verdict = "there is no VNNI to use"
        lines.append(
            f"onnxruntime: int8 runs at {ratio:.2f} times the best fp32 rate; without VNNI at "
            f"most {most:.2f}: {verdict}"
        )
        return "\n".join(lines)


def vnni_evidence(
    measured: Sequence[MatmulRate] | None = None, size: int = 1024, repeats: int = 15
) -> VnniEvidence:
    """Find out whether VNNI was used by oneDNN and by onnxruntime.

    Without VNNI, 64 products of 8 bits take two multiplying instructions and an addition, and 64
    in fp32 take four: at most 4/3 of the fp32 rate, or 2 times it if additions run beside
    (see `number_formats.peak_ratio`). So a rate above both 2 times the best fp32 rate of either
    library and the best that oneDNN reached with AVX512_CORE (if measured) proves VNNI. A lower
    one proves nothing.

    Args:
        measured: from `measure_onednn`, with "DEFAULT" among its levels; None measures.
        size: rows and columns of the matrices.
        repeats: products that count (count).

    Returns:
        VnniEvidence: what the flags, the kernels' names and the rates show.
    """
    measured = measure_onednn(("DEFAULT",), size) if measured is None else measured
    of_onnxruntime = measure_onnxruntime(size, repeats)
    kernels = {r.kernel for r in measured if (r.level, r.format) == ("DEFAULT", "int8")}
    wide = [r.flops_per_s for r in measured if r.format == "fp32"] + [of_onnxruntime["fp32"]]
    older = [
        r.flops_per_s for r in measured if r.format == "int8" and r.level in ("AVX2", "AVX512_CORE")
    ]
    ratio = float(peak_ratio("int8 with AVX512BW", additions_beside=True))
    most = max([ratio * max(wide), *older])
    flag = simd.has_vnni(describe().simd)
    return VnniEvidence(
        flag,
        tuple(sorted(kernels)),
        max(wide),
        of_onnxruntime["int8"],
        most,
        _named_vnni(kernels),
        flag and of_onnxruntime["int8"] > most,
    )


def _named_vnni(kernels: set[str]) -> bool | None:
    """Whether kernels' names show VNNI; newer levels include it without naming it."""
    text = " ".join(kernels)
    if any(name in text for name in ("vnni", "avx512_core_bf16", "avx512_core_fp16", "amx")):
        return True
    return None if not kernels or ":jit" in text or "ref" in text else False
