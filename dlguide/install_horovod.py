"""Build Horovod from its source archive against this Python, this TensorFlow and one MPI.

Horovod 0.28.1 is the last release; its source does not compile against TensorFlow 2.21 as it
stands. One line has to go: the file that lowers Horovod's operators to XLA, a path that is off
by default. Everything else is built as published, with MPI and Gloo. The finished wheel is kept
in a cache whose key names all that went into it, so that the build happens once a machine.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

from dlguide.checks import MissingComponentError, require

HOROVOD_VERSION = "0.28.1"
RECIPE = "2"  # raise it when the steps below change, so that no older wheel is taken
BUILD_TOOLS = ("setuptools<81", "wheel", "packaging", "cmake")
XLA_LINE = 'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")'

# Run on two ranks, started by the MPI that Horovod was built against.
SELF_TEST = """
import mpi4py.MPI
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
total = hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Sum, name="self_test").numpy()[0]
assert hvd.size() == 2 and total == 3.0, (hvd.size(), total)
"""


def install(mpicc: str | None = None, force: bool = False) -> Path:
    """Install Horovod into this Python's environment, from the cache where it can.

    Args:
        mpicc: the MPI compiler to build against; None takes the one beside this Python.
        force: build again even when the cache holds a wheel.

    Returns:
        Path: the wheel that was installed.

    Raises:
        MissingComponentError: when g++, make, TensorFlow or mpicc is missing.
        RuntimeError: when the build or the self-test on two ranks fails; the text ends with the
            last lines of the log.
    """
    mpicc_path = find_mpicc(mpicc)
    check_tools()
    folder = cache_folder() / cache_key(mpicc_path)
    wheels = sorted(folder.glob("horovod-*.whl"))
    if force or not wheels:
        wheels = [build(mpicc_path, folder)]
    else:
        print(f"Horovod {HOROVOD_VERSION}: wheel from the cache, {wheels[0]}")
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheels[0]])
    self_test(mpicc_path.parent / "mpiexec")
    print(f"Horovod {HOROVOD_VERSION}: an allreduce on 2 ranks gave the right sum.")
    return wheels[0]


def find_mpicc(mpicc: str | None) -> Path:
    """Find the MPI compiler, by default the one that came with this Python's mpich wheel."""
    beside = Path(sysconfig.get_path("scripts")) / "mpicc"
    path = Path(shutil.which(mpicc) or mpicc).absolute() if mpicc else beside
    require(
        mpicc is None or os.access(path, os.X_OK),
        "mpicc",
        "be an MPI compiler that can be run",
        mpicc,
        "Give its full path, for instance the output of `which mpicc`.",
    )
    if not os.access(path, os.X_OK):
        raise MissingComponentError(f"No mpicc at {path}. Run `pip install mpich`.")
    return path


def check_tools() -> None:
    """Say what is missing before anything is downloaded."""
    for tool, package in (("g++", "g++"), ("make", "make")):
        if shutil.which(tool) is None:
            raise MissingComponentError(
                f"Building Horovod needs {tool}. Run `sudo apt-get install {package}`"
                " (or your system's way), then try again."
            )
    if not any(installed_version(name) for name in ("tensorflow-cpu", "tensorflow")):
        raise MissingComponentError("Horovod is built against TensorFlow. Run `make setup`.")


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cache_folder() -> Path:
    """Return the folder of finished wheels, `$XDG_CACHE_HOME/dlguide/wheels`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dlguide" / "wheels"


def cache_key(mpicc: Path) -> str:
    """Name all that a wheel depends on: Python, TensorFlow, MPI, machine and recipe.

    The environment's own folder is part of it only for an MPI of the site, whose path is built
    in; the mpich wheel is found relative to Horovod's own file.
    """
    tensorflow = installed_version("tensorflow-cpu") or installed_version("tensorflow")
    if in_this_environment(mpicc):
        mpi = f"mpich{installed_version('mpich')}"
    else:
        shown = subprocess.run([mpicc, "-show"], capture_output=True, text=True).stdout
        mpi = "site" + hashlib.sha256(f"{mpicc} {shown}".encode()).hexdigest()[:12]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = platform.machine()
    return f"horovod{HOROVOD_VERSION}-{python}-tf{tensorflow}-{mpi}-{machine}-recipe{RECIPE}"


def in_this_environment(path: Path) -> bool:
    return Path(sys.prefix).absolute() in path.absolute().parents


def build(mpicc: Path, folder: Path) -> Path:
    """Download the source archive, drop the one line, build a wheel into `folder`."""
    print(f"Horovod {HOROVOD_VERSION}: building against {mpicc} (1 to 4 minutes, once) ...")
    run([sys.executable, "-m", "pip", "install", "-q", *BUILD_TOOLS])
    with tempfile.TemporaryDirectory(prefix="dlguide-horovod-") as scratch:
        pip = [sys.executable, "-m", "pip"]
        source = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
        run([*pip, "download", "-q", *source, "-d", scratch, f"horovod=={HOROVOD_VERSION}"])
        with tarfile.open(Path(scratch) / f"horovod-{HOROVOD_VERSION}.tar.gz") as archive:
            archive.extractall(scratch, filter="data")
        tree = Path(scratch) / f"horovod-{HOROVOD_VERSION}"
        drop_xla_lowering(tree / "horovod" / "tensorflow" / "CMakeLists.txt")
        run([*pip, "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", scratch, tree],
            env=build_environment(mpicc))  # fmt: skip
        wheel = next(Path(scratch).glob("horovod-*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        # Copy under another name, then rename: a build that is killed leaves no half wheel.
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        return partial.replace(folder / wheel.name)


def drop_xla_lowering(cmake_lists: Path) -> None:
    """Remove the one source file that TensorFlow 2.21 no longer compiles."""
    text = cmake_lists.read_text()
    if XLA_LINE not in text:
        raise RuntimeError(f"{cmake_lists.name} of Horovod {HOROVOD_VERSION} is not as expected.")
    cmake_lists.write_text(text.replace(XLA_LINE, ""))


def build_environment(mpicc: Path) -> dict[str, str]:
    """Return the environment of the build: which MPI, which parts, where libmpi lies."""
    scripts = sysconfig.get_path("scripts")
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(mpicc.parent), scripts, os.environ["PATH"]]),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
    }
    if in_this_environment(mpicc):
        # From horovod/tensorflow/ up to the environment's lib/, where the mpich wheel puts libmpi.
        env["LDFLAGS"] = "-Wl,-rpath,$ORIGIN/../../../.."
    return env


def self_test(mpiexec: Path) -> None:
    """Sum a number over two ranks with the Horovod just installed."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    run([mpiexec, "-n", "2", sys.executable, "-c", SELF_TEST], env=env, timeout_s=120)


def run(command: list, env: dict[str, str] | None = None, timeout_s: float = 1800) -> None:
    """Run a command quietly; when it fails, raise with the last lines of what it printed."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, env=env, text=True, timeout=timeout_s,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"`{words[0]}` did not end within {timeout_s:.0f} s.") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise RuntimeError(f"`{' '.join(words[:6])} ...` failed ({done.returncode}):\n{tail}")


if __name__ == "__main__":
    install()
