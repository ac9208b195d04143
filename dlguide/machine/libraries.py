"""Which libraries do the work in this process: BLAS, deep learning, threads, messages.

The 2019 workshop looked with `ldd` at what a program was linked to. Python loads its libraries
while it runs, so we look at what is mapped into the process instead.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dlguide.machine.kernel_files import read

ROLES = ("BLAS", "deep learning", "threads", "messages")
# File name -> role, what people call it, who makes it. The first that fits counts.
_KNOWN = (
    (r"lib(scipy_)?openblas", "BLAS", "OpenBLAS", "open source"),
    (r"libmkl_(rt|core)", "BLAS", "MKL", "Intel"),
    (r"libblis", "BLAS", "BLIS (AOCL)", "open source, AMD"),
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
    (r"libgomp", "threads", "OpenMP of GCC", "open source"),
    (r"libiomp5", "threads", "OpenMP of Intel", "Intel"),
    (r"libomp", "threads", "OpenMP of LLVM", "open source"),
    (r"libtbb\b|libtbb\.", "threads", "TBB", "open source, Intel"),
    (r"libmpi_|libmpi\.|libmpich|libmpi-", "messages", "MPI", "see its file"),
    (r"libnccl", "messages", "NCCL", "NVIDIA"),
    (r"librccl", "messages", "RCCL", "AMD"),
)


@dataclass(frozen=True)
class Library:
    """A library that is loaded."""

    role: str
    name: str
    vendor: str
    path: str


def loaded(
    proc_root: str | os.PathLike = "/proc", process: int | str = "self"
) -> tuple[Library, ...]:
    """List the libraries of these roles that are loaded in a process.

    Leaves out what is built into another library: TensorFlow holds a oneDNN of its own, which
    has no file.
    """
    maps = read(Path(proc_root) / str(process) / "maps")
    paths = dict.fromkeys(re.findall(r"\s(/\S.*?)(?: \(deleted\))?$", maps, re.MULTILINE))
    found: dict[tuple[str, str, str], Library] = {}
    for path in paths:
        # one directory may hold wheels' own copies: libscipy_openblas64_-56d6093b.so
        for pattern, role, name, vendor in _KNOWN:
            if ".so" in path and re.match(pattern, Path(path).name):
                key = (role, name, str(Path(path).parent))
                found.setdefault(key, Library(role, name, vendor, path))
                break
    return tuple(sorted(found.values(), key=lambda each: (ROLES.index(each.role), each.name)))


def told(libraries: tuple[Library, ...]) -> str:
    """Say which libraries are loaded, one line a role."""
    lines = []
    for role in ROLES:
        names = [f"{each.name} ({each.vendor})" for each in libraries if each.role == role]
        counted = [
            name if names.count(name) == 1 else f"{name}, {names.count(name)} copies"
            for name in dict.fromkeys(names)
        ]
        lines.append(f"{role}: {', '.join(counted) or 'none loaded'}")
    return "\n".join(lines)
