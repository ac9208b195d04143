"""How many products per second the vector units of one core can do, by instruction.

A loop of C multiplies numbers that stay in registers: no memory, no conversion. It is no strict
bound: other kernels reach a few percent more. Integer products without VNNI take
three instructions, with it one (`dlcourse.number_formats.INSTRUCTIONS`).
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from pathlib import Path
from time import perf_counter

from dlguide import commands
from dlguide.machine import Machine

# Each needs flags of the processor and does one statement on 12 sums in turn; %0 is a sum.
_OLD = "vpmaddubsw %2, %3, %1\\n\\tvpmaddwd %1, %4, %1\\n\\tvpaddd %1, %0, %0"
LOOPS = {
    "fp32": "vfmadd231ps %2, %3, %0",
    "int8 with AVX512BW": _OLD,
    "int8 with VNNI": "{vex}vpdpbusd %2, %3, %0",
}
_SUMS, _ROUNDS = range(12), 2000
_FUNCTION = """
__attribute__((target("{target}"))) void loop{number}(long rounds)
{{
    {type} a = {zero}, b = a, c = a, {sums};
    for (long i = 0; i < rounds; i++) {{
{body}
    }}
}}
"""


def measure(machine: Machine, turns: int = 200) -> tuple[dict[str, list[float]], str]:
    """Measure each loop on one core, in turns of about 0.1 ms.

    Returns:
        tuple: by name of `LOOPS` the operations per second of each turn, a product and a sum
        counted as two; and in words what cannot be measured here, "" for nothing.
    """
    flags = set(machine.simd)
    wide = {"avx512f", "avx512bw"} <= flags
    if not wide and not {"avx2", "fma"} <= flags:
        return {}, "this processor has neither AVX-512 nor AVX2"
    kinds = [name for name in LOOPS if "VNNI" not in name or _has_vnni(flags, wide)]
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return {}, "there is no C compiler (cc, gcc or clang) on PATH"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "loops.c", Path(folder) / "loops.so"
        source.write_text(_source(kinds, wide))
        built = commands.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], 60.0)
        if not built.ok:
            return {}, f"{compiler} does not build the loops ({built.tail(1)})"
        loaded = ctypes.CDLL(str(library))
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(turns):
        for number, name in enumerate(kinds):
            begin = perf_counter()
            loaded[f"loop{number}"](ctypes.c_long(_ROUNDS))
            seconds = perf_counter() - begin
            products = (64 if wide else 32) // (4 if name == "fp32" else 1)
            found[name].append(2 * products * len(_SUMS) * _ROUNDS / seconds)
    return found, "" if len(kinds) == len(LOOPS) else "this processor has no VNNI"


def _has_vnni(flags: set[str], wide: bool) -> bool:
    return ("avx512_vnni" if wide else "avx_vnni") in flags


def _source(kinds: list[str], wide: bool) -> str:
    """Write the loops in C, for registers of 512 or of 256 bits."""
    vector = "__m512i" if wide else "__m256i"
    zero = "_mm512_setzero_si512()" if wide else "_mm256_setzero_si256()"
    text = "#include <immintrin.h>\n"
    for number, name in enumerate(kinds):
        code = LOOPS[name].replace("{vex}", "" if wide else "%{vex%} ")
        ends = ' : "+v"(s#), "=&v"(t) : "v"(a), "v"(b), "v"(c)'
        step = f'{{ {vector} t; __asm__ volatile("{code}"{ends}); }}'
        text += _FUNCTION.format(
            target="avx512f,avx512bw" if wide else "avx2,fma",
            number=number,
            type=vector,
            zero=zero,
            sums=", ".join(f"s{k} = a" for k in _SUMS),
            body="\n".join(step.replace("#", str(k)) for k in _SUMS),
        )
    return text
