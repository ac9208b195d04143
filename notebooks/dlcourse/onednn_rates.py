"""Rates of oneDNN's matrix products by number format and by the instructions that it may use.

A processor's flag shows what it could do. That a program used it shows in two ways: the name of
the kernel in oneDNN's log, and a rate above what older instructions can reach.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlcourse.onednn import VerboseLog, parse_log
from dlguide import commands
from dlguide.errors import require_count, require_known
from dlguide.machine import describe, onednn_state

# oneDNN's names, the oldest first; "DEFAULT" allows all that the processor has
LEVELS = ("AVX2", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "DEFAULT")
# oneDNN's name of the activations' type -> ours
_TYPES = {"f32": "fp32", "bf16": "bf16", "u8": "int8", "s8": "int8"}
_LIMIT_S = 300.0
_DONE = "== done\n"
# below these TensorFlow's bf16 products crash when the processor has more than oneDNN may use
_WITH_BF16 = ("AVX512_CORE_BF16", "DEFAULT")
_WITHOUT_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")


@dataclass(frozen=True)
class MatmulRate:
    """Rate of one kernel of oneDNN for products of square matrices.

    Args:
        level: newest instructions that were allowed, one of `LEVELS`.
        format: of the factors: "fp32", "bf16" or "int8".
        turns: multiplications and additions per second, the best product of each turn (1/s).
    """

    level: str
    format: str
    kernel: str
    turns: tuple[float, ...]

    @property
    def flops_per_s(self) -> float:
        """The best rate of all turns (1/s): what the kernel can do without other programs."""
        return max(self.turns)


def bf16_missing() -> str:
    """Return why TensorFlow cannot multiply bf16 in this process; an empty text if it can.

    On every processor with AVX-512 TensorFlow leaves such products to oneDNN. It crashes if
    oneDNN may use older instructions only.
    """
    level = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if level in _WITHOUT_AVX512 and describe().has("avx512") and onednn_state().on:
        return f"ONEDNN_MAX_CPU_ISA={level}: TensorFlow's products of bf16 would crash here"
    return ""


def serve(formats: Sequence[str], size: int, repeats: int) -> None:
    """Multiply square matrices and add a bias with TensorFlow, in the processes of `measure`.

    Each line of the standard input is the name of a turn; it starts a part of oneDNN's log. Skips
    a format, with a message, if TensorFlow has no product in it on this machine.
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

    jobs = []
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
        jobs.append((product, a, b))
    for turn in sys.stdin:
        print("==", turn, end="", flush=True)
        for product, a, b in jobs:
            for _ in range(repeats):
                product(a, b)
        print(_DONE, end="", flush=True)


def measure(
    levels: Sequence[str] = LEVELS, size: int = 1024, repeats: int = 4, turns: int = 5
) -> tuple[MatmulRate, ...]:
    """Measure oneDNN's matrix products, with newer and newer instructions allowed.

    Each level is a new process with ONEDNN_MAX_CPU_ISA set, which oneDNN reads once. The levels
    take turns, so that a slow moment of the machine meets all of them. The times are those of
    oneDNN's log. If the processor lacks a level, the best one below it is used, as the kernel's
    name shows. A format for which oneDNN has no kernel at a level is missing.

    Args:
        levels: of `LEVELS`; "DEFAULT" for all that the processor has.
        size: rows and columns of the matrices.
        repeats: products in each format and turn (count).
        turns: of each level, after one that does not count (count).

    Returns:
        tuple: one MatmulRate for each level and format.

    Raises:
        ValueError: if a level is unknown or a count below 1.
        RuntimeError: if a process failed, with its last lines.
    """
    for name, value in (("size", size), ("repeats", repeats), ("turns", turns)):
        require_count(value, name)
    for level in levels:
        require_known(level, LEVELS, "levels")
    logs = dict.fromkeys(levels, "")
    with ExitStack() as stack:
        running = {level: _Products(stack, level, size, repeats) for level in logs}
        for each in running.values():
            each.ask("warm-up")
        for each in running.values():
            each.answer()
        for turn in range(turns):
            for level, each in running.items():
                each.ask(f"turn {turn}")
                logs[level] += each.answer()
    found = [read(parse_log(text), level, size) for level, text in logs.items()]
    return tuple(rate for rates in found for rate in rates)


class _Products:
    """A process that multiplies at one level, one turn for each request."""

    def __init__(self, stack: ExitStack, level: str, size: int, repeats: int) -> None:
        machine = describe()
        wide = machine.has("bf16") and level in _WITH_BF16
        formats = ("fp32", "bf16", "int8") if wide else ("fp32", "int8")
        environment = commands.without_mpi() | {
            "ONEDNN_VERBOSE": "profile_exec",
            "ONEDNN_MAX_CPU_ISA": level,
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "TF_NUM_INTRAOP_THREADS": str(machine.usable_cores),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        program = f"from dlcourse import onednn_rates as r; r.serve({formats}, {size}, {repeats})"
        command = [sys.executable, "-u", "-c", program]
        self._errors = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process: Any = stack.enter_context(
            subprocess.Popen(command, env=environment, text=True, **pipes)
        )
        stack.callback(self._process.kill)
        timer = threading.Timer(_LIMIT_S, self._process.kill)
        timer.daemon = True
        timer.start()
        stack.callback(timer.cancel)

    def ask(self, turn: str) -> None:
        """Start a turn without waiting."""
        try:
            self._process.stdin.write(f"{turn}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(self._ended()) from error

    def answer(self) -> str:
        """Wait for the end of the turn; return its part of the log."""
        lines: list[str] = []
        for line in self._process.stdout:
            if line == _DONE:
                return "".join(lines)
            lines.append(line)
        raise RuntimeError(self._ended())

    def _ended(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").splitlines()[-10:]
        return "\n".join([f"A process that multiplies ended with {status}.", *last])


def read(log: VerboseLog, level: str, size: int) -> list[MatmulRate]:
    """Return the rates in oneDNN's verbose log of square matrix products, one for each part."""
    seconds: dict[tuple[str, str], dict[str, float]] = {}
    for primitive in log.primitives:
        sources = [each.dtype for each in primitive.tensors if each.role.startswith("src")]
        product = primitive.kind in ("matmul", "inner_product", "gemm_api")
        if product and sources[:1] and sources[0] in _TYPES:
            key = _TYPES[sources[0]], primitive.implementation or primitive.kind
            turns = seconds.setdefault(key, {})
            turns[primitive.part] = min(primitive.seconds, turns.get(primitive.part, np.inf))
    # the slowest kernel of a format is the product: others prepare its factors
    found: dict[str, MatmulRate] = {}
    for (format, kernel), turns in sorted(seconds.items(), key=lambda each: sum(each[1].values())):
        rates = tuple(2 * size**3 / best for best in turns.values())
        found[format] = MatmulRate(level, format, kernel, rates)
    return [found[format] for format in ("fp32", "bf16", "int8") if format in found]
