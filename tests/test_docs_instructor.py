"""The instructor's page: its tables are computed, its commands and links exist, its app starts."""

from __future__ import annotations

import itertools
import json
import os
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
import typer
import yaml

from dlguide import doctor, preflight
from dlguide.cli.app import app
from dlguide.doctor import surroundings, timetables

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "instructor.md").read_text()
sys.path.insert(0, str(DOCS))
import times  # noqa: E402  it is no module of the package

LESSONS = times.lessons()


# --- tables ------------------------------------------------------------------------------------


def test_tables_are_those_that_the_run_times_give():
    assert times.render(PAGE, times.load()) == PAGE, "run `.venv/bin/python docs/times.py`"
    assert set(re.findall(r"<!-- table: ([a-z ]+) -->", PAGE)) == {
        *("rule", "lessons"),
        *timetables.PLANS,
    }


def test_run_times_have_a_row_for_every_lesson():
    rows = times.TIMES.read_text().splitlines()
    assert rows[0] == ",".join(times.COLUMNS)
    assert [row.split(",")[0] for row in rows[1:]] == [path.stem for path in LESSONS]


def test_timetables_fit_at_the_measured_run_times():
    taken = times.load()
    run_s = {path.stem[:2]: times.run_s(path, taken) for path in LESSONS}
    for plan in timetables.PLANS:
        assert timetables.fit(plan, run_s) == ("fits", [])


def test_every_lesson_stands_in_its_table():
    for path in LESSONS:
        assert f"](../notebooks/{path.name})" in PAGE


def test_run_times_are_taken_from_runs_of_the_present_text(tmp_path, monkeypatch):
    source = LESSONS[0]
    ran = json.loads(source.read_text())
    second = 0
    for cell in ran["cells"]:
        if cell["cell_type"] == "code":
            begin, end = f"2026-11-22T10:00:{second:02}Z", f"2026-11-22T10:00:{second + 1:02}Z"
            cell["metadata"]["execution"] = {"iopub.execute_input": begin, "shell.reply": end}
            second += 2
    (tmp_path / source.name).write_text(json.dumps(ran))
    taken = times.take(tmp_path)
    assert set(taken) == {source.stem}
    assert taken[source.stem].seconds == second - 1
    file = tmp_path / "times.csv"
    times.save(taken, file)
    assert times.load(file) == taken
    assert f"| {second - 1} |" in times.lessons_table(taken)
    ran["cells"][2]["source"] = ["x = 1"]
    (tmp_path / source.name).write_text(json.dumps(ran))
    assert times.take(tmp_path) == {}


# --- commands and links ------------------------------------------------------------------------


def spoken():
    """Find all that the page tells to type: lines of shell blocks, and words between backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    rest = re.sub(r"^```.*?^```", "", PAGE, flags=re.M | re.S)
    lines += re.findall(r"`([^`\n]+)`", rest)
    return [part.strip() for line in lines for part in line.split("&&")]


def test_every_command_of_ours_exists_with_its_options():
    root = typer.main.get_command(app)
    found = set()
    for line in spoken():
        words = line.replace(".venv/bin/", "").replace("/opt/dlguide/", "").split()
        if not words or words[0] != "dlguide" or len(words) == 1:
            continue
        command = root
        for word in words[1:]:
            if hasattr(command, "commands"):
                assert word in command.commands, line
                command = command.commands[word]
                found.add(word)
            elif word.startswith("--"):
                known = {name for each in command.params for name in each.opts}
                assert word in known, f"{word} in {line}"
    assert {"doctor", "progress", "slides", "wheelhouse", "cleanup", "lab", "batch"} <= found


def test_every_target_of_make_exists():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    asked = []
    for line in spoken():
        words = line.split()
        if words and words[0] == "make":
            asked += [
                word
                for before, word in itertools.pairwise(words)
                if "=" not in word and not word.startswith("-") and before != "-C"
            ]
    assert set(asked) <= set(targets)
    assert {"setup", "wheelhouse", "slides", "pytorch", "lab"} <= set(asked)


def test_every_link_within_the_repository_leads_somewhere():
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in PAGE.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        assert (DOCS / path).exists(), target
        if not path:
            assert anchor in headings, target


# --- symptoms ----------------------------------------------------------------------------------


def found(check, *arguments):
    return doctor.report([check(60, *arguments)])


def test_symptoms_of_the_doctor_read_as_the_page_says(tmp_path, monkeypatch):
    free = shutil._ntuple_diskusage(64_000_000, 600_000, 63_400_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda place: free)
        assert "63 MB free in /dev/shm" in found(surroundings.shared_memory)
    env = {"HOME": str(tmp_path)}
    told = found(surroundings.environment, {**env, "PMI_RANK": "0"})
    assert "PMI_RANK: makes every process wait" in told
    assert "unset PMI_RANK" in told
    assert "unset KERAS_BACKEND" in found(surroundings.environment, {**env, "KERAS_BACKEND": "jax"})
    for words in ("63 MB free in /dev/shm", "PMI_RANK: makes every process wait"):
        assert words in PAGE


def test_one_core_reads_as_the_page_says():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from dlguide.cluster import Cluster\nCluster(ranks=2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    words = "`ranks` must be at most the 1 core this process may use, got 2"
    assert words in done.stderr
    assert words in PAGE


def test_setup_reads_as_the_page_says(tmp_path, monkeypatch):
    spaced = tmp_path / "a b"
    spaced.mkdir()
    (line,) = preflight.missing(spaced)
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = [line, preflight.compiler()]
    for words in (
        "has a space or another sign that MPI's compiler breaks on",
        "g++ is needed to build Horovod",
    ):
        assert any(words in line for line in lines)
        assert words in PAGE


# --- one environment for all -------------------------------------------------------------------


def test_kernel_in_a_folder_of_its_own_comes_first(tmp_path):
    words = ["-m", "ipykernel", "install", "--prefix", tmp_path]
    named = ["--name", "python3", "--display-name", "dlguide"]
    subprocess.run([sys.executable, *words, *named], check=True, timeout=60, capture_output=True)
    env = {**os.environ, "JUPYTER_PATH": str(tmp_path / "share" / "jupyter")}
    code = (
        "from jupyter_client.kernelspec import KernelSpecManager\n"
        "spec = KernelSpecManager().get_kernel_spec('python3')\n"
        "print(spec.display_name, spec.argv[0])"
    )
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert told.stdout.split() == ["dlguide", sys.executable]
    assert f"--prefix {'/opt/dlguide/kernel'} --name python3 --display-name dlguide" in PAGE


def test_copy_of_a_notebook_finds_package_and_data(tmp_path):
    copy = tmp_path / "dlguide"
    shutil.copytree(ROOT / "notebooks", copy)
    code = "import dlguide; print(len(dlguide.data.datasets.load('mnist').train_labels))"
    env = {name: text for name, text in os.environ.items() if name != "DLGUIDE_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "60000\n", done.stderr


# --- Open OnDemand, Binder ---------------------------------------------------------------------

APP = DOCS / "ondemand"


def test_form_asks_for_what_the_submission_uses():
    form = yaml.safe_load((APP / "form.yml").read_text())
    submit = (APP / "submit.yml.erb").read_text()
    asked = set(re.findall(r"<%= (\w+)", submit))
    assert asked <= set(form["form"])
    own = [name for name in form["form"] if not name.startswith("bc_")]
    assert set(own) <= set(form["attributes"])
    rendered = yaml.safe_load(re.sub(r"<%=.*?%>", "2", submit))
    assert "--cpus-per-task=2" in rendered["script"]["native"]
    assert rendered["batch_connect"]["template"] == "basic"


def test_scripts_for_sites_are_clean():
    check = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    scripts = [APP / "template" / "before.sh", APP / "template" / "script.sh", ROOT / "postBuild"]
    if check is None:
        pytest.skip("shellcheck is not installed")
    # what Open OnDemand sets is not assigned in these files
    done = subprocess.run(
        [check, "-s", "bash", "-e", "SC2154", *scripts], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert os.access(ROOT / "postBuild", os.X_OK)
    assert os.access(APP / "template" / "script.sh", os.X_OK)


def test_app_serves_the_learners_copy_to_whoever_has_the_token(tmp_path):
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
        assert sorted(path.name for path in (home / "dlguide").glob("*.ipynb")) == sorted(
            path.name for path in LESSONS
        )
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
