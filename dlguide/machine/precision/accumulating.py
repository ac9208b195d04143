"""Sums of products in too narrow a type, and what 8-bit instructions do about it.

Every matrix multiplication is a sum of products. The product of two numbers of b bits needs 2 b
bits, and a sum of k of them log2(k) bits more. An 8-bit unsigned activation times an 8-bit signed
weight, 255 * -128 = -32640, just fits into 16 bits; two of them do not.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require, require_count, require_known
from dlguide.machine.precision.formats import round_to

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_FLOATS = ("fp16", "bf16", "fp32", "fp64")
_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
ACCUMULATORS = (*_FLOATS, *_INTEGERS)
# What a processor executes for 64 products of u8 and s8 added to 16 sums, and for 16 in fp32.
INSTRUCTIONS = {
    "fp32": ("vfmadd231ps",),
    "int8 with AVX512BW": ("vpmaddubsw", "vpmaddwd", "vpaddd"),
    "int8 with VNNI": ("vpdpbusd",),
    "int16 with AVX512BW": ("vpmaddwd", "vpaddd"),
    "int16 with VNNI": ("vpdpwssd",),
}


def running_sum(terms: ArrayLike, accumulator: str, saturate: bool = False) -> np.ndarray:
    """Add numbers one after the other in a given type, and keep every sum on the way.

    A floating-point sum is rounded after each addition, so it stops growing when a term is less
    than half the spacing at the sum. An integer sum wraps around at the ends of its range, as
    ordinary instructions do, or stays there.

    Args:
        terms: numbers to add, shape (k,); integers for integer accumulators.
        accumulator: one of `ACCUMULATORS`.
        saturate: integers stay at the end of their range in place of wrapping around.

    Returns:
        numpy.ndarray: float64 or int64, the k sums on the way, shape (k,).

    Raises:
        ValueError: when the type is unknown or the terms are not of one dimension.

    >>> running_sum([30000, 30000, 30000], "int16").tolist()
    [30000, -5536, 24464]
    >>> float(running_sum(np.ones(3000), "fp16")[-1])
    2048.0
    """
    require_known(accumulator, ACCUMULATORS, "accumulator")
    array = np.asarray(terms)
    require(array.ndim == 1, "terms", "have one dimension", array.shape)
    if accumulator in _FLOATS:
        total, sums = 0.0, np.empty(len(array))
        for position, term in enumerate(round_to(array, accumulator)):
            total = float(round_to(total + term, accumulator))
            sums[position] = total
        return sums
    require(array.dtype.kind in "iu", "terms", f"be integers for {accumulator}", array.dtype.name)
    half = 1 << (_INTEGERS[accumulator] - 1)
    exact, sums = 0, np.empty(len(array), "int64")
    for position, term in enumerate(array.tolist()):
        exact += term
        inside = min(max(exact, -half), half - 1)
        exact = inside if saturate else (exact + half) % (2 * half) - half
        sums[position] = exact
    return sums


def dot_in_pairs(activations: ArrayLike, weights: ArrayLike) -> int:
    """Multiply and add as vpmaddubsw, vpmaddwd and vpaddd do, without VNNI.

    vpmaddubsw multiplies unsigned by signed bytes and adds *pairs* of neighbours into 16 bits,
    where sums outside of -32768 ... 32767 stay at the end; the rest happens in 32 bits. VNNI's
    vpdpbusd adds four products into 32 bits at once and loses nothing.

    Args:
        activations: unsigned bytes, 0 to 255, shape (k,) with an even k.
        weights: signed bytes, -128 to 127, shape (k,).

    Returns:
        int: the sum as these instructions find it.

    Raises:
        ValueError: when the numbers are no bytes or k is odd.

    Source:
        Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, PMADDUBSW.

    >>> dot_in_pairs([255, 255], [127, 127]), 2 * 255 * 127
    (32767, 64770)
    """
    a, w = np.asarray(activations, "int64"), np.asarray(weights, "int64")
    require(a.shape == w.shape and a.ndim == 1, "weights", f"have shape {a.shape}", w.shape)
    require(len(a) % 2 == 0, "activations", "be an even number of bytes", len(a))
    require(bool(np.all((a >= 0) & (a <= 255))), "activations", "lie in 0 to 255", a.tolist())
    require(bool(np.all((w >= -128) & (w <= 127))), "weights", "lie in -128 to 127", w.tolist())
    pairs = (a * w).reshape(-1, 2).sum(axis=1)
    return int(np.clip(pairs, -32768, 32767).sum())


def safe_terms(accumulator_bits: int, weight_bits: int = 8, activation_bits: int = 8) -> int:
    """Count the products that a signed accumulator holds for certain.

    The largest product of an unsigned activation and a signed weight in size is
    (2^a - 1) * 2^(w - 1), and k of them fit when k times it is at most 2^(bits - 1) - 1.

    Args:
        accumulator_bits: width of the sum, sign included (count).
        weight_bits: width of the weights, sign included (count).
        activation_bits: width of the activations (count).

    Returns:
        int: terms (count); 0 when not even one is safe.

    Raises:
        ValueError: when a width is no whole number of at least 1.

    >>> safe_terms(16), safe_terms(16, weight_bits=7), safe_terms(32)
    (1, 2, 65793)
    """
    require_count(accumulator_bits, "accumulator_bits")
    require_count(weight_bits, "weight_bits")
    require_count(activation_bits, "activation_bits")
    largest = (2**activation_bits - 1) * 2 ** (weight_bits - 1)
    return (2 ** (accumulator_bits - 1) - 1) // largest


def peak_ratio(kind: str, additions_beside: bool = False) -> Fraction:
    """Say how many times the peak of fp32 a narrow type reaches, from its instructions.

    A vector of 512 bits holds 16 fp32, 32 int16 or 64 int8, so one step makes that many
    multiply-adds; a step takes as many instructions as `INSTRUCTIONS` lists, each issued as
    quickly as an fp32 multiply-add:

        ratio = (32 / bits) / instructions

    It is a peak at equal clock: loads, memory and conversions come on top. Intel's processors
    issue the additions through the units of the multiplications. Where additions have units of
    their own, as on AMD's, they take no time beside the multiplications, and only these count.

    Args:
        kind: one of `INSTRUCTIONS`.
        additions_beside: whether additions have units of their own.

    Returns:
        fractions.Fraction: the ratio.

    Raises:
        ValueError: when there is no such kind.

    Source:
        Deep Learning at Scale (workshop, 2019): 1.33 and 4 for int8, 2 for int16 with VNNI.

    >>> peak_ratio("int8 with AVX512BW"), peak_ratio("int8 with VNNI")
    (Fraction(4, 3), Fraction(4, 1))
    >>> peak_ratio("int8 with AVX512BW", additions_beside=True)
    Fraction(2, 1)
    """
    steps = INSTRUCTIONS[require_known(kind, INSTRUCTIONS, "kind")]
    counted = [name for name in steps if not (additions_beside and name == "vpaddd")]
    width = int(kind.split()[0].lstrip("intfp"))
    return Fraction(32, width) / len(counted)
