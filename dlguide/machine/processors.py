"""Catalogue of processors since 2013, from their data sheets, in SI units.

Peaks are those of dense matrix products with all units busy. If a vendor prints none, the row's
note says how the value was computed; what no public source confirms is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlguide import published
from dlguide.errors import require, require_count, require_known

# Columns of the table that hold the peak of a number format; the highest of them counts.
_RATES = {
    "float64": ("fp64_tflops",),
    "float32": ("fp32_tflops",),
    "float16": ("fp16_tensor_tflops", "fp16_tflops"),
    "bfloat16": ("bf16_tensor_tflops",),
    "float8": ("fp8_tensor_tflops",),
    "int8": ("int8_tops",),
}
# Training formats, fastest first: 16 bits for products, 32 for sums and weights.
_TRAINING = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Processor:
    """One processor as its data sheet describes it; a CPU is one socket unless named otherwise.

    What is not stated, or does not exist, is None.

    Args:
        kind: one of asic, cpu, fpga, gpu, ipu, manycore, tpu.
        year: of its introduction.
        flops_per_s: peak by number format, additions and multiplications counted each; int8 too.
        memory_bytes: its own memory, at most; `bytes_per_s` is its bandwidth.
        link_bytes_per_s: of its links to others of its kind, all links, mostly both directions
            together, so a pair gets less.
        host_bytes_per_s: of its link to the host (PCIe), one direction.
        note: how the figures were computed or what they leave out.
        source: datasheet and year.
    """

    name: str
    kind: str
    year: int
    flops_per_s: dict[str, float] = field(hash=False)
    memory_bytes: float | None
    bytes_per_s: float | None
    link_bytes_per_s: float | None
    host_bytes_per_s: float | None
    note: str
    source: str

    def balance(self, dtype: str = "float32") -> float | None:
        """Return peak / bandwidth (flop/byte); None if one of them is not stated.

        A computation with fewer operations per byte waits for memory.
        """
        peak = self.flops_per_s.get(require_known(dtype, _RATES, "dtype"))
        return None if peak is None or not self.bytes_per_s else peak / self.bytes_per_s

    def training_format(self) -> str | None:
        """Return the training format with the highest stated peak; None if none is stated."""
        stated = [dtype for dtype in _TRAINING if dtype in self.flops_per_s]
        return max(stated, key=lambda dtype: self.flops_per_s[dtype], default=None)


def select(since: int = 0) -> tuple[Processor, ...]:
    """Return the processors of the catalogue since a year, by year, then by name.

    Raises:
        ValueError: if `since` is not a year.
        MissingComponentError: if there is no data folder.
    """
    require_count(since, "since", least=0)
    found = [_processor(row) for row in published.load("hardware") if row["year"] >= since]
    return tuple(sorted(found, key=lambda each: (each.year, each.name)))


def find(name: str) -> Processor:
    """Find the processor whose name holds all words of `name`, capital letters or not.

    Raises:
        ValueError: if none or several fit; the message lists them.

    >>> find("h200").year
    2023
    """
    require(isinstance(name, str) and bool(name.strip()), "name", "be a text", name)
    everything, words = select(), name.lower().split()
    exact = [each for each in everything if each.name.lower() == name.lower()]
    fitting = exact or [e for e in everything if all(word in e.name.lower() for word in words)]
    listed = ", ".join(each.name for each in fitting or everything)
    which = "fit one processor only" if fitting else "be in the catalogue"
    require(len(fitting) == 1, "name", which, name, f"There are: {listed}.")
    return fitting[0]


def _processor(row: Mapping[str, Any]) -> Processor:
    stated = {
        dtype: [row[column] for column in columns if row[column] is not None]
        for dtype, columns in _RATES.items()
    }

    giga = {name: row[name] and 1e9 * row[name] for name in row if "gbytes" in name}
    return Processor(
        name=row["name"],
        kind=row["kind"],
        year=row["year"],
        flops_per_s={dtype: 1e12 * max(rates) for dtype, rates in stated.items() if rates},
        memory_bytes=giga["memory_gbytes"],
        bytes_per_s=giga["memory_gbytes_per_s"],
        link_bytes_per_s=giga["interconnect_gbytes_per_s"],
        host_bytes_per_s=giga["pcie_gbytes_per_s"],
        note=row["note"] or "",
        source=row["source"],
    )
