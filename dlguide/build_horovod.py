"""The recipe of Horovod's wheel: its source archive, one line dropped, built against one MPI.

Horovod 0.28.1 is the last release; its source does not compile against TensorFlow 2.21 as it
stands. One line has to go: the file that lowers Horovod's operators to XLA, a path that is off
by default. Everything else is built as published, with MPI and Gloo.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

from dlguide import commands

HOROVOD_VERSION = "0.28.1"
SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
RECIPE = "3"  # raise it when the steps below change, so that no older wheel is taken
# As in constraints.txt, which is not there when the package was installed without its repository.
BUILD_TOOLS = ("cmake==4.4.4", "packaging==26.3", "setuptools==80.10.2", "wheel==0.48.0")
PARTS = ("WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITH_MPI", "WITH_GLOO")
PIP = (sys.executable, "-m", "pip")
XLA_LINE = 'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")'


def build(mpicc: Path, folder: Path) -> Path:
    """Build a wheel from the source archive, with build tools that leave the environment alone.

    Args:
        mpicc: the MPI compiler to build against.
        folder: where the wheel goes.

    Returns:
        Path: the wheel.

    Raises:
        RuntimeError: when a step fails; the text ends with the last lines of its log.
    """
    print(f"Horovod {HOROVOD_VERSION}: building (1 to 4 minutes, once) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="dlguide-horovod-") as scratch:
        tools = fetch_tools(Path(scratch))
        env = _build_environment(mpicc, tools)
        _unpack(fetch_source(Path(scratch), mpicc, tools))
        tree = Path(scratch) / f"horovod-{HOROVOD_VERSION}"
        _drop_xla_lowering(tree / "horovod" / "tensorflow" / "CMakeLists.txt")
        run_step(
            [*PIP, "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", scratch, tree], env
        )
        wheel = next(Path(scratch).glob("horovod-*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        # Copy under another name, then rename: a build that is killed leaves no half wheel.
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        return partial.replace(folder / wheel.name)


def fetch_tools(scratch: Path) -> Path:
    """Install the build tools into a folder of their own."""
    tools = scratch / "tools"
    run_step([*PIP, "install", "-q", "--target", tools, *BUILD_TOOLS])
    return tools


def fetch_source(scratch: Path, mpicc: Path, tools: Path) -> Path:
    """Get Horovod's source archive, as it was published."""
    source = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    wanted = ["-d", scratch, f"horovod=={HOROVOD_VERSION}"]
    run_step([*PIP, "download", "-q", *source, *wanted], _build_environment(mpicc, tools))
    archive = scratch / f"horovod-{HOROVOD_VERSION}.tar.gz"
    _require_published(archive)
    return archive


def _require_published(archive: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SOURCE_SHA256:
        raise RuntimeError(f"{archive.name} has SHA-256 {found}, expected {SOURCE_SHA256}.")


def _unpack(archive: Path) -> None:
    """Unpack the source archive beside itself, if it is the one that was published."""
    _require_published(archive)
    with tarfile.open(archive) as unpacked:
        # Python before 3.11.4 has no filters; the checksum has told what is inside.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        unpacked.extractall(archive.parent, **safe)


def _drop_xla_lowering(cmake_lists: Path) -> None:
    """Remove the one source file that TensorFlow 2.21 no longer compiles."""
    text = cmake_lists.read_text()
    if XLA_LINE not in text:
        raise RuntimeError(f"{cmake_lists.name} of Horovod {HOROVOD_VERSION} is not as expected.")
    cmake_lists.write_text(text.replace(XLA_LINE, ""))


def _build_environment(mpicc: Path, tools: Path) -> dict[str, str]:
    """Choose the environment of the build: which MPI, which parts, where libmpi lies."""
    scripts = sysconfig.get_path("scripts")
    path = [str(mpicc.parent), str(tools / "bin"), scripts, os.environ["PATH"]]
    env = {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(tools),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        **dict.fromkeys((f"HOROVOD_{part}" for part in PARTS), "1"),
    }
    if in_this_environment(mpicc):
        # From horovod/tensorflow/ up to the environment's lib/, where the mpich wheel puts libmpi.
        env["LDFLAGS"] = "-Wl,-rpath,$ORIGIN/../../../.."
    return env


def in_this_environment(path: Path) -> bool:
    """Tell whether a path lies in this Python's environment."""
    return Path(sys.prefix).absolute() in path.absolute().parents


def run_step(command: list, env: dict[str, str] | None = None, timeout_s: float = 1800) -> None:
    """Run a step quietly."""
    try:
        done = commands.run(command, timeout_s, env)
    except OSError as error:
        raise RuntimeError(f"`{command[0]}` cannot be run: {error.strerror}.") from error
    if not done.ok:
        how = f"failed ({done.status})" if done.status else f"did not end in {timeout_s:.0f} s"
        words = " ".join(str(word) for word in command[:6])
        raise RuntimeError(f"`{words} ...` {how}:\n{done.tail()}")
