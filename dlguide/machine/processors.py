"""Catalogue of processors since 2013, from their data sheets, in SI units.

Peaks are those of dense matrix products with all units busy. If a vendor prints none, the row's
note says how the value was computed; what no public source confirms is missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlguide import published
from dlguide.errors import require, require_count, require_known

KINDS = ("asic", "cpu", "fpga", "gpu", "ipu", "manycore", "tpu")
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

    Args:
        name: what the vendor calls it.
        kind: one of asic, cpu, fpga, gpu, ipu, manycore, tpu.
        year: of its introduction.
        flops_per_s: peak by number format, additions and multiplications counted each; int8 too.
        memory_bytes: its own memory, at most; None if not stated.
        bytes_per_s: bandwidth of that memory; None if not stated.
        link_bytes_per_s: of its links to others of its kind, all links, mostly both directions
            together, so a pair gets less; None if there are none.
        host_bytes_per_s: of its link to the host (PCIe), one direction; None if not stated.
        cores: cores of a CPU; None elsewhere.
        watts: power that it may draw; None if not stated.
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
    cores: int | None
    watts: float | None
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


def select(
    kind: str | None = None, since: int | None = None, folder: str | os.PathLike | None = None
) -> tuple[Processor, ...]:
    """Return the processors of the catalogue by year, then by name.

    Args:
        kind: one of `KINDS`; None for all.
        since: first year; None for all.
        folder: the data folder; None looks for it.

    Raises:
        ValueError: if the kind is unknown or `since` is not a year.
        MissingComponentError: if there is no data folder.
    """
    if kind is not None:
        require_known(kind, KINDS, "kind")
    first = 0 if since is None else require_count(since, "since")
    found = [_processor(row) for row in published.load("hardware", folder)]
    chosen = [each for each in found if each.year >= first and kind in (None, each.kind)]
    return tuple(sorted(chosen, key=lambda each: (each.year, each.name)))


def find(name: str, folder: str | os.PathLike | None = None) -> Processor:
    """Find the processor whose name holds all words of `name`, capital letters or not.

    Args:
        name: such as "A100" or "xeon 6980P".
        folder: the data folder; None looks for it.

    Raises:
        ValueError: if none or several fit; the message lists them.

    >>> find("h200").year
    2023
    """
    require(isinstance(name, str) and bool(name.strip()), "name", "be a text", name)
    all_of_them = select(folder=folder)
    exact = [each for each in all_of_them if each.name.lower() == name.lower()]
    words = name.lower().split()
    fitting = exact or [e for e in all_of_them if all(word in e.name.lower() for word in words)]
    if len(fitting) != 1:
        listed = ", ".join(each.name for each in fitting or all_of_them)
        which = "fit one processor only" if fitting else "be in the catalogue"
        require(False, "name", which, name, f"There are: {listed}.")
    return fitting[0]


def _processor(row: Mapping[str, Any]) -> Processor:
    stated = {
        dtype: [row[column] for column in columns if row[column] is not None]
        for dtype, columns in _RATES.items()
    }

    def giga(column: str) -> float | None:
        return None if row[column] is None else 1e9 * row[column]

    return Processor(
        name=row["name"],
        kind=row["kind"],
        year=row["year"],
        flops_per_s={dtype: 1e12 * max(rates) for dtype, rates in stated.items() if rates},
        memory_bytes=giga("memory_gbytes"),
        bytes_per_s=giga("memory_gbytes_per_s"),
        link_bytes_per_s=giga("interconnect_gbytes_per_s"),
        host_bytes_per_s=giga("pcie_gbytes_per_s"),
        cores=row["cores"],
        watts=None if row["watts"] is None else float(row["watts"]),
        note=row["note"] or "",
        source=row["source"],
    )
