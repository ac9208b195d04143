"""Rounding to 4 bits of floating point, and scales that are powers of two.

Source: OCP Microscaling Formats (MX) Specification, version 1.0 (2023), sections 5.3 and 6.3.
"""

from __future__ import annotations

import numpy as np


def e2m1(values: np.ndarray) -> np.ndarray:
    """Round to 4 bits with two exponent bits and one fraction bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6.

    >>> e2m1(np.array([0.2, -1.3, 5.1])).tolist()
    [0.0, -1.5, 6.0]
    """
    import ml_dtypes

    return np.asarray(values).astype(ml_dtypes.float4_e2m1fn).astype("float32")


def power_of_two(scales: np.ndarray) -> np.ndarray:
    """The scale of MXFP4 for each block, from its largest value divided by 6.

    The specification takes the power of two below the largest value, divided by 4; a value above
    6 times that scale saturates.
    """
    return 2.0 ** (np.floor(np.log2(6 * scales)) - 2)
