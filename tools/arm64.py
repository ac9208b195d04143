"""One training on 2 ranks in an emulated user land of ARM64, from wheels alone.

    sudo python3 tools/arm64.py [FOLDER] [--backend jax]

makes Debian's ARM64 user land in FOLDER (build/arm64), installs this clone into it with the pinned
wheels, trains a small net on one of Keras' backends and compares the weights with NumPy's. It needs
root, the network, 3 GB of disk, and Debian's packages debootstrap and qemu-user-static; it has no
limit on time. What is in FOLDER is used again; delete it afterwards. On a real ARM64 machine:

    dlguide run -n 2 tools/arm64.py train

An emulator computes as the processor would, but it is no processor: it says nothing about speed,
and it shows the host's /proc/cpuinfo.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
COPIED = ("dlguide", "data/published", "tools", "pyproject.toml", "setup.py", "constraints.txt")
COPIED += ("README.md", "LICENSE")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
FORMAT = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
SEPARATE = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child")
INSIDE = "DLGUIDE_ARM64_INSIDE"  # set in the namespaces, which end with all that was started there
STEPS, RATE = 12, 0.05


def main() -> None:
    """Make the user land, install into it, and train there."""
    parser = argparse.ArgumentParser(description="A training on 2 ranks on emulated ARM64.")
    parser.add_argument("folder", nargs="?", type=Path, default=CLONE / "build" / "arm64")
    parser.add_argument("--backend", choices=("jax", "tensorflow", "torch"), default="jax")
    chosen = parser.parse_args()
    for program in ("debootstrap", "qemu-aarch64-static", "unshare"):
        if not (os.geteuid() == 0 and shutil.which(program)):
            sys.exit("This needs root and `apt-get install debootstrap qemu-user-static`.")
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", *SEPARATE, sys.executable, *sys.argv])
    root = chosen.folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    registered = _register()
    try:
        _bootstrap(root)
        _install(root, chosen.backend)
        _train(root, chosen.backend)
    finally:
        if registered:
            (BINFMT / "qemu-aarch64").write_text("-1")


def _register() -> bool:
    """Let the kernel start ARM64 programs by qemu; return whether that was new."""
    if not (BINFMT / "register").exists():
        _run("mount", "-t", "binfmt_misc", "none", BINFMT)
    if (BINFMT / "qemu-aarch64").exists():
        return False
    (BINFMT / "register").write_text(FORMAT.read_text().strip())
    return True


def _bootstrap(root: Path) -> None:
    if not (root / "debootstrap").exists() and not (root / "usr/bin/python3").exists():
        packages = "--include=python3,python3-venv,ca-certificates"
        first = ("--arch=arm64", "--variant=minbase", packages, "--foreign", "bookworm")
        _run("debootstrap", *first, root)
    if (root / "debootstrap").exists():
        _run("chroot", root, "/debootstrap/debootstrap", "--second-stage")
    for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copyfile(name, f"{root}{name}")  # the same network as outside
    _run("mount", "-t", "proc", "proc", root / "proc")
    for name in ("dev", "sys"):
        _run("mount", "--rbind", f"/{name}", root / name)


def _install(root: Path, backend: str) -> None:
    """Install the clone with the backend's extra: wheels only, in the pinned versions."""
    for name in COPIED:
        source, target = CLONE / name, root / "dlguide" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
    if not (root / "venv").exists():
        _run("chroot", root, "python3", "-m", "venv", "/venv")
    pip = ("/venv/bin/python", "-m", "pip", "install", "--no-compile", "--only-binary=:all:")
    extras = [backend] if backend != "torch" else ["torch", "jax"]  # the second brings Keras
    wanted = f"/dlguide[{','.join(extras)}]"
    _run("chroot", root, *pip, "-c", "/dlguide/constraints.txt", wanted)


def _train(root: Path, backend: str) -> None:
    # qemu has no process_vm_readv, by which MPICH's ranks copy large messages
    names = {"KERAS_BACKEND": backend, "MPIR_CVAR_CH4_CMA_ENABLE": "0", "PYTHONUNBUFFERED": "1"}
    here = ("env", *(f"{name}={value}" for name, value in names.items()))
    program = ("/venv/bin/python", "-m", "mpi4py", "/dlguide/tools/arm64.py", "train")
    _run("chroot", root, *here, "/venv/bin/mpiexec", "-n", "2", *program)


def _run(*words: object) -> None:
    begin = time.monotonic()
    print("+", *words, flush=True)
    subprocess.run([*map(str, words)], check=True)
    print(f"  {time.monotonic() - begin:.0f} s", flush=True)


def train() -> None:
    """Train a net on all ranks in full batches; raise if the weights are not NumPy's.

    Raises:
        AssertionError: if ranks differ, or differ from gradient descent by hand in NumPy.
    """
    begin = time.monotonic()
    import keras
    import numpy as np
    from mpi4py import MPI

    import dlguide.distributed as dd
    from dlguide import machine

    dd.init()
    imported_s = time.monotonic() - begin
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(96, 8)).astype("f4"), draw.normal(size=(96, 1)).astype("f4")
    shapes = ((8, 16), (16,), (16, 1), (1,))
    weights = [draw.normal(size=shape).astype("f4") / 4 for shape in shapes]
    layers = [keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.set_weights(weights)
    model.compile(dd.DistributedOptimizer(keras.optimizers.SGD(RATE)), "mse")
    data = dd.shard(x, y, batch_size=len(x) // dd.size())
    callbacks = [dd.callbacks.Broadcast(), dd.callbacks.SumMetrics()]
    begin = time.monotonic()
    losses = model.fit(data, epochs=STEPS, verbose=0, callbacks=callbacks).history["loss"]
    trained_s = time.monotonic() - begin

    flat = np.concatenate([each.ravel() for each in model.get_weights()])
    everyone = MPI.COMM_WORLD.allgather(flat)
    assert all(np.array_equal(each, flat) for each in everyone), "the ranks' weights differ"
    exact, exact_losses = descend(x.astype("f8"), y.astype("f8"), [w.astype("f8") for w in weights])
    apart = np.abs(flat - np.concatenate([each.ravel() for each in exact])).max()
    assert apart < 1e-5, f"the weights are {apart:.1e} from NumPy's"
    assert np.allclose(losses, exact_losses, rtol=1e-5), (losses, exact_losses)
    if dd.rank() == 0:
        library = MPI.Get_library_version().splitlines()[0]
        print(machine.describe())
        backend = f"Keras {keras.__version__} on {keras.backend.backend()}"
        print(f"{platform.machine()}, {backend}, {library}")
        print(f"{dd.size()} ranks, {STEPS} steps: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print(f"weights equal on all ranks, at most {apart:.1e} from NumPy's in float64")
        print(f"imports {imported_s:.0f} s, training {trained_s:.0f} s")


def descend(x, y, weights):
    """Return weights and losses of gradient descent on the same net, by hand in NumPy."""
    import numpy as np

    w1, b1, w2, b2 = weights
    losses = []
    for _ in range(STEPS):
        hidden = np.tanh(x @ w1 + b1)
        error = hidden @ w2 + b2 - y
        losses.append(float(np.mean(error**2)))
        slope = 2 * error / len(x)
        back = slope @ w2.T * (1 - hidden**2)
        w2, b2 = w2 - RATE * hidden.T @ slope, b2 - RATE * slope.sum(axis=0)
        w1, b1 = w1 - RATE * x.T @ back, b1 - RATE * back.sum(axis=0)
    return (w1, b1, w2, b2), losses


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
