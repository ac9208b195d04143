"""A folder of wheels from which the course is set up without the internet, held to this machine.

`make wheelhouse` fills one; `make setup WHEELHOUSE=/path` runs this file by its path before it
takes anything from there, when nothing else is installed yet: it may import the standard library
only. `python3 dlguide/wheelhouse.py /path` looks at a copy, on a stick or on the machine itself.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "wheelhouse.json"
FORMAT = 1
HOROVOD = "horovod"  # the folder of its finished wheels, each below the name of what it is for
BLOCK_BYTES = 1 << 20
SHOWN = 5  # damaged files that are named, before the others are counted


def here() -> dict[str, str]:
    """Describe the machine that a wheelhouse must fit."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


def complaints(
    folder: Path, pins: Path | None = None, machine: Mapping[str, str] | None = None
) -> list[str]:
    """List what keeps a wheelhouse from being used here, one readable line each.

    Every file is read and held against its SHA-256.
    """
    place = str(folder)
    if re.search(r"\s", place):
        return [f"The path {place!r} has a space, which pip breaks on. Copy the folder elsewhere."]
    if not folder.is_dir():
        return [f"There is no folder {place}. Give the one that `make wheelhouse` has filled."]
    try:
        manifest = read(folder)
    except FileNotFoundError:
        return [
            f"{place} holds no {MANIFEST}: it is no wheelhouse, or its copy is not finished."
            " Fill one with `make wheelhouse` on a machine with the internet, and copy all of it."
        ]
    except (OSError, ValueError) as error:
        return [f"{folder / MANIFEST} cannot be read ({error}). {_AGAIN}"]
    found = [*_machine(manifest, here() if machine is None else machine)]
    if pins is not None and not found:
        found += _pins(manifest, pins.read_text(encoding="utf-8"))
    return [*found, *_files(folder, manifest["files"])]


_AGAIN = "Copy the wheelhouse again."


def read(folder: Path) -> dict[str, Any]:
    """Read what a wheelhouse says of itself.

    Args:
        folder: the wheelhouse.

    Returns:
        dict: `format`, `python`, `machine`, `libc`, `pins` (package: version) and `files`
        (path below the folder: bytes and SHA-256).

    Raises:
        FileNotFoundError: when it holds no manifest.
        ValueError: when its manifest is damaged or of another format.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError("it holds no text") from error
    texts, tables = ("python", "machine", "libc"), ("pins", "files")
    whole = (
        isinstance(manifest, dict)
        and manifest.get("format") == FORMAT
        and all(isinstance(manifest.get(name), str) for name in texts)
        and all(isinstance(manifest.get(name), dict) for name in tables)
        and all(_is_entry(name, entry) for name, entry in manifest["files"].items())
    )
    if not whole:
        raise ValueError(f"it is no manifest of format {FORMAT}")
    return manifest


def _is_entry(name: str, entry: Any) -> bool:
    """Whether it names a file below the folder, its size and its checksum."""
    inside = not name.startswith("/") and ".." not in name.split("/")
    return (
        inside
        and isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
    )


def _machine(manifest: Mapping[str, Any], machine: Mapping[str, str]) -> list[str]:
    made = f"This wheelhouse is for Python {manifest['python']} on {manifest['machine']}"
    if manifest["machine"] != machine["machine"]:
        return [
            f"{made}, this machine is {machine['machine']}."
            " Fill another with `make wheelhouse` on a machine of its kind."
        ]
    if manifest["python"] != machine["python"]:
        return [
            f"{made}, got Python {machine['python']}. Run"
            f" `make setup PYTHON=python{manifest['python']} WHEELHOUSE=...`, or fill another by"
            f" `make wheelhouse` in a clone with `make setup PYTHON=python{machine['python']}`."
        ]
    needed, there = glibc_needed(manifest["files"]), _version(machine["libc"])
    if needed > there:
        first = next(name for name in manifest["files"] if _glibc_of(name) == needed)
        words = ".".join(map(str, needed))
        return [
            f"{first} needs glibc {words} or later, this machine has {machine['libc']}."
            " Fill another with `make wheelhouse` on a system as old as this one."
        ]
    return []


def glibc_needed(files: Mapping[str, Any]) -> tuple[int, ...]:
    """Find the C library that the wheels were made for."""
    return max((_glibc_of(name) for name in files), default=(0,))


def _glibc_of(name: str) -> tuple[int, ...]:
    """The least that a wheel's name asks for, such as manylinux_2_28; (0,) for nothing."""
    versions = re.findall(r"manylinux_(\d+)_(\d+)_", name)
    return min(((int(major), int(minor)) for major, minor in versions), default=(0,))


def _version(libc: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", libc)) or (0,)


def parse_pins(text: str) -> dict[str, str]:
    """Read the lines `package==version` of a constraints file."""
    lines = (line.split("#")[0].split(";")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if line.count("==") == 1)
    return {_normal(name): version.strip() for name, version in pairs}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()


def _pins(manifest: Mapping[str, Any], text: str) -> list[str]:
    """Say which packages the clone wants in another version than the wheelhouse has."""
    has, wants = manifest["pins"], parse_pins(text)
    unlike = [
        f"{name} {has[name]} instead of {wants[name]}"
        for name in sorted(has)
        if name in wants and has[name] != wants[name]
    ]
    if not unlike:
        return []
    told = ", ".join(unlike[:SHOWN]) + (" and more" if len(unlike) > SHOWN else "")
    return [
        f"The wheelhouse was filled for another state of the course: {told}. Take the clone that"
        " lies in it as dlguide.tar.gz, or fill it again with `make wheelhouse`."
    ]


def _files(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """Name the files that are missing or damaged."""
    bad = []
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            bad.append(f"{name} is missing from {folder}.")
        elif path.stat().st_size != entry["bytes"]:
            size, whole = path.stat().st_size, entry["bytes"]
            bad.append(f"{name} is damaged: it holds {size} bytes of {whole}.")
        else:
            try:
                good = sha256(path) == entry["sha256"]
            except OSError as error:
                bad.append(f"{name} cannot be read ({error.strerror}).")
                continue
            if not good:
                bad.append(f"{name} is damaged: its SHA-256 is not the one it was filled with.")
    more = [f"{len(bad) - SHOWN} more files are missing or damaged."] if len(bad) > SHOWN else []
    return [f"{line} {_AGAIN}" for line in [*bad[:SHOWN], *more]]


def sha256(path: Path) -> str:
    """Compute a file's checksum, piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def horovod_wheels(folder: Path) -> list[Path]:
    """List the finished wheels of Horovod in a wheelhouse."""
    return sorted((folder / HOROVOD).glob("*/horovod-*.whl"))


def needs_compiler(folder: Path) -> bool:
    """Tell whether Horovod must be built here although a wheelhouse is used.

    A finished wheel works with the C library it was built with or a later one.
    """
    built = read(folder)["libc"]
    return not horovod_wheels(folder) or _version(built) > _version(here()["libc"])


def main(arguments: list[str]) -> int:
    """Look at a wheelhouse from the command line."""
    if not 1 <= len(arguments) <= 2:
        print("usage: python3 dlguide/wheelhouse.py FOLDER [CONSTRAINTS]", file=sys.stderr)
        return 2
    folder = Path(arguments[0]).expanduser()
    lines = complaints(folder, Path(arguments[1]) if arguments[1:] else None)
    sys.stderr.writelines(f"{line}\n" for line in lines)
    if lines:
        return 1
    total = sum(entry["bytes"] for entry in read(folder)["files"].values())
    print(f"{folder}: {len(read(folder)['files'])} files, {total / 1e9:.2f} GB, all whole.")
    return 3 if needs_compiler(folder) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
