"""A folder with everything that `make setup` takes from the internet.

    make wheelhouse FOLDER=/media/stick/wheelhouse [PYTORCH=1]      fills one
    make setup WHEELHOUSE=/media/stick/wheelhouse                   checks it and sets up from it
    python3 tools/wheelhouse.py check FOLDER                        checks a copy

It holds the pinned wheels, Horovod's wheel and its source, the course as dlguide.tar.gz, the kind
of machine it fits (`machine.json`), and SHA256SUMS, which `sha256sum -c` reads too. `check` runs
when nothing else is installed yet: it needs the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS, MACHINE, CLONE, README = "SHA256SUMS", "machine.json", "dlguide.tar.gz", "README.txt"
AGAIN = "Copy the wheelhouse again."
SHOWN = 5  # damaged files that are named, before the others are counted
NBYTES, NBYTES_PYTORCH = 2_000_000_000, 9_000_000_000  # PyTorch's wheel brings CUDA's libraries
DOWNLOAD_S = 7200.0  # the slow line of a centre must be enough

HOW_TO = """\
Everything that the course takes from the internet, for Python {python} on {machine}.

Copy this folder to the machine without internet, then:

    sha256sum -c SHA256SUMS
    tar xf dlguide.tar.gz -C ~ && cd ~/dlguide
    make setup PYTHON=python{python} WHEELHOUSE=/path/to/this/folder

That machine needs Python {python} with venv, and make. Where its C library is
older than {libc}, g++ adds Horovod.
"""


def this_machine() -> dict[str, str]:
    """Describe the machine that a wheelhouse must fit."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "python": python,
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


def problems(folder: Path, here: dict[str, str]) -> list[str]:
    """List what prevents setting up from a folder, one readable line each."""
    if re.search(r"\s", str(folder)):
        return [f"The path {str(folder)!r} has a space, which pip cannot use. Copy the folder."]
    if not folder.is_dir():
        return [f"There is no folder {folder}. Give the one that `make wheelhouse` has filled."]
    try:
        made = json.loads((folder / MACHINE).read_text())
        lines = (folder / SUMS).read_text().splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        python, machine = made["python"], made["machine"]
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        return [
            f"{folder} has no {missing}: it is no wheelhouse, or its copy is not finished. Fill "
            "one with `make wheelhouse` on a machine with internet, and copy all of it."
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{MACHINE} or {SUMS} in {folder} cannot be read ({error}). {AGAIN}"]
    if (python, machine) != (here["python"], here["machine"]):
        return [
            f"This wheelhouse is for Python {python} on {machine}, got Python {here['python']} on "
            f"{here['machine']}. Run `make setup PYTHON=python{python} WHEELHOUSE=...`, or fill "
            "another with `make wheelhouse` on a machine of this kind."
        ]
    bad = []
    for name, digest in sums.items():
        path = folder / name
        if not path.is_file():
            bad.append(f"{name} is missing from {folder}. {AGAIN}")
        elif sha256(path) != digest:
            bad.append(f"{name} is damaged: its SHA-256 is not that of the original. {AGAIN}")
    more = [f"{len(bad) - SHOWN} more files are missing or damaged."] if len(bad) > SHOWN else []
    return bad[:SHOWN] + more


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fill(folder: Path, pytorch: bool = False) -> Path:
    """Fill a wheelhouse for this Python and machine; a whole one replaces an older one."""
    from dlguide.errors import require
    from dlguide.files import require_writable

    folder = folder.expanduser().absolute()
    ours = not folder.exists() or (folder / SUMS).is_file()
    ours = ours or (folder.is_dir() and not any(folder.iterdir()))
    then = "Name one that does not exist yet."
    require(ours, "folder", "be new, empty or a wheelhouse", str(folder), then)
    spaced = re.search(r"\s", str(folder))
    require(not spaced, "folder", "have no space in its path, which pip cannot use", str(folder))
    require_writable(folder.parent, "folder", NBYTES_PYTORCH if pytorch else NBYTES)
    with tempfile.TemporaryDirectory(prefix=".wheelhouse-", dir=folder.parent) as scratch:
        place = Path(scratch) / "wheels"
        place.mkdir()
        _download(requirements(pytorch), place)
        _add_horovod(place)
        _add_clone(place)
        machine = this_machine()
        (place / MACHINE).write_text(json.dumps(machine) + "\n")
        (place / README).write_text(HOW_TO.format(**machine))
        files = sorted(path for path in place.rglob("*") if path.is_file())
        lines = [f"{sha256(path)}  {path.relative_to(place).as_posix()}\n" for path in files]
        (place / SUMS).write_text("".join(lines))
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        place.rename(folder)
    return folder


def requirements(pytorch: bool = False) -> list[str]:
    """List what setting up asks pip for, with the tools that build Horovod and the packages."""
    from dlguide import install_horovod

    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    course = tomllib.loads((ROOT / "notebooks" / "pyproject.toml").read_text(encoding="utf-8"))
    extras = stated["project"]["optional-dependencies"]
    needed = [*stated["project"]["dependencies"], *course["project"]["dependencies"]]
    wanted = ["tensorflow", "data", "plots", "test", "docs", *(["torch"] if pytorch else [])]
    needed += [line for extra in wanted for line in extras[extra]]
    return [*needed, *stated["build-system"]["requires"], *install_horovod.BUILD_TOOLS]


def _download(wanted: list[str], place: Path) -> None:
    from dlguide import install_horovod

    print("Downloading about 0.7 GB of wheels ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="dlguide-wheels-") as scratch:
        listed = Path(scratch) / "requirements.txt"
        listed.write_text("\n".join(wanted) + "\n")
        pip = [*install_horovod.PIP, "wheel", "--disable-pip-version-check", "-q", "-w", place]
        pinned = ["-c", ROOT / "constraints.txt", "-r", listed]
        install_horovod.run_step([*pip, *pinned], timeout_s=DOWNLOAD_S)


def _add_horovod(place: Path) -> None:
    """Add Horovod's finished wheel, and its source for machines that the wheel does not fit."""
    from dlguide import install_horovod
    from dlguide.errors import MissingComponentError

    mpicc = install_horovod.find_mpicc()
    try:
        wheel = install_horovod.finished_wheel(mpicc)
    except MissingComponentError as error:
        print(f"Horovod's source only: {error}", flush=True)
    else:
        target = place / "horovod" / wheel.parent.name
        target.mkdir(parents=True)
        shutil.copy(wheel, target)
    with tempfile.TemporaryDirectory(prefix="dlguide-source-") as scratch:
        tools = install_horovod.fetch_tools(Path(scratch))
        shutil.copy(install_horovod.fetch_source(Path(scratch), mpicc, tools), place)


def _add_clone(place: Path) -> None:
    """Add the course itself: the files that git tracks, as they are now."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        print("This is no clone of git: copy the course itself too.", flush=True)
        return
    with tarfile.open(place / CLONE, "w:gz") as archive:
        for name in tracked.split("\0"):
            if name and (ROOT / name).is_file():
                archive.add(ROOT / name, f"dlguide/{name}", recursive=False)


def main(arguments: list[str] | None = None) -> int:
    """Fill or check a wheelhouse from the command line."""
    parser = argparse.ArgumentParser("wheelhouse.py")
    parser.add_argument("action", choices=("fill", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pytorch", action="store_true", help="PyTorch too, for lesson 53")
    chosen = parser.parse_args(arguments)
    if chosen.action == "fill":
        try:
            folder = fill(chosen.folder, chosen.pytorch)
        except (ValueError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"Copy {folder}, then there, in a clone: `make setup WHEELHOUSE={folder}`.")
        return 0
    folder, here = chosen.folder.expanduser(), this_machine()
    lines = problems(folder, here)
    sys.stderr.writelines(f"{line}\n" for line in lines)
    if lines:
        return 1
    print(f"{folder}: all files are whole.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
