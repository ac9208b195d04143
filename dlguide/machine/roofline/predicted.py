"""A peak from the data sheet's numbers: clock x cores x units x width."""

from __future__ import annotations

from dlguide.errors import require, require_count, require_positive

# Lanes take 32 bits. Products for each lane and instruction, by what VNNI and bf16 pairs do.
_PRODUCTS = {"float32": 1, "bfloat16": 2, "int8": 4}


def predict(
    cores: int, clock_hz: float, lane_bits: int, fma_units: int = 2, dtype: str = "float32"
) -> float:
    """Predict the peak of vector units.

        flop/s = cores * clock_hz * fma_units * (lane_bits / 32) * products * 2

    with 1 product a lane in float32, 2 in bfloat16 (dot product of pairs), 4 in int8 (VNNI), and
    2 because each product is also added. Leaves out matrix units such as AMX, and that the clock
    changes with the load.

    Args:
        cores: physical cores (count).
        clock_hz: cycles per second of a core that computes.
        lane_bits: width of one unit (bits): 128, 256 or 512. Zen 4 knows instructions of 512
            bits but its units have 256: they take two turns.
        fma_units: units of a core that multiply and add (count), mostly 2.
        dtype: "float32", "bfloat16" or "int8".

    Returns:
        float: operations per second.

    Raises:
        ValueError: when a number is not positive or the format is unknown.

    Source:
        PRACE guide 2019, Table 1, notes e and f: 28 cores at 1.7e9 with two units of 512 bits.

    >>> predict(28, 1.7e9, 512) / 1e12
    3.0464
    """
    width = require_count(lane_bits, "lane_bits")
    require(width % 32 == 0, "lane_bits", "be a multiple of 32", lane_bits)
    require(dtype in _PRODUCTS, "dtype", f"be one of {', '.join(sorted(_PRODUCTS))}", dtype)
    each = require_count(fma_units, "fma_units") * (width // 32) * _PRODUCTS[dtype] * 2
    return require_count(cores, "cores") * require_positive(clock_hz, "clock_hz") * each
