"""Fill a wheelhouse: all that setting up takes from the internet, in one folder.

It holds the pinned wheels, Horovod's finished wheel and what it is built from where that one does
not fit, the course itself as dlguide.tar.gz, and a manifest with every file's checksum.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from dlguide import build_horovod, commands, install_horovod, wheelhouse
from dlguide.errors import MissingComponentError, require
from dlguide.files import require_writable

ROOT = Path(__file__).resolve().parents[1]
CLONE = "dlguide.tar.gz"
README = "README.txt"
CHECK = "check.py"
ROOM = 2_000_000_000  # the folder, and the wheels while pip still has them in its own (bytes)
ROOM_PYTORCH = 9_000_000_000  # PyTorch's wheel for Linux brings CUDA's libraries
DOWNLOAD_S = 7200.0  # a slow line at a centre must do

HOW_TO = """\
All that the course takes from the internet, for Python {python} on {machine} with {libc} or later.

Copy this folder to the machine without the internet, then:

    python{python} {check} .
    tar xf {clone} -C ~ && cd ~/dlguide
    make setup PYTHON=python{python} WHEELHOUSE=/path/to/this/folder

The machine itself must have Python {python} with venv, and make; g++ where its C library is older
than the one above.
"""


def fill(folder: str | os.PathLike[str], pytorch: bool = False) -> Path:
    """Fill a wheelhouse for this Python and this machine; one that was there is replaced.

    Horovod's wheel comes from the cache or is built. Everything is gathered beside the folder and
    put in its place when it is whole.
    """
    folder = Path(folder).expanduser().absolute()
    _require_replaceable(folder)
    require_writable(folder.parent, "folder", ROOM_PYTORCH if pytorch else ROOM)
    wanted = requirements(pytorch)
    with tempfile.TemporaryDirectory(prefix=".wheelhouse-", dir=folder.parent) as scratch:
        place = Path(scratch) / "wheels"
        place.mkdir()
        _download(wanted, place)
        _horovod(place)
        _clone(place)
        _describe(place)
        lines = wheelhouse.complaints(place, ROOT / "constraints.txt")
        if lines:
            raise RuntimeError("\n".join(["The wheelhouse is not whole.", *lines]))
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        place.rename(folder)
    return folder


def _require_replaceable(folder: Path) -> None:
    """Refuse to replace a folder that was filled by something else."""
    ours = not folder.exists() or (
        folder.is_dir() and ((folder / wheelhouse.MANIFEST).is_file() or not any(folder.iterdir()))
    )
    then = "Name one that does not exist yet."
    require(ours, "folder", "be new, empty or a wheelhouse", str(folder), then)
    spaced = any(sign.isspace() for sign in str(folder))
    require(not spaced, "folder", "have no space in its path, pip breaks on it", str(folder))


def requirements(pytorch: bool = False) -> list[str]:
    """List what setting up asks pip for, with the tools that build Horovod and this package."""
    project = ROOT / "pyproject.toml"
    if not (project.is_file() and (ROOT / "constraints.txt").is_file()):
        raise MissingComponentError(
            "A wheelhouse is filled from a clone of the repository: `make wheelhouse` there."
        )
    stated = tomllib.loads(project.read_text(encoding="utf-8"))
    course = tomllib.loads((ROOT / "notebooks" / "pyproject.toml").read_text(encoding="utf-8"))
    extras = stated["project"]["optional-dependencies"]
    needed = [*stated["project"]["dependencies"], *course["project"]["dependencies"]]
    needed += [*extras["test"], *extras["docs"]]
    needed += extras["pytorch"] if pytorch else []
    return [*needed, *stated["build-system"]["requires"], *build_horovod.BUILD_TOOLS]


def _download(wanted: list[str], place: Path) -> None:
    """Have pip gather wheels of all requirements and of what they require."""
    print("Downloading about 0.7 GB of wheels ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="dlguide-wheels-") as scratch:
        listed = Path(scratch) / "requirements.txt"
        listed.write_text("\n".join(wanted) + "\n")
        pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q"]
        pinned = ["-c", ROOT / "constraints.txt", "-r", listed]
        build_horovod.run_step([*pip, "-w", place, *pinned], timeout_s=DOWNLOAD_S)


def _horovod(place: Path) -> None:
    """Put in Horovod's finished wheel, and its source for machines that it does not fit."""
    mpicc = install_horovod.find_mpicc()
    wheel = install_horovod.finished_wheel(mpicc)
    target = place / wheelhouse.HOROVOD / wheel.parent.name
    target.mkdir(parents=True)
    shutil.copy(wheel, target)
    with tempfile.TemporaryDirectory(prefix="dlguide-horovod-") as scratch:
        tools = build_horovod.fetch_tools(Path(scratch))
        shutil.copy(build_horovod.fetch_source(Path(scratch), mpicc, tools), place)


def _clone(place: Path) -> None:
    """Put in the course itself, the files that git knows, as they are now."""
    listed = None
    if shutil.which("git"):
        listed = commands.run(["git", "-C", ROOT, "ls-files", "-z"], timeout_s=60)
    if listed is None or not listed.ok or not listed.output:
        print("This is no clone of git: the course itself is left out, copy it too.", flush=True)
        return
    with tarfile.open(place / CLONE, "w:gz") as archive:
        for name in listed.output.split("\0"):
            if name and (ROOT / name).is_file():
                archive.add(ROOT / name, f"dlguide/{name}", recursive=False)


def _describe(place: Path) -> None:
    """Write what the wheelhouse is for, the instructions and every file's checksum."""
    shutil.copy(ROOT / "dlguide" / "wheelhouse.py", place / CHECK)
    machine = wheelhouse.here()
    least = ".".join(map(str, wheelhouse.glibc_needed(dict.fromkeys(os.listdir(place)))))
    words = machine | {"libc": f"glibc {least}", "clone": CLONE, "check": CHECK}
    (place / README).write_text(HOW_TO.format(**words))
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    files = {
        path.relative_to(place).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": wheelhouse.sha256(path),
        }
        for path in paths
    }
    pins = wheelhouse.parse_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    manifest = {"format": wheelhouse.FORMAT, **machine, "pins": pins, "files": files}
    (place / wheelhouse.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
