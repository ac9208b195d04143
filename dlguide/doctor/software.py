"""Python, the packages against their pins, the compiler, Jupyter's kernel."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dlguide import commands, preflight
from dlguide.build_horovod import HOROVOD_VERSION
from dlguide.doctor.finding import Finding

PYTHONS = SpecifierSet(">=3.11,<3.14")
ROOT = Path(__file__).resolve().parents[2]
# conda-forge ships the first under the second's name, and MPICH not as a Python package.
OTHER_NAMES = {"tensorflow-cpu": "tensorflow"}
NOT_PYTHON_IN_CONDA = {"mpich"}
TOLD_APART = ("tensorflow-cpu", "tensorflow", "keras")

KERNEL = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3", startup_timeout={limit_s})
try:
    code = "import sys, ipyparallel; print('DOCTOR', ipyparallel.__version__, sys.prefix)"
    client.execute_interactive(code, timeout={limit_s}, store_history=False)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


# TensorFlow's own library without its Python part, which takes seconds.
LIBRARIES = """
import ctypes, pathlib, sys, sysconfig
import mpi4py, numpy, onnxruntime
mpi4py.rc.initialize = False
from mpi4py import MPI
site = pathlib.Path(sysconfig.get_path("purelib"))
for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
    for path in [*site.glob(f"tensorflow/{name}"), *pathlib.Path(sys.prefix).glob(f"lib/{name}")]:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        break
from dlguide.machine import libraries
for line in libraries.told(libraries.loaded()).splitlines():
    print("DOCTOR", line)
"""


def python(limit_s: float) -> Finding:
    """Tell which Python this is and whether the packages are made for it.

    Args:
        limit_s: not needed here; every check takes one (s).

    Returns:
        Finding: version and path.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    found = f"{version}, {sys.executable}"
    if version in PYTHONS:
        return Finding("Python", True, found)
    mend = "make distclean && make setup PYTHON=python3.12"
    return Finding("Python", False, f"{found}; 3.11, 3.12 or 3.13 is needed", mend)


def packages(limit_s: float) -> list[Finding]:
    """Hold what is installed against what the package asks for and against the pins.

    A version that is allowed but is not the pinned one works probably: a note.

    Args:
        limit_s: not needed here; every check takes one (s).

    Returns:
        list[Finding]: TensorFlow, Keras and Horovod each, and all others in one.
    """
    findings, others = [], []
    for line in metadata.requires("dlguide") or []:
        requirement = Requirement(line)
        if "extra" in str(requirement.marker) or not _applies(requirement):
            continue
        finding = _package(requirement)
        if requirement.name in TOLD_APART:
            findings.append(finding)
        else:
            others.append(finding)
    findings.append(_horovod())
    bad = [finding for finding in others if finding.ok is False]
    notes = [finding for finding in others if finding.ok is None]
    if bad or notes:
        told = "; ".join(f"{finding.name} {finding.found}" for finding in bad or notes)
        findings.append(Finding("Packages", False if bad else None, told, _setup()))
    else:
        findings.append(Finding("Packages", True, f"{len(others)} others as pinned"))
    return findings


def compiler(limit_s: float) -> Finding:
    """Tell whether g++ and make could build Horovod.

    Args:
        limit_s: not needed here; every check takes one (s).

    Returns:
        Finding: a failure, or only a note when Horovod is there already.
    """
    lack = preflight.compiler() or preflight.make()
    if not lack:
        return Finding("g++", True, "compiles C++17; make is there too")
    built = _version("horovod") is not None
    mend = "sudo apt-get install g++ make"
    note = " Horovod is built already; `dlguide install-horovod --force` would need it."
    return Finding("g++", None if built else False, lack + (note if built else ""), mend)


def jupyter(limit_s: float) -> Finding:
    """Start the notebooks' kernel and let it import ipyparallel.

    Args:
        limit_s: when it is killed (s).

    Returns:
        Finding: versions, or what failed.
    """
    lab = _version("jupyterlab")
    if lab is None:
        return Finding("Jupyter", False, "jupyterlab is not installed", _setup())
    code = KERNEL.format(limit_s=limit_s)
    done = commands.run([sys.executable, "-c", code], limit_s, commands.without_mpi())
    answer = re.search(r"^DOCTOR (\S+) (.*)$", done.output, re.M)
    own_kernel = f"{sys.executable} -m ipykernel install --sys-prefix"
    if answer is None:
        how = done.tail(1) if done.status is not None else f"no answer within {limit_s:g} s"
        return Finding("Jupyter", False, f"the kernel python3: {how[:200]}", own_kernel)
    version, prefix = answer.groups()
    if Path(prefix).resolve() != Path(sys.prefix).resolve():
        found = f"the kernel python3 belongs to another environment, {prefix}"
        return Finding("Jupyter", False, found, own_kernel)
    return Finding("Jupyter", True, f"JupyterLab {lab}; kernel starts; ipyparallel {version}")


def libraries(limit_s: float) -> Finding:
    """Tell which BLAS, deep learning, thread and message libraries the packages load.

    Args:
        limit_s: when it is killed (s).

    Returns:
        Finding: the libraries by role; a note when they could not be loaded together.
    """
    done = commands.run([sys.executable, "-c", LIBRARIES], limit_s, commands.without_mpi())
    lines = re.findall(r"^DOCTOR (.*)$", done.output, re.M)
    if lines:
        return Finding("Libraries", True, "; ".join(lines))
    how = done.tail(1) if done.status is not None else f"no answer within {limit_s:g} s"
    return Finding("Libraries", None, f"could not be looked at: {how[:200]}", _setup())


def _package(requirement: Requirement) -> Finding:
    name = requirement.name
    installed = _version(name) or _version(OTHER_NAMES.get(name, name))
    wanted = f"{name}{requirement.specifier}"
    if installed is None and name in NOT_PYTHON_IN_CONDA and _in_conda():
        return Finding(name, True, "conda's")
    if installed is None:
        return Finding(name, False, "is not installed", _setup(wanted))
    if not requirement.specifier.contains(installed, prereleases=True):
        return Finding(name, False, f"is {installed}, needed {wanted}", _setup(wanted))
    pinned = pins().get(_normal(name))
    if pinned is not None and pinned != installed:
        return Finding(name, None, f"{installed}, tried with {pinned}", _setup(f"{name}=={pinned}"))
    return Finding(name, True, installed)


def _horovod() -> Finding:
    installed = _version("horovod")
    if installed == HOROVOD_VERSION:
        return Finding("Horovod", True, installed)
    found = "is not installed" if installed is None else f"{installed}, needed {HOROVOD_VERSION}"
    return Finding("Horovod", False, found, "dlguide install-horovod")


@cache
def pins() -> dict[str, str]:
    """Read constraints.txt of the repository; empty where the package came without it.

    Returns:
        dict[str, str]: versions by normalised package name, those for this Python only.
    """
    path = ROOT / "constraints.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        _normal(each.name): str(each.specifier).removeprefix("==")
        for each in wanted
        if _applies(each)
    }


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _in_conda() -> bool:
    return (Path(sys.prefix) / "conda-meta").is_dir()


def _setup(requirement: str = "") -> str:
    """The command that puts packages right: conda and plain installations have no make setup."""
    if _in_conda():
        return "conda env update -f environment.yml"
    if (ROOT / "Makefile").exists() and Path(sys.prefix).parent == ROOT:
        return "touch pyproject.toml && make setup"
    return f"{sys.executable} -m pip install '{requirement or 'dlguide'}'"
