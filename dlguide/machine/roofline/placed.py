"""Where a computation stands under the roof: limited by memory or by arithmetic."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dlguide.errors import require, require_known, require_positive
from dlguide.machine.roofline.measured import Roof


@dataclass(frozen=True)
class Placed:
    """A computation under the roof.

    Args:
        name: what it is, for labels.
        flops: operations, additions and multiplications counted each (count).
        nbytes: bytes that must move between memory and caches at least.
        dtype: number format whose peak is the roof.
        intensity: flops / nbytes (flop/byte).
        attainable_flops_per_s: the roof above it, min(peak, intensity * bandwidth).
        bound: "compute" or "memory".
        measured_flops_per_s: what it reached; None when nobody measured.
    """

    name: str
    flops: float
    nbytes: float
    dtype: str
    intensity: float
    attainable_flops_per_s: float
    bound: str
    measured_flops_per_s: float | None = None

    @property
    def seconds(self) -> float:
        """The shortest time that the roof allows (s)."""
        return self.flops / self.attainable_flops_per_s

    @property
    def share(self) -> float | None:
        """How much of the attainable speed was reached; None when nobody measured."""
        if self.measured_flops_per_s is None:
            return None
        return self.measured_flops_per_s / self.attainable_flops_per_s

    def as_dict(self) -> dict[str, Any]:
        """Give plain numbers and texts, ready for JSON."""
        return asdict(self)


def place(
    roof: Roof,
    name: str,
    flops: float,
    nbytes: float,
    dtype: str = "float32",
    seconds: float | None = None,
) -> Placed:
    """Place a computation under a roof.

        attainable = min(peak, flops / nbytes * bandwidth)

    Count only bytes that must come from or go to memory; what stays in a cache is free here, so
    a kernel whose data fit into a cache may stand above the slope. Leaves out latency, and that
    not all operations are products with sums.

    Args:
        roof: what `measure` found.
        name: what it is, for labels.
        flops: its operations (count).
        nbytes: its bytes (bytes).
        dtype: a number format of the roof: "float32", "bfloat16" or "int8".
        seconds: how long it took, to show how near it comes (s); None when nobody measured.

    Returns:
        Placed: intensity, attainable speed and what limits it.

    Raises:
        ValueError: when the roof has no peak for the format (with the reason), or a number is
            not positive.

    Source:
        Williams, Waterman and Patterson, Roofline, Communications of the ACM 52 (2009), 65-76.
    """
    require_known(dtype, [*roof.flops_per_s, *roof.missing], "dtype")
    why = roof.missing.get(dtype, "")
    require(dtype in roof.flops_per_s, "dtype", "have a peak on this machine", dtype, why)
    work, moved = require_positive(flops, "flops"), require_positive(nbytes, "nbytes")
    intensity, peak = work / moved, roof.flops_per_s[dtype]
    slope = intensity * roof.bytes_per_s
    bound = "memory" if slope < peak else "compute"
    reached = None if seconds is None else work / require_positive(seconds, "seconds")
    return Placed(name, work, moved, dtype, intensity, min(slope, peak), bound, reached)
