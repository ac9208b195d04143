"""The links of a node as `nvidia-smi topo -m` prints them, as a graph for `machine.links`.

Real when GPUs are there:

    text = link_matrix.of_this_node() or link_matrix.DGX_1
    links.best_ring(link_matrix.read(text, link_bytes_per_s=50e9))
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence

from dlguide import commands
from dlguide.errors import require, require_positive
from dlguide.machine.links import Links, bandwidth, devices

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# what a pair without NVLink goes through, as nvidia-smi explains it below its matrix
THROUGH = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge, which is the processor",
    "NODE": "the links between host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}

# 8 V100 in a hybrid cube mesh, 6 links each: the graph of `links.DGX_1` with the numbers that
# nvidia-smi gives to its GPUs
DGX_1 = """\
      GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7
GPU0   X   NV1  NV1  NV2  NV2  SYS  SYS  SYS
GPU1  NV1   X   NV2  NV1  SYS  NV2  SYS  SYS
GPU2  NV1  NV2   X   NV2  SYS  SYS  NV1  SYS
GPU3  NV2  NV1  NV2   X   SYS  SYS  SYS  NV1
GPU4  NV2  SYS  SYS  SYS   X   NV1  NV1  NV2
GPU5  SYS  NV2  SYS  SYS  NV1   X   NV2  NV1
GPU6  SYS  SYS  NV1  SYS  NV1  NV2   X   NV2
GPU7  SYS  SYS  SYS  NV1  NV2  NV1  NV2   X
"""


def of_this_node(program: str = "nvidia-smi") -> str | None:
    """Ask the driver of this node's GPUs for their matrix."""
    path = shutil.which(program)
    done = commands.run([path, "topo", "-m"], timeout_s=20) if path else None
    return done.output if done is not None and done.ok and "GPU0" in done.output else None


def read(text: str, link_bytes_per_s: float) -> dict[tuple[int, int], float]:
    """Read the pairs that have NVLinks.

    Args:
        text: what `nvidia-smi topo -m` printed.
        link_bytes_per_s: of one NVLink: NV2 stands for two of them (bytes/s).

    Returns:
        dict: bytes per second by pair of GPUs, each pair once; pairs without NVLink are left out.

    Raises:
        ValueError: when there are no rows of GPUs, or the matrix is not symmetric.
    """
    require_positive(link_bytes_per_s, "link_bytes_per_s")
    cells = _cells(text)
    found = {}
    for (one, other), cell in cells.items():
        must = f"say the same of GPU {one} and {other} as of {other} and {one}"
        require(cells.get((other, one)) == cell, "text", must, cell)
        match = re.fullmatch(r"NV(\d+)", cell)
        if match and one < other:
            found[one, other] = int(match[1]) * link_bytes_per_s
    return found


def gpus(text: str) -> tuple[int, ...]:
    """List the GPUs of a matrix, linked or not."""
    return tuple(sorted(_rows(text)))


def ways(text: str) -> dict[tuple[int, int], str]:
    """Say what each pair without NVLink goes through."""
    return {
        (one, other): cell
        for (one, other), cell in _cells(text).items()
        if one < other and cell in THROUGH
    }


def through_host(
    links: Links, host_bytes_per_s: float, everyone: Sequence[int] | None = None
) -> dict[tuple[int, int], float]:
    """Add the way through the host for every pair that has no link.

    >>> through_host({(0, 1): 50e9, (1, 2): 50e9}, 12e9)[0, 2]
    12000000000.0
    """
    require_positive(host_bytes_per_s, "host_bytes_per_s")
    everyone = sorted(devices(links) if everyone is None else everyone)
    return {
        (one, other): bandwidth(links, one, other) or host_bytes_per_s
        for one in everyone
        for other in everyone
        if one < other
    }


def slowest(order: tuple[int, ...], links: Mapping[tuple[int, int], float]) -> float:
    """Give the speed of the slowest link of a ring.

    Args:
        order: the devices; the last one is linked to the first.
        links: bytes per second by pair of devices.

    Returns:
        float: bytes per second; 0.0 where a link is missing.
    """
    return min(
        bandwidth(links, one, other)
        for one, other in zip(order, (*order[1:], order[0]), strict=True)
    )


def _rows(text: str) -> dict[int, list[str]]:
    rows = {}
    for line in _ANSI.sub("", text).splitlines():
        words = line.split()
        row = len(words) > 1 and re.fullmatch(r"GPU\d+", words[0])
        # the head of the matrix begins with GPU0 too; a cell is X, NV2, SYS, ...
        if row and re.fullmatch(rf"X|NV\d+|{'|'.join(THROUGH)}", words[1]):
            rows[int(words[0][3:])] = words[1:]
    require(bool(rows), "text", "hold rows that begin with GPU0, GPU1, ...", text[:60])
    return rows


def _cells(text: str) -> dict[tuple[int, int], str]:
    rows = _rows(text)
    count = len(rows)
    short = [gpu for gpu, row in rows.items() if len(row) < count]
    require(not short, "text", f"have {count} columns for {count} GPUs", f"fewer in rows {short}")
    numbers = sorted(rows)
    return {
        (one, other): rows[one][place]
        for one in numbers
        for place, other in enumerate(numbers)
        if one != other
    }
