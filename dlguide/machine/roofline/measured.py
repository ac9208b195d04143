"""Measure the roof: peak operations in three number formats, and the bandwidth of memory.

Each part runs in a process of its own, so that neither TensorFlow nor its threads come into the
process that asks; the libraries are well kept (TensorFlow with oneDNN, onnxruntime), the sizes
are those at which they are fastest. A format without an instruction of its own has no peak.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlguide import commands
from dlguide.errors import require_count, require_positive
from dlguide.machine.describe import Machine, describe
from dlguide.machine.topology import last_level_cache_bytes

# What each part measures, by the program `kernels` runs for it.
_PARTS = {"memory": ("memory",), "floats": ("float32", "bfloat16"), "integers": ("int8",)}
_LOADING_S = 60.0  # of libraries, on a busy machine
_ARRAY_BYTES, _LARGEST_ARRAY_BYTES = 2**27, 2**31


@dataclass(frozen=True)
class Roof:
    """What this machine can do at most, as measured with the threads that may run.

    Args:
        processor: model of the processor.
        threads: threads that computed, one a physical core (count).
        flops_per_s: highest rate by number format: "float32", "bfloat16", "int8"; those that
            the machine has an instruction for.
        bytes_per_s: highest bandwidth of memory, bytes as STREAM counts them.
        median_per_s: the middle of all repeats, by number format and "memory": the highest is
            the roof, the distance to the middle says how quiet the machine was.
        how: by number format and "memory", how it was measured.
        missing: by number format, why there is no figure.
    """

    processor: str
    threads: int
    flops_per_s: dict[str, float] = field(hash=False)
    bytes_per_s: float
    median_per_s: dict[str, float] = field(hash=False)
    how: dict[str, str] = field(hash=False)
    missing: dict[str, str] = field(hash=False)

    def ridge(self, dtype: str = "float32") -> float:
        """Say at which intensity the slope meets the peak.

        Args:
            dtype: a key of `flops_per_s`.

        Returns:
            float: operations for each byte (flop/byte); below it, memory limits.
        """
        return self.flops_per_s[dtype] / self.bytes_per_s

    def as_dict(self) -> dict[str, Any]:
        """Give plain numbers and texts, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Roof:
        """Read back what `as_dict` wrote, also after a journey through JSON."""
        return cls(**plain)

    def __str__(self) -> str:
        lines = [f"{self.processor}, {self.threads} threads"]
        for dtype, rate in self.flops_per_s.items():
            middle = self.median_per_s[dtype] / rate
            lines.append(f"  {dtype:9} {rate:9.3g} flop/s (median {middle:.0%}); {self.how[dtype]}")
        middle = self.median_per_s["memory"] / self.bytes_per_s
        told = f"{self.bytes_per_s:9.3g} bytes/s (median {middle:.0%}); {self.how['memory']}"
        lines.append(f"  {'memory':9} {told}")
        lines += [f"  {dtype:9} no peak: {why}" for dtype, why in self.missing.items()]
        return "\n".join(lines)


def measure(seconds: float = 8.0, threads: int | None = None) -> Roof:
    """Measure peaks and memory bandwidth with the cores this process may use.

    float32 and bfloat16: products of square matrices by TensorFlow (oneDNN); int8: products of
    8-bit integers summed in 32 bits by onnxruntime; memory: STREAM's Copy, Add and a sum over
    arrays much larger than the caches. The roof is the *highest* rate of all repeats, as STREAM
    does it: whatever disturbs makes it lower, nothing makes it higher. Takes about 15 s on top,
    for loading.

    Args:
        seconds: how long to measure in all (s).
        threads: threads, at most one a physical core this process may use; None takes all.

    Returns:
        Roof: rates, with how each was measured and what this machine lacks.

    Raises:
        ValueError: when `seconds` is not positive, or `threads` is more than there are cores.
        RuntimeError: when memory or float32 could not be measured; the text holds the reason.
    """
    budget_s = require_positive(seconds, "seconds")
    machine = describe()
    cpus = _one_cpu_a_core(machine, threads)
    job = {
        "cpus": cpus,
        "seconds": budget_s / 4,
        "array_bytes": _array_bytes(machine, cpus),
        "bfloat16": machine.has("bf16"),
    }
    found: dict[str, dict[str, Any]] = {}
    missing = {}
    if not machine.has("bf16"):
        missing["bfloat16"] = "this processor multiplies no bfloat16; emulated it would be slower"
    for part, names in _PARTS.items():
        answer, trouble = _ask(part, job, budget_s)
        found |= answer
        for name in names:
            if name not in answer and name not in missing:
                missing[name] = trouble or "it was not measured"
    for name in ("memory", "float32"):
        if name not in found:
            raise RuntimeError(f"`roofline.measure` found no {name}: {missing[name]}")
    if "int8" in found:
        found["int8"]["how"] += _integers_by(machine)
    return Roof(
        processor=machine.processor,
        threads=len(cpus),
        flops_per_s={name: each["best"] for name, each in found.items() if name != "memory"},
        bytes_per_s=found["memory"]["best"],
        median_per_s={name: each["median"] for name, each in found.items()},
        how={name: each["how"] for name, each in found.items()},
        missing=missing,
    )


def _one_cpu_a_core(machine: Machine, threads: int | None) -> list[int]:
    first = {}
    for core in machine.cores:
        first.setdefault(core.core, core.cpu)
    cpus = list(first.values())[: machine.usable_cores]
    if threads is None:
        return cpus
    wanted = require_count(threads, "threads")
    if wanted > len(cpus):
        raise ValueError(
            f"`threads` must be at most the {len(cpus)} cores this process may use, got {wanted}."
        )
    return cpus[:wanted]


def _array_bytes(machine: Machine, cpus: list[int]) -> int:
    """At least four times the caches, as STREAM asks, within a sixteenth of the memory."""
    caches = last_level_cache_bytes(Path("/sys"), cpus)
    limit = machine.memory_bytes // 16 or _ARRAY_BYTES
    return max(2**20, min(max(4 * caches, _ARRAY_BYTES), limit, _LARGEST_ARRAY_BYTES))


def _ask(part: str, job: dict[str, Any], budget_s: float) -> tuple[dict[str, Any], str]:
    """Run one part in a process of its own: what it found, and why something is missing."""
    threads = str(len(job["cpus"]))
    env = commands.without_mpi() | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # the roof of the processor is meant
    }
    for limiter in ("ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_VERBOSE"):
        env.pop(limiter, None)
    program = [
        sys.executable,
        "-P",
        "-m",
        "dlguide.machine.roofline.kernels",
        part,
        json.dumps(job),
    ]
    done = commands.run(program, _LOADING_S + 4 * budget_s, env)
    for line in reversed(done.output.splitlines()):
        if line.startswith("ROOF "):
            return json.loads(line[5:]), ""
    status = "no answer in time" if done.status is None else f"exit status {done.status}"
    return {}, f"{status}: {done.tail(2)}"


def _integers_by(machine: Machine) -> str:
    if machine.has("vnni"):
        return "; this processor has VNNI"
    if machine.has("dot"):
        return "; this processor has Arm's dot product"
    return "; without VNNI, by several instructions for each product with its sum"
