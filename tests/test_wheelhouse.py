"""A wheelhouse: what does not fit or is not whole is named before anything is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dlcourse import execution
from dlguide import install_horovod
from dlguide.errors import MissingComponentError

ROOT = Path(__file__).resolve().parents[1]
_SPEC = importlib.util.spec_from_file_location("wheelhouse", ROOT / "tools" / "wheelhouse.py")
wheelhouse = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(wheelhouse)
HERE = {"python": "3.11", "machine": "x86_64", "libc": "glibc 2.36"}


WHEEL = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(folder: Path, name: str = "tiny", version: str = "1.0", text: str = ""):
    """Write a wheel that pip installs."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text or f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", WHEEL)
        archive.writestr(f"{info}/RECORD", "")
    return path


def describe(folder: Path, **changes) -> Path:
    """Write the checksums of a folder, as it is now, and the machine that it fits."""
    (folder / "machine.json").write_text(json.dumps({**HERE, **changes}))
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


@pytest.fixture
def house(tmp_path):
    folder = tmp_path / "wheels"
    wheel(folder)
    wheel(folder / "horovod" / "horovod0.28.1-cp311", "horovod", "0.28.1")
    return describe(folder)


def test_what_is_wrong_with_a_wheelhouse_is_named(tmp_path, house):
    def problem(folder=house, **changes):
        (line,) = wheelhouse.problems(folder, HERE | changes)
        return line

    assert wheelhouse.problems(house, HERE) == []
    assert "There is no folder" in problem(tmp_path / "none")
    assert "it is no wheelhouse" in problem(tmp_path)
    assert "has a space" in problem(tmp_path / "a stick")
    another = problem(python="3.12")
    assert "is for Python 3.11 on x86_64, got Python 3.12 on x86_64" in another
    assert "`make setup PYTHON=python3.11 WHEELHOUSE=...`" in another
    path = house / "tiny-1.0-py3-none-any.whl"
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)
    assert f"{path.name} is damaged: its SHA-256" in problem()
    path.unlink()
    assert f"{path.name} is missing" in problem()
    (house / "machine.json").write_text("[1]")
    assert "cannot be read" in problem()


# --- filling one -------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A place from which pip takes a small package, and a Horovod that is none."""
    place = tmp_path / "index"
    wheel(place)
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wheelhouse, "requirements", lambda pytorch: ["tiny>=1"])
    built = wheel(tmp_path / "cache" / "horovod0.28.1-cp311", "horovod", "0.28.1")
    monkeypatch.setattr(install_horovod, "finished_wheel", lambda mpicc: built)
    monkeypatch.setattr(install_horovod, "fetch_tools", lambda scratch: scratch)

    def fetch_source(scratch, mpicc, tools):
        (scratch / "horovod-0.28.1.tar.gz").write_text("source")
        return scratch / "horovod-0.28.1.tar.gz"

    monkeypatch.setattr(install_horovod, "fetch_source", fetch_source)
    return place


def test_filled_wheelhouse_is_whole_and_holds_the_course(sources, tmp_path):
    folder = wheelhouse.fill(tmp_path / "new" / "wheels")
    assert wheelhouse.problems(folder, wheelhouse.this_machine()) == []
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {
        *("tiny-1.0-py3-none-any.whl", "horovod-0.28.1.tar.gz", "SHA256SUMS"),
        *("README.txt", "machine.json", "dlguide.tar.gz"),
        "horovod/horovod0.28.1-cp311/horovod-0.28.1-py3-none-any.whl",
    }
    with tarfile.open(folder / "dlguide.tar.gz") as archive:
        held = set(archive.getnames())
    assert {"dlguide/Makefile", "dlguide/notebooks/00_start_here.ipynb"} <= held
    assert not [name for name in held if name.startswith(("dlguide/.venv", "dlguide/build/"))]


def test_without_a_compiler_a_wheelhouse_has_horovods_source_alone(sources, tmp_path, monkeypatch):
    def lacks(mpicc):
        raise MissingComponentError("g++ is needed to build Horovod.")

    monkeypatch.setattr(install_horovod, "finished_wheel", lacks)
    folder = wheelhouse.fill(tmp_path / "wheels")
    assert wheelhouse.problems(folder, wheelhouse.this_machine()) == []
    assert (folder / "horovod-0.28.1.tar.gz").is_file()
    assert not (folder / "horovod").exists()


def test_full_wheelhouse_is_replaced_and_anything_else_is_not(sources, tmp_path, monkeypatch):
    folder = wheelhouse.fill(tmp_path / "wheels")
    (sources / "tiny-1.0-py3-none-any.whl").unlink()
    wheel(sources, version="2.0")
    wheelhouse.fill(folder)
    assert [path.name for path in folder.glob("tiny*")] == ["tiny-2.0-py3-none-any.whl"]
    monkeypatch.setattr(wheelhouse, "requirements", lambda pytorch: ["no-such-package"])
    with pytest.raises(RuntimeError, match="no-such-package"):
        wheelhouse.fill(folder)
    assert wheelhouse.problems(folder, wheelhouse.this_machine()) == []
    assert not list(tmp_path.glob(".wheelhouse-*"))
    own = tmp_path / "photos"
    own.mkdir()
    (own / "me.jpg").write_text("x")
    with pytest.raises(ValueError, match="`folder` must be new, empty or a wheelhouse"):
        wheelhouse.fill(own)


# --- Horovod from one --------------------------------------------------------------------------


def test_horovod_of_a_wheelhouse_is_tried_when_the_cache_has_none(tmp_path, monkeypatch):
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    mpicc = install_horovod.find_mpicc()
    key = install_horovod.cache_key(mpicc)
    monkeypatch.delenv("DLGUIDE_WHEELHOUSE", raising=False)
    assert install_horovod._finished(mpicc, False) == []
    monkeypatch.setenv("DLGUIDE_WHEELHOUSE", str(tmp_path / "wheels"))
    libc = wheelhouse.this_machine()["libc"].replace(" ", "")
    older = wheel(tmp_path / "wheels" / "horovod" / key.replace(libc, "glibc2.28"), "horovod")
    wheel(tmp_path / "wheels" / "horovod" / key.replace("-cp3", "-cp4"), "horovod")
    assert install_horovod._finished(mpicc, False) == [older]


# --- make setup --------------------------------------------------------------------------------


BUILDER = f"""
import tomllib, zipfile
def build_editable(folder, config=None, metadata=None):
    with open("pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]["name"]
    name = f"{{project}}-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{{folder}}/{{name}}", "w") as archive:
        archive.writestr(f"{{project}}-1.dist-info/METADATA",
            f"Metadata-Version: 2.1\\nName: {{project}}\\nVersion: 1\\nRequires-Dist: tiny\\n"
            "Provides-Extra: test\\n")
        archive.writestr(f"{{project}}-1.dist-info/WHEEL", {WHEEL!r})
        archive.writestr(f"{{project}}-1.dist-info/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = ["builder"]
build-backend = "builder"
[project]
version = "1"
name = "{}"
"""


@pytest.fixture
def clone(tmp_path):
    """A course in small: its own Makefile, one dependency, a Horovod that only notes down."""
    folder = tmp_path / "clone"
    for name in ("dlguide", "tools", "notebooks"):
        (folder / name).mkdir(parents=True)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    for name in ("Makefile", "dlguide/preflight.py", "tools/wheelhouse.py"):
        shutil.copy(ROOT / name, folder / name)
    noting = "import os, tiny\nprint('tiny', tiny.VERSION, os.environ['DLGUIDE_WHEELHOUSE'])\n"
    for name, text in {
        "dlguide/__init__.py": "",
        "dlguide/install_horovod.py": "",
        "dlguide/__main__.py": noting,
        "constraints.txt": "tiny==1.0\n",
        "pyproject.toml": PROJECT.format("small"),
        "notebooks/pyproject.toml": PROJECT.format("course"),
    }.items():
        (folder / name).write_text(text)
    return folder


def setup(clone: Path, folder: Path, *words: str):
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("MAKE", "PIP_"))}
    command = [*execution.network_cutter(), shutil.which("make"), "setup", f"WHEELHOUSE={folder}"]
    return subprocess.run(
        [*command, f"PYTHON={sys.executable}", *words],
        cwd=clone, env=kept, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.fixture
def small(tmp_path):
    folder = tmp_path / "wheels"
    wheel(folder)
    wheel(folder, version="2.0")
    wheel(folder, "builder", text=BUILDER)
    return describe(folder, **wheelhouse.this_machine())


def test_setup_takes_everything_from_the_wheelhouse_with_the_network_cut(clone, small):
    done = setup(clone, small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tiny 1.0 {small}" in done.stdout
    assert "Looking in indexes" not in done.stdout
    assert f"packages from {small}" in done.stdout
    assert (clone / ".venv" / "horovod").exists()
    shutil.rmtree(clone / ".venv")
    (small / "tiny-1.0-py3-none-any.whl").write_bytes(b"PK")
    done = setup(clone, small)
    assert done.returncode != 0
    assert "tiny-1.0-py3-none-any.whl is damaged: its SHA-256" in done.stderr
    assert not (clone / ".venv").exists()


def test_setup_from_a_wheelhouse_needs_no_compiler(clone, small, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "make", "cat", "dirname", "grep", "sed", "touch", "printf", "rm"):
        (bare / name).symlink_to(shutil.which(name))
    # the shell of a recipe looks into PATH, the network cutter has its full path
    done = setup(clone, small, f"PATH={bare}")
    assert done.returncode == 0, done.stdout + done.stderr
