"""SIMD and matrix extensions: what a processor multiplies in one instruction.

Libraries choose their kernels by these. A matrix unit, or an instruction that adds four products
of small integers, makes the same net several times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlguide.errors import require_known


@dataclass(frozen=True)
class SimdExtension:
    """A family of instructions that matters for neural nets."""

    name: str
    title: str
    flags: tuple[str, ...]
    multiplies: str

    def found(self, flags: Iterable[str]) -> tuple[str, ...]:
        """Return those of its flags that a processor has."""
        return tuple(flag for flag in self.flags if flag in set(flags))


EXTENSIONS = (
    SimdExtension("avx2", "AVX2", ("avx2",), "8 float32 in a register of 256 bits"),
    SimdExtension("fma", "FMA", ("fma",), "a product and a sum in one instruction, a * b + c"),
    SimdExtension("avx512", "AVX-512", ("avx512f",), "16 float32 in a register of 512 bits"),
    SimdExtension(
        "vnni",
        "VNNI",
        ("avx512_vnni", "avx_vnni"),
        "4 products of 8-bit integers, added to a 32-bit sum, for each lane",
    ),
    SimdExtension(
        "dot",
        "Arm int8 dot product",
        ("asimddp", "i8mm", "svei8mm"),
        "4 products of 8-bit integers, added to a 32-bit sum, for each lane; i8mm: small matrices",
    ),
    SimdExtension(
        "bf16",
        "bf16",
        ("avx512_bf16", "amx_bf16", "bf16", "svebf16"),
        "2 products of bfloat16, added to a float32 sum, for each lane; AMX: whole tiles",
    ),
    SimdExtension(
        "fp16",
        "fp16",
        ("avx512_fp16", "amx_fp16", "asimdhp"),
        "float16, twice as many in a register as float32 (f16c only converts)",
    ),
    SimdExtension(
        "amx",
        "AMX",
        ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        "tiles of 16 rows of 64 bytes: a matrix product of int8, bfloat16 or float16",
    ),
    SimdExtension("neon", "NEON", ("asimd", "neon"), "4 float32 in a register of 128 bits (Arm)"),
    SimdExtension("sve", "SVE", ("sve", "sve2"), "registers of 128 to 2048 bits, as built (Arm)"),
)
_BY_NAME = {extension.name: extension for extension in EXTENSIONS}

# What the kernels of oneDNN choose by, in the names of /proc/cpuinfo (x86, then Arm).
FLAGS = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("amx_fp16", "neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16"),
    *("sve", "sve2", "svei8mm", "svebf16"),
)


def has(flags: Iterable[str], name: str) -> bool:
    """Return whether a processor with these flags has an extension.

    >>> has(("avx2", "fma", "avx_vnni"), "vnni")
    True
    """
    return bool(_BY_NAME[require_known(name, _BY_NAME, "name")].found(flags))


def has_vnni(flags: Iterable[str]) -> bool:
    """Return whether one instruction adds products of 8-bit integers to 32-bit sums."""
    flags = tuple(flags)
    return has(flags, "vnni") or has(flags, "dot")


def summary(flags: Iterable[str]) -> str:
    """List the extensions of a processor, with the flags and what they multiply.

    >>> print(summary(("avx2", "fma")))
    AVX2 (avx2): 8 float32 in a register of 256 bits
    FMA (fma): a product and a sum in one instruction, a * b + c
    not here: AVX-512, VNNI, Arm int8 dot product, bf16, fp16, AMX, NEON, SVE
    """
    flags = tuple(flags)
    there = [(each, each.found(flags)) for each in EXTENSIONS]
    lines = [f"{each.title} ({', '.join(by)}): {each.multiplies}" for each, by in there if by]
    lacking = ", ".join(each.title for each, by in there if not by)
    return "\n".join([*lines, f"not here: {lacking}"] if lacking else lines)
