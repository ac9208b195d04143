"""Install Horovod for this Python, this TensorFlow and one MPI.

The finished wheel is kept in a cache whose key names all that went into it, so that the build
happens once a machine. Each installation ends with an allreduce on two ranks.
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
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from dlguide import build_horovod, commands, preflight, wheelhouse
from dlguide.build_horovod import HOROVOD_VERSION, RECIPE
from dlguide.cluster import processes
from dlguide.errors import MissingComponentError, require
from dlguide.files import cache_folder

WHEELHOUSE = "DLGUIDE_WHEELHOUSE"  # `make setup WHEELHOUSE=...` sets it

SELF_TEST_S = 300.0  # from a slow file system TensorFlow alone may take minutes, the first time

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
    because a home folder is shared between unlike machines, is built again; so is one of a
    wheelhouse, from the source that lies in it too.
    """
    mpicc_path = find_mpicc(mpicc)
    _check_tensorflow()
    folder = wheels_folder() / cache_key(mpicc_path)
    for found in [] if force else _finished(mpicc_path):
        print(f"Horovod {HOROVOD_VERSION}: finished wheel, {found}", flush=True)
        try:
            return _install_wheel(found, mpicc_path)
        except RuntimeError as error:
            print(f"It does not work here: {error}", flush=True)
    check_tools()
    return _install_wheel(build_horovod.build(mpicc_path, folder), mpicc_path)


def finished_wheel(mpicc: Path) -> Path:
    """Return the wheel that fits this environment, from the cache, or built into it."""
    folder = wheels_folder() / cache_key(mpicc)
    cached = _cached_wheel(folder)
    if cached is None:
        check_tools()
        cached = build_horovod.build(mpicc, folder)
    return cached


def _finished(mpicc: Path) -> list[Path]:
    """Find wheels that may fit: the cache's own, then a wheelhouse's for an older C library."""
    key = cache_key(mpicc)
    named = os.environ.get(WHEELHOUSE)
    place = Path(named).expanduser() / wheelhouse.HOROVOD if named else None
    alike = key.replace("".join(platform.libc_ver()), "*")
    folders = [wheels_folder() / key, *(sorted(place.glob(alike)) if place else [])]
    return [wheel for wheel in map(_cached_wheel, folders) if wheel]


def _install_wheel(wheel: Path, mpicc: Path) -> Path:
    """Put a finished wheel into this environment and sum a number over two ranks with it."""
    build_horovod.run_step(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel]
    )
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
    if lack := preflight.compiler() or preflight.make():
        raise MissingComponentError(lack)
    try:
        wheels_folder().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=wheels_folder()).close()
    except OSError as error:
        raise MissingComponentError(
            f"The wheel cannot be kept in {wheels_folder()} ({error.strerror})."
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


def wheels_folder() -> Path:
    """Return the folder of finished wheels."""
    return cache_folder() / "wheels"


def cache_key(mpicc: Path) -> str:
    """Name all that a wheel depends on: Python, TensorFlow, MPI, machine, recipe.

    The environment's own folder is part of it only for an MPI of the site, whose path is built
    in; the mpich wheel is found relative to Horovod's own file.
    """
    tensorflow = _installed_version("tensorflow-cpu") or _installed_version("tensorflow")
    if build_horovod.in_this_environment(mpicc):
        mpi = f"mpich{_installed_version('mpich')}"
    else:
        shown = commands.run([mpicc, "-show"], timeout_s=60).output
        mpi = "site" + hashlib.sha256(f"{mpicc} {shown}".encode()).hexdigest()[:12]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = f"{platform.machine()}-{''.join(platform.libc_ver())}"
    return f"horovod{HOROVOD_VERSION}-{python}-tf{tensorflow}-{mpi}-{machine}-recipe{RECIPE}"


def self_test(mpi_bin: Path) -> None:
    """Sum a number over two ranks with the Horovod just installed."""
    env = {**commands.without_mpi(), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    launcher = mpi_bin / "mpiexec"
    if (mpi_bin / "mpiexec.gforker").exists():
        launcher = mpi_bin / "mpiexec.gforker"
        env["UCX_TLS"] = "sm,self"  # one host: no listener outside it
    processes.remove_orphaned_shared_memory()
    build_horovod.run_step(
        [launcher, "-n", "2", sys.executable, "-c", SELF_TEST], env=env, timeout_s=SELF_TEST_S
    )


def main(arguments: list[str] | None = None) -> int:
    """Install Horovod from the command line; a failure is told without a traceback."""
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
