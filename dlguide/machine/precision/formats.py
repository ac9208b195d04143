"""Number formats of deep learning: their range, their spacing, their bits, and rounding to them.

A floating-point number of e exponent bits and f fraction bits is

    (-1)^sign * 2^(exponent - bias) * (1 + fraction / 2^f),   bias = 2^(e - 1) - 1

and, where the exponent bits are all 0, subnormal: (-1)^sign * 2^(1 - bias) * fraction / 2^f. The
gaps between neighbours are equal in the subnormal range, and double with each power of two above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_known

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class NumberFormat:
    """One number format; all figures follow from its bits.

    Args:
        name: as papers write it, "bf16".
        dtype: NumPy's or ml_dtypes' name; "" for a format that only arithmetic units have.
        exponent_bits: bits of the exponent; 0 for integers (count).
        fraction_bits: stored bits of the fraction; for integers those beside the sign (count).
        infinite: whether the largest exponent means infinity and NaN, as IEEE 754 has it.
        use: what it is used for.
    """

    name: str
    dtype: str
    exponent_bits: int
    fraction_bits: int
    infinite: bool
    use: str

    @property
    def bits(self) -> int:
        """Bits with a meaning, the sign included (count)."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def nbytes(self) -> int:
        """Memory of one number (bytes); tf32 lies in memory as fp32."""
        return 1 << math.ceil(math.log2(self.bits / 8))

    @property
    def floating(self) -> bool:
        """Whether it has an exponent."""
        return self.exponent_bits > 0

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if not self.floating:
            return float(2**self.fraction_bits - 1)
        top = 2**self.exponent_bits - 1 - self._bias
        if self.infinite:
            return (2.0 - 2.0**-self.fraction_bits) * 2.0 ** (top - 1)
        # fp8 e4m3 gives up infinity: only all bits set is NaN
        return (2.0 - 2.0 * 2.0**-self.fraction_bits) * 2.0**top

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all its digits; 1 for integers."""
        return 2.0 ** (1 - self._bias) if self.floating else 1.0

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number of all, of one significant bit; 1 for integers."""
        return self.smallest_normal * 2.0**-self.fraction_bits if self.floating else 1.0

    @property
    def spacing(self) -> float:
        """The distance from 1 to the next number; 1 for integers."""
        return 2.0**-self.fraction_bits if self.floating else 1.0

    @property
    def digits(self) -> float:
        """Decimal digits that a number near 1 carries: (fraction bits + 1) * log10(2)."""
        return (self.fraction_bits + self.floating) * math.log10(2)

    @property
    def decades(self) -> float:
        """Powers of ten from the smallest subnormal to the largest number (count)."""
        return math.log10(self.largest) - math.log10(self.smallest_subnormal)

    @property
    def _bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1


FORMATS = {
    each.name: each
    for each in (
        NumberFormat("fp64", "float64", 11, 52, True, "science; sums that must be exact"),
        NumberFormat("fp32", "float32", 8, 23, True, "weights, optimizers, sums"),
        NumberFormat("tf32", "", 8, 10, True, "products inside GPUs since 2020"),
        NumberFormat("bf16", "bfloat16", 8, 7, True, "training without loss scaling"),
        NumberFormat("fp16", "float16", 5, 10, True, "training with loss scaling; inference"),
        NumberFormat("fp8_e5m2", "float8_e5m2", 5, 2, True, "gradients on GPUs since 2022"),
        NumberFormat("fp8_e4m3", "float8_e4m3fn", 4, 3, False, "weights on GPUs since 2022"),
        NumberFormat("int8", "int8", 0, 7, False, "inference, with a scale beside it"),
    )
}


@dataclass(frozen=True)
class Bits:
    """The bits of one number, as texts of 0 and 1.

    Args:
        format: name of the format.
        sign: one bit.
        exponent: "" for integers.
        fraction: for integers the other bits of the two's complement.
        value: the number that these bits are.
        kind: "normal", "subnormal", "zero", "infinite", "NaN" or "integer".
    """

    format: str
    sign: str
    exponent: str
    fraction: str
    value: float
    kind: str


def named(name: str) -> NumberFormat:
    """Look a number format up.

    Args:
        name: one of `FORMATS`.

    Returns:
        NumberFormat: its figures.

    Raises:
        ValueError: when there is no such format.
    """
    return FORMATS[require_known(name, FORMATS, "format")]


def round_to(values: ArrayLike, format: str) -> np.ndarray:
    """Round numbers to what a format can hold, to the nearest, ties to even.

    What is too large becomes infinite in formats that have infinity and NaN in fp8 e4m3; integers
    stop at their ends (saturate), as quantisation does it. Subnormal results are kept; see
    `keeps_subnormals` for what a processor's units make of them.

    Args:
        values: numbers, of any shape.
        format: one of `FORMATS`.

    Returns:
        numpy.ndarray: float64, the numbers after rounding, of the same shape.

    Raises:
        ValueError: when there is no such format.

    >>> round_to([2049, 1e-8, 70000], "fp16").tolist()
    [2048.0, 0.0, inf]
    """
    chosen = named(format)
    exact = np.asarray(values, "float64")
    if not chosen.floating:
        low = -(2.0**chosen.fraction_bits)
        return np.clip(np.rint(exact), low, chosen.largest)
    if chosen.dtype:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return exact.astype(_dtype(chosen)).astype("float64")
    step = np.frexp(exact)[1] - 1
    step = np.maximum(step, 1 - chosen._bias) - chosen.fraction_bits
    rounded = np.ldexp(np.rint(np.ldexp(exact, -step)), step)
    over = np.abs(rounded) > chosen.largest
    return np.where(over, np.copysign(np.inf, exact), rounded)


def bits(value: float, format: str) -> Bits:
    """Show the bits of a number in a format, after rounding to it.

    Args:
        value: the number.
        format: one of `FORMATS`.

    Returns:
        Bits: sign, exponent and fraction, and what they stand for.

    Raises:
        ValueError: when there is no such format, or an integer is asked of an infinity.

    >>> bits(1.0, "bf16").exponent, bits(1.0, "bf16").fraction
    ('01111111', '0000000')
    """
    chosen = named(format)
    if not chosen.floating:
        require(math.isfinite(value), "value", f"be finite in {format}", value)
    held = float(round_to(value, format))
    if not chosen.floating:
        text = np.binary_repr(int(held), chosen.bits)
        return Bits(format, text[0], "", text[1:], held, "integer")
    if chosen.dtype:
        raw = int.from_bytes(np.array(held, _dtype(chosen)).tobytes()[::-1], "big")
        text = f"{raw:0{chosen.bits}b}"
    else:  # tf32 is fp32 without its last 13 bits
        raw = int.from_bytes(np.array(held, "float32").tobytes()[::-1], "big")
        text = f"{raw:032b}"[: chosen.bits]
    exponent, fraction = text[1 : 1 + chosen.exponent_bits], text[1 + chosen.exponent_bits :]
    if math.isnan(held):
        kind = "NaN"
    elif math.isinf(held):
        kind = "infinite"
    elif held == 0:
        kind = "zero"
    else:
        kind = "subnormal" if "1" not in exponent else "normal"
    return Bits(format, text[0], exponent, fraction, held, kind)


def spacing_at(values: ArrayLike, format: str) -> np.ndarray:
    """Give the distance to the next number of a format, at these numbers.

    Args:
        values: numbers, of any shape.
        format: one of `FORMATS`.

    Returns:
        numpy.ndarray: distances, of the same shape; NaN beyond the largest number.

    Raises:
        ValueError: when there is no such format.

    >>> spacing_at([1.0, 2048.0], "fp16").tolist()
    [0.0009765625, 2.0]
    """
    chosen = named(format)
    size = np.abs(np.asarray(values, "float64"))
    if chosen.floating:
        exponent = np.maximum(np.frexp(size)[1] - 1, 1 - chosen._bias)
        step = np.ldexp(1.0, exponent - chosen.fraction_bits)
    else:
        step = np.ones_like(size)
    return np.where(size <= chosen.largest, step, np.nan)


def keeps_subnormals(format: str = "fp32") -> bool:
    """Try whether this process' arithmetic keeps subnormal results, or makes them 0.

    Processors can be told to flush them to zero, which is quicker; TensorFlow tells them so in
    its threads, NumPy does not. So it depends on where the numbers are computed.

    Args:
        format: one of `FORMATS` that NumPy can compute with.

    Returns:
        bool: whether half of the smallest normal number is above 0 here.

    Raises:
        ValueError: when the format has no subnormal numbers or no arithmetic in NumPy.
    """
    chosen = named(format)
    possible = chosen.floating and bool(chosen.dtype)
    require(possible, "format", "be a floating-point format that NumPy computes with", format)
    dtype = _dtype(chosen)
    # read from an array: a constant would be computed when the program is compiled
    half = np.array([chosen.smallest_normal], dtype) * np.array([0.5], dtype)
    return bool(half.astype("float64")[0] > 0)


def _dtype(chosen: NumberFormat) -> Any:
    import ml_dtypes

    own = chosen.dtype in ("float64", "float32", "float16")
    return np.dtype(chosen.dtype if own else getattr(ml_dtypes, chosen.dtype))
