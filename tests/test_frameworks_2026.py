"""What became of the frameworks: every framework has its row, every claim its source."""

import datetime
import re
from pathlib import Path

import pytest

from dlguide.published import load

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
ROWS = load("frameworks_2026")
NAMED = {
    "Chainer, ChainerMN", "Theano", "Neon", "LBANN", "DSSTNE", "Spark", "BigDL",
    "OpenVINO", "nGraph", "Horovod", "JAX",
}  # fmt: skip
STATES = {
    "active", "stopped", "merged", "retired", "archived", "rebuilt", "no release since 2022",
    "no release since 2023",
}  # fmt: skip


def test_table_1_and_the_frameworks_only_named_have_one_row_each():
    names = [row["framework"] for row in ROWS]
    assert names[:10] == [row["framework"] for row in load("frameworks")]
    assert set(names[10:]) == NAMED
    assert len(names) == len(set(names))
    in_table = {row["framework"] for row in ROWS if row["named_in"] == "survey Table 1"}
    assert in_table == set(names[:10])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["framework"])
def test_row_has_public_sources_a_day_and_notebooks_that_exist(row):
    pages = [row["source_of_release"], *(row["source_of_text"] or "").split()]
    assert all(re.fullmatch(r"https://[\w.-]+/\S+", page) for page in pages)
    assert datetime.date.fromisoformat(row["checked_on"]) >= datetime.date(2026, 11, 22)
    assert row["status_2026"] in STATES
    if row["last_release_date"] is None:
        assert row["date_is"].startswith(("not verified: ", "no release "))
    else:
        assert row["date_is"] in ("release", "upload of the package")
        assert re.fullmatch(r"20[12]\d-\d\d(-\d\d)?", row["last_release_date"])
        assert row["last_release_date"] <= row["checked_on"]
    for name in (row["runs_in"] or "").split():
        assert (NOTEBOOKS / f"{name}.ipynb").is_file(), name


def test_releases_of_frameworks_that_stopped_are_not_younger_than_the_stop():
    dates = {row["framework"]: row["last_release_date"] for row in ROWS}
    assert dates["Caffe"] < "2018"
    assert dates["MXNet"] < "2023-11-17"
    assert dates["Microsoft Cognitive Toolkit"] == "2019-03-29"
    assert all(row["last_release_date"] > "2026" for row in ROWS if row["status_2026"] == "active")


def test_table_is_not_older_than_the_versions_of_this_course():
    pins = (NOTEBOOKS.parent / "constraints.txt").read_text()
    for row in ROWS:
        if row["framework"] in ("Keras", "TensorFlow"):
            pinned = re.search(rf"^{row['framework'].lower()}==(\S+)", pins, re.M)[1]
            assert numbers(row["last_release"]) >= numbers(pinned)


def numbers(version):
    return [int(part) for part in version.split(".")]
