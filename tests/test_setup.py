"""Setting up: pins that agree with each other, and what is missing said before any download."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from dlguide import install_horovod, preflight

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COURSE = tomllib.loads((ROOT / "notebooks" / "pyproject.toml").read_text())["project"]
PYTHONS = ("3.11", "3.12", "3.13")
# MPICH there has the version that conda-forge's Horovod was built for; hypothesis makes a new
# minor version every few days.
FREE_IN_CONDA = {"mpich", "hypothesis"}
# Under conda-forge's names; the server comes with the lab in both worlds.
CONDA_NAMES = {"matplotlib": "matplotlib-base", "jupyter-server": "jupyter-server"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints(python):
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            each = Requirement(line)
            if each.marker is None or each.marker.evaluate({"python_version": python}):
                assert normal(each.name) not in found, f"{each.name} twice for Python {python}"
                found[normal(each.name)] = each
    return found


def dependencies():
    lines = [*PROJECT["dependencies"], *COURSE["dependencies"], *extra("test"), *extra("docs")]
    return [Requirement(line) for line in lines]


def extra(name):
    return PROJECT["optional-dependencies"][name]


# --- pins --------------------------------------------------------------------------------------


def test_constraints_are_exact_sorted_and_name_neither_us_nor_horovod():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.match(r"^[\w.-]+==[\w.+]+( ; .*)?$", line) for line in pins)
    assert pins == sorted(pins, key=lambda line: normal(line.split("=")[0]))
    assert not {"horovod", "dlguide"} & set(constraints("3.11"))
    assert not re.search(r"@|://|^-", "\n".join(pins), re.M)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    "needed",
    [*dependencies(), *map(Requirement, extra("pytorch"))],
    ids=lambda needed: needed.name,
)
def test_every_dependency_is_pinned_to_a_version_that_it_allows(needed, python):
    pin = constraints(python)[normal(needed.name)]
    version = str(pin.specifier).removeprefix("==")
    assert needed.specifier.contains(version), f"{pin} is not {needed}"


def test_every_installed_package_is_pinned():
    # What the test environment holds came through the constraints, so nothing may be left out.
    pinned = {
        name: str(pin.specifier).removeprefix("==")
        for name, pin in constraints(f"3.{sys.version_info.minor}").items()
    }
    drawn = {normal(name) for extra in ("test", "docs") for name in _closure("dlguide", extra)}
    if importlib.util.find_spec("torch"):
        # what PyTorch's builds for GPUs bring along is theirs to choose
        optional = {normal(name) for name in _closure("dlguide", "pytorch")}
        drawn |= {name for name in optional if not name.startswith(("cuda", "nvidia", "triton"))}
    for name in sorted(drawn - {"dlguide", "horovod"}):
        assert name in pinned, f"{name} is not pinned"
        assert metadata.version(name).split("+")[0] == pinned[name], name


def _closure(root, extra):
    seen, waiting = set(), [(root, extra)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in metadata.requires(name) or []:
            each = Requirement(line)
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(each.name, wanted) for wanted in ("", *each.extras)]
    return {name for name, _ in seen}


def test_build_tools_of_horovod_are_the_pinned_ones():
    pins = {str(pin).split(" ;")[0] for pin in constraints("3.11").values()}
    assert set(install_horovod.BUILD_TOOLS) <= pins
    setuptools = str(constraints("3.11")["setuptools"].specifier).removeprefix("==")
    assert Version(setuptools) < Version("81")


def test_every_dependency_says_why_it_is_there():
    text = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[0]
    text += (ROOT / "notebooks" / "pyproject.toml").read_text()
    lines = re.findall(r'^    "([\w.-]+)[^"]*".*$', text, re.M)
    assert len(lines) == len(dependencies()) + len(extra("pytorch"))
    told = re.findall(r'^    "([\w.-]+)[^"]*",\s+# \S.*$', text, re.M)
    assert set(lines) == set(told)


# --- environment.yml ---------------------------------------------------------------------------


def conda():
    """Versions by normalised name in environment.yml, what pip installs included."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())
    found = {}
    for entry in listed["dependencies"]:
        for line in entry["pip"] if isinstance(entry, dict) else [entry]:
            name, *version = [part for part in line.split("=") if part]
            found[normal(name)] = version[0] if version else ""
    return listed, found


def test_conda_takes_everything_from_one_channel():
    listed, _ = conda()
    assert listed["channels"] == ["conda-forge", "nodefaults"]
    assert listed["name"] == "dlguide"


def test_conda_versions_are_those_of_the_constraints():
    _, found = conda()
    pins = constraints("3.12")
    assert found.pop("python") == "3.12"
    assert found.pop("horovod") == install_horovod.HOROVOD_VERSION
    assert found.pop("pip") == ""
    for name, version in found.items():
        pin = next(pins[each] for each in (name, name.removesuffix("-base")) if each in pins)
        pinned = str(pin.specifier).removeprefix("==")
        if name in FREE_IN_CONDA:
            assert version in ("", pinned.split(".")[0])
        else:
            assert pinned == version or pinned.startswith(f"{version}."), f"{name} {version}"


def test_conda_has_every_dependency():
    _, found = conda()
    for needed in dependencies():
        if needed.marker is None or needed.marker.evaluate({"platform_machine": "x86_64"}):
            name = normal(needed.name)
            assert CONDA_NAMES.get(name, name) in found, f"{name} is not in environment.yml"


# --- make --------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path):
    """The files of a clone that setting up reads, in a folder of their own."""
    folder = tmp_path / "clone"
    (folder / "dlguide").mkdir(parents=True)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "notebooks").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "notebooks/pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("preflight.py", "install_horovod.py"):
        shutil.copy(ROOT / "dlguide" / name, folder / "dlguide")
    return folder


def path_without(tmp_path, *missing):
    """A PATH with what a fresh machine has, but for some programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = ("sh", "make", "g++", "cat", "dirname", "grep", "sed", "expand", "uname", "as", "ld")
    for name in programs:
        if name not in missing and shutil.which(name):
            (folder / name).symlink_to(shutil.which(name))
    if "python3" not in missing:
        (folder / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    return str(folder)


def make(clone, *arguments, path=None):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    env.pop("PYTHON", None)
    return subprocess.run(
        [shutil.which("make"), *arguments],
        cwd=clone,
        env={**env, "PATH": path or env["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
    )


def said(done):
    """What it wrote to standard error, without make's own last line."""
    return [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]


def test_setup_without_gcc_says_so_in_one_line_before_any_download(clone, tmp_path):
    done = make(clone, "setup", path=path_without(tmp_path, "g++"))
    assert done.returncode != 0
    (line,) = said(done)
    assert line.startswith("g++ is needed to build Horovod and is not on the PATH.")
    assert "sudo apt-get install g++" in line
    assert "pip" not in done.stdout
    assert not (clone / ".venv").exists()


def test_setup_with_an_old_python_says_which_are_good(clone, tmp_path):
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo Python 3.8.18;; *) exit 1;; esac\n')
    old.chmod(0o755)
    done = make(clone, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    (line,) = said(done)
    assert line.startswith(f"Python 3.11, 3.12 or 3.13 is needed, `{old}` is Python 3.8.18.")
    assert "make setup PYTHON=" in line
    assert not (clone / ".venv").exists()


def test_setup_without_any_python_says_so(clone, tmp_path):
    done = make(clone, "setup", path=path_without(tmp_path, "python3"))
    assert done.returncode != 0
    (line,) = said(done)
    assert "`python3` is not a Python that runs" in line


def test_setup_in_a_path_with_a_space_says_so(clone):
    spaced = clone.parent / "my clone"
    clone.rename(spaced)
    done = make(spaced, "setup", f"PYTHON={sys.executable}")
    assert done.returncode != 0
    (line,) = said(done)
    assert "has a space" in line


def test_python_that_makes_no_environments_is_told_what_to_install(clone, tmp_path):
    bare = tmp_path / "python3"
    bare.write_text(
        f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    bare.chmod(0o755)
    hidden = clone / "dlguide" / "preflight.py"
    hidden.write_text(hidden.read_text().replace('"venv", "ensurepip"', '"venv", "nopip"'))
    done = make(clone, "setup", f"PYTHON={bare}")
    assert done.returncode != 0
    (line,) = said(done)
    assert "cannot make environments" in line
    assert f"python3.{sys.version_info.minor}-venv" in line


def stamped(clone):
    """An environment as a finished setup leaves it."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (clone / ".venv" / "packages").write_text(str(clone))
    (clone / ".venv" / "horovod").touch()


def test_second_setup_does_nothing(clone):
    stamped(clone)
    assert make(clone, "-q", "setup").returncode == 0


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "constraints.txt", "dlguide/install_horovod.py"]
)
def test_setup_runs_again_when_what_it_reads_has_changed(clone, name):
    stamped(clone)
    later = (clone / ".venv" / "horovod").stat().st_mtime + 10
    os.utime(clone / name, (later, later))
    assert make(clone, "-q", "setup").returncode == 1
    assert "make_venv" in make(clone, "-n", "setup").stdout or name.startswith("dlguide")
    assert '[ -n "FORCE" ]' not in make(clone, "-n", "setup").stdout


def moved(clone):
    clone.rename(clone.with_name("moved"))
    return clone.with_name("moved")


def interrupted(clone):
    (clone / ".venv" / "packages").unlink()
    return clone


def without_python(clone):
    (clone / ".venv" / "bin" / "python").unlink()
    (clone / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    return clone


@pytest.mark.parametrize("harm", [moved, interrupted, without_python])
def test_setup_makes_a_broken_environment_anew(clone, harm):
    stamped(clone)
    place = harm(clone)
    assert make(place, "-q", "setup").returncode == 1
    assert '[ -n "FORCE" ]' in make(place, "-n", "setup").stdout


# A Python whose environments are links to it and whose pip takes a minute, with a child.
SLOW = f"""#!/bin/sh
case "$*" in
    *watched*) exec {sys.executable} "$@";;
    *"-m pip"*) mktemp >/dev/null; sleep 618 & sleep 618;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python;;
    *) exec {sys.executable} "$@";;
esac
"""


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "SIGKILL"])
def test_ended_setup_leaves_nothing_behind(clone, tmp_path, how):
    slow, before = tmp_path / "slow", set(os.listdir(clone))
    slow.write_text(SLOW)
    slow.chmod(0o755)
    env = {**os.environ, "DLGUIDE_PROGRESS_S": "0.6", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    making = subprocess.Popen(
        [shutil.which("make"), "setup", f"PYTHON={slow}"], cwd=clone, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        lines = iter(making.stdout.readline, "")
        assert any(re.match(r"  \d+ s, 0 packages", line) for line in lines)
        family = psutil.Process(making.pid).children(recursive=True)
        assert sum("sleep" in each.name() for each in family) == 2
        assert os.listdir(clone / ".venv" / "tmp")
        if how == "Ctrl-C":
            os.killpg(making.pid, signal.SIGINT)
        else:
            making.send_signal(getattr(signal, how))
        making.wait(timeout=30)
        assert psutil.wait_procs(family, timeout=30)[1] == []
    finally:
        making.kill()
        making.stdout.close()
    assert set(os.listdir(clone)) == before
    assert os.listdir(tmp_path / "tmp") == []


def test_watched_step_that_fails_in_a_finished_environment_keeps_it(clone):
    stamped(clone)
    command = [sys.executable, "-I", clone / ".ci" / "watched", ".venv", "sh", "-c", "exit 5"]
    assert subprocess.run(command, cwd=clone).returncode == 5
    assert sorted(os.listdir(clone / ".venv")) == ["bin", "horovod", "packages"]
    command.insert(3, "--remove")
    assert subprocess.run(command, cwd=clone).returncode == 5
    assert not (clone / ".venv").exists()


def test_help_lists_every_command(clone):
    done = make(clone)
    assert done.returncode == 0
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    told = re.findall(r"^  make ([\w-]+) +\S", done.stdout, re.M)
    assert set(told) == set(targets) - {"FORCE"}


def test_ci_calls_the_test_command_in_the_repository(tmp_path):
    for name in ("make", "apt-get"):
        fake = tmp_path / name
        fake.write_text(f'#!/bin/sh\necho "$PWD: {name} $*"\n')
        fake.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout == f"{ROOT}: make pytorch\n{ROOT}: make test\n"


# --- preflight ---------------------------------------------------------------------------------


def test_this_machine_has_what_is_needed(tmp_path):
    assert preflight.missing(tmp_path) == []


def test_full_disk_is_told_with_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10, 9, 5 * 10**8)
    )
    lines = preflight.missing(tmp_path)
    assert len(lines) == 2
    assert lines[0].startswith(f"4 GB of free disk are needed in {tmp_path}, got 0.5.")
    assert "TMPDIR" in lines[1]


def test_all_that_is_missing_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = preflight.missing(tmp_path)
    assert [line.split()[0] for line in lines] == ["g++", "make"]


def test_system_without_glibc_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    assert preflight.missing(tmp_path)[0].startswith("Linux with glibc is needed")


def test_hooks_are_local():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    entries = [hook["entry"].split()[2] for hook in hooks["repos"][0]["hooks"]]
    assert entries == ["ruff", "ruff", "nbstripout"]
