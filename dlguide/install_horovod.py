"""Build Horovod from its source archive against this Python, this TensorFlow and one MPI.

Horovod 0.28.1 is the last release; its source does not compile against TensorFlow 2.21 as it
stands. One line has to go: the file that lowers Horovod's operators to XLA, a path that is off
by default. Everything else is built as published, with MPI and Gloo. The finished wheel is kept
in a cache whose key names all that went into it, so that the build happens once a machine.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from dlguide import commands, preflight
from dlguide.checks import MissingComponentError, require

HOROVOD_VERSION = "0.28.1"
RECIPE = "3"  # raise it when the steps below change, so that no older wheel is taken
# As in constraints.txt, which is not there when the package was installed without its repository.
BUILD_TOOLS = ("cmake==4.4.4", "packaging==26.3", "setuptools==80.10.2", "wheel==0.48.0")
PARTS = ("WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITH_MPI", "WITH_GLOO")
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

    It ends with an allreduce on two ranks. A wheel of the cache that is damaged or fails there,
    because a home folder is shared between unlike machines, is built again.

    Args:
        mpicc: the MPI compiler to build against; None takes the one beside this Python.
        force: build again even when the cache holds a wheel.

    Returns:
        Path: the wheel that was installed.

    Raises:
        ValueError: when `mpicc` cannot be run.
        MissingComponentError: when g++, make, TensorFlow, mpicc or a folder to write to is missing.
        RuntimeError: when the build or the self-test on two ranks fails; the text ends with the
            last lines of the log.
    """
    mpicc_path = find_mpicc(mpicc)
    _check_tensorflow()
    folder = cache_folder() / cache_key(mpicc_path)
    cached = None if force else _cached_wheel(folder)
    if cached:
        print(f"Horovod {HOROVOD_VERSION}: wheel from the cache, {cached}", flush=True)
        try:
            return _install_wheel(cached, mpicc_path)
        except RuntimeError as error:
            print(f"It does not work here, so it is built again: {error}", flush=True)
    check_tools()
    return _install_wheel(build(mpicc_path, folder), mpicc_path)


def _install_wheel(wheel: Path, mpicc: Path) -> Path:
    """Put a finished wheel into this environment and sum a number over two ranks with it."""
    _run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel])
    self_test(mpicc.parent)
    print(f"Horovod {HOROVOD_VERSION}: an allreduce on 2 ranks gave the right sum.", flush=True)
    return wheel


def _cached_wheel(folder: Path) -> Path | None:
    """Find a whole wheel in a folder of the cache; None when its checksums do not hold."""
    for wheel in sorted(folder.glob("horovod-*.whl")):
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(wheel) as archive:
            if archive.testzip() is None:
                return wheel
    return None


def find_mpicc(mpicc: str | None = None) -> Path:
    """Find the MPI compiler, by default the one that came with this Python's mpich wheel.

    Args:
        mpicc: a name on the PATH or a path; None takes the one beside this Python.

    Returns:
        Path: the absolute path of a program that can be run.

    Raises:
        ValueError: when the one given cannot be run.
        MissingComponentError: when there is none beside this Python.
    """
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
    """Say what is missing before anything is downloaded.

    Raises:
        MissingComponentError: when g++ or make is missing, or the cache cannot be written.
    """
    if lack := preflight.compiler() or preflight.make():
        raise MissingComponentError(lack)
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_folder()).close()
    except OSError as error:
        raise MissingComponentError(
            f"The wheel cannot be kept in {cache_folder()} ({error.strerror})."
            " Set XDG_CACHE_HOME to a folder that you can write to."
        ) from error


def _check_tensorflow() -> None:
    if not any(_installed_version(name) for name in ("tensorflow-cpu", "tensorflow")):
        raise MissingComponentError("Horovod is built against TensorFlow. Run `make setup`.")


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cache_folder() -> Path:
    """Return the folder of finished wheels, `$XDG_CACHE_HOME/dlguide/wheels`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dlguide" / "wheels"


def cache_key(mpicc: Path) -> str:
    """Name all that a wheel depends on: Python, TensorFlow, MPI, machine, recipe.

    The environment's own folder is part of it only for an MPI of the site, whose path is built
    in; the mpich wheel is found relative to Horovod's own file.

    Args:
        mpicc: the MPI compiler.

    Returns:
        str: the name of the cache's folder.
    """
    tensorflow = _installed_version("tensorflow-cpu") or _installed_version("tensorflow")
    if _in_this_environment(mpicc):
        mpi = f"mpich{_installed_version('mpich')}"
    else:
        shown = commands.run([mpicc, "-show"], timeout_s=60).output
        mpi = "site" + hashlib.sha256(f"{mpicc} {shown}".encode()).hexdigest()[:12]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = f"{platform.machine()}-{''.join(platform.libc_ver())}"
    return f"horovod{HOROVOD_VERSION}-{python}-tf{tensorflow}-{mpi}-{machine}-recipe{RECIPE}"


def _in_this_environment(path: Path) -> bool:
    return Path(sys.prefix).absolute() in path.absolute().parents


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
        pip = [sys.executable, "-m", "pip"]
        tools = Path(scratch) / "tools"
        _run([*pip, "install", "-q", "--target", tools, *BUILD_TOOLS])
        env = _build_environment(mpicc, tools)
        source = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
        archive = f"horovod=={HOROVOD_VERSION}"
        _run([*pip, "download", "-q", *source, "-d", scratch, archive], env)
        with tarfile.open(Path(scratch) / f"horovod-{HOROVOD_VERSION}.tar.gz") as unpacked:
            unpacked.extractall(scratch, filter="data")
        tree = Path(scratch) / f"horovod-{HOROVOD_VERSION}"
        _drop_xla_lowering(tree / "horovod" / "tensorflow" / "CMakeLists.txt")
        _run([*pip, "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", scratch, tree], env)
        wheel = next(Path(scratch).glob("horovod-*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        # Copy under another name, then rename: a build that is killed leaves no half wheel.
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        return partial.replace(folder / wheel.name)


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
    if _in_this_environment(mpicc):
        # From horovod/tensorflow/ up to the environment's lib/, where the mpich wheel puts libmpi.
        env["LDFLAGS"] = "-Wl,-rpath,$ORIGIN/../../../.."
    return env


def self_test(mpi_bin: Path) -> None:
    """Sum a number over two ranks with the Horovod just installed.

    Args:
        mpi_bin: the folder of the MPI's programs.

    Raises:
        RuntimeError: when the ranks fail, hang or find another sum.
    """
    env = {**commands.without_mpi(), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    launcher = mpi_bin / "mpiexec"
    if (mpi_bin / "mpiexec.gforker").exists():
        launcher = mpi_bin / "mpiexec.gforker"
        env["UCX_TLS"] = "sm,self"  # one host: no listener outside it
    _run([launcher, "-n", "2", sys.executable, "-c", SELF_TEST], env=env, timeout_s=120)


def _run(command: list, env: dict[str, str] | None = None, timeout_s: float = 1800) -> None:
    """Run a step quietly; when it fails, raise with the last lines of what it printed."""
    try:
        done = commands.run(command, timeout_s, env)
    except OSError as error:
        raise RuntimeError(f"`{command[0]}` cannot be run: {error.strerror}.") from error
    if not done.ok:
        how = f"failed ({done.status})" if done.status else f"did not end in {timeout_s:.0f} s"
        words = " ".join(str(word) for word in command[:6])
        raise RuntimeError(f"`{words} ...` {how}:\n{done.tail()}")


def main(arguments: list[str] | None = None) -> int:
    """Install Horovod from the command line; a failure is told without a traceback.

    Args:
        arguments: what follows the command's name; None takes it from the command line.

    Returns:
        int: the exit status.
    """
    parser = argparse.ArgumentParser("dlguide.install_horovod")
    parser.add_argument("--mpicc", help="the site's MPI compiler; default: this environment's")
    parser.add_argument("--force", action="store_true", help="build again, whatever the cache has")
    chosen = parser.parse_args(arguments)
    try:
        install(chosen.mpicc, chosen.force)
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
