"""Libraries loaded in this process for linear algebra, deep learning, threads and messages.

The 2019 workshop looked with `ldd` at what a program was linked to. Python loads its libraries
while it runs, so the process itself is examined: threadpoolctl finds BLAS and OpenMP with version
and threads, the memory map shows the files of the others.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dlguide.machine.topology import read_text

ROLES = ("BLAS", "deep learning", "threads", "messages")
# By threadpoolctl's name of the interface or the prefix of the file.
_POOLS = {
    "openblas": ("BLAS", "OpenBLAS", "open source"),
    "mkl": ("BLAS", "MKL", "Intel"),
    "blis": ("BLAS", "BLIS (AOCL)", "open source, AMD"),
    "flexiblas": ("BLAS", "FlexiBLAS", "open source"),
    "libgomp": ("threads", "OpenMP of GCC", "open source"),
    "libiomp": ("threads", "OpenMP of Intel", "Intel"),
    "libomp": ("threads", "OpenMP of LLVM", "open source"),
}
# Pattern of the file's name, role, name, vendor; the first that fits counts.
_FILES = (
    (r"libflame", "BLAS", "libFLAME (AOCL)", "open source, AMD"),
    (r"lib(amdlibm|alm)", "BLAS", "LibM (AOCL)", "AMD"),
    (r"libarmpl", "BLAS", "Arm Performance Libraries", "Arm"),
    (r"libnvpl_blas", "BLAS", "NVPL", "NVIDIA"),
    (r"lib(atlas|satlas|tatlas)", "BLAS", "ATLAS", "open source"),
    (r"libcublas", "BLAS", "cuBLAS", "NVIDIA"),
    (r"librocblas", "BLAS", "rocBLAS", "AMD"),
    (r"lib(c?blas)\.so", "BLAS", "reference BLAS", "open source"),
    (r"lib(dnnl|mkldnn)", "deep learning", "oneDNN", "open source, Intel"),
    (r"libtensorflow_(cc|framework)", "deep learning", "TensorFlow", "Google"),
    (r"(lib)?onnxruntime", "deep learning", "onnxruntime", "Microsoft"),
    (r"libtorch_cpu", "deep learning", "PyTorch (oneDNN inside)", "Meta"),
    (r"libonedal", "deep learning", "oneDAL", "open source, Intel"),
    (r"libcudnn", "deep learning", "cuDNN", "NVIDIA"),
    (r"libMIOpen", "deep learning", "MIOpen", "AMD"),
    (r"libtbb\b|libtbb\.", "threads", "TBB", "open source, Intel"),
    (r"libmpi_|libmpi\.|libmpich|libmpi-", "messages", "MPI", "see its file"),
    (r"libnccl", "messages", "NCCL", "NVIDIA"),
    (r"librccl", "messages", "RCCL", "AMD"),
)


@dataclass(frozen=True)
class LoadedLibrary:
    """A library that is loaded; version and threads are known for BLAS and OpenMP only."""

    role: str
    name: str
    vendor: str
    path: str
    version: str = ""
    threads: int | None = None


def loaded(proc_root: str | os.PathLike = "/proc") -> tuple[LoadedLibrary, ...]:
    """List the libraries of the four roles that are loaded in this process.

    Libraries inside another one are left out: TensorFlow contains a oneDNN that has no file.
    """
    from threadpoolctl import threadpool_info

    found = []
    for pool in threadpool_info():
        known = _POOLS.get(pool["internal_api"]) or _POOLS.get(pool["prefix"].rstrip("0123456789"))
        if known:
            version = pool["version"] or ""
            library = LoadedLibrary(*known, pool["filepath"], version, pool["num_threads"])
            found.append(library)
    maps = read_text(Path(proc_root) / "self/maps")
    others: dict[tuple[str, str], LoadedLibrary] = {}
    for path in re.findall(r"\s(/\S.*?)(?: \(deleted\))?$", maps, re.MULTILINE):
        for pattern, role, name, vendor in _FILES:
            if ".so" in path and re.match(pattern, Path(path).name):
                # the files of one library in one folder count once
                key = (name, str(Path(path).parent))
                others.setdefault(key, LoadedLibrary(role, name, vendor, path))
                break
    found += others.values()
    return tuple(sorted(found, key=lambda each: (ROLES.index(each.role), each.name)))


def summary(libraries: tuple[LoadedLibrary, ...]) -> str:
    """List libraries by role, one line each, with vendors and numbers of copies."""
    lines = []
    for role in ROLES:
        names = [f"{each.name} ({each.vendor})" for each in libraries if each.role == role]
        counted = [
            name if names.count(name) == 1 else f"{name}, {names.count(name)} copies"
            for name in dict.fromkeys(names)
        ]
        lines.append(f"{role}: {', '.join(counted) or 'none loaded'}")
    return "\n".join(lines)
