"""Longer measurements kept in data/measured."""

import pytest

from dlcourse import measured


def test_what_was_written_is_read_with_its_origin(tmp_path, monkeypatch):
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path))
    rows = [{"way": "plain", "seed": 0, "loss": 0.5}, {"way": "a, b", "seed": 1, "loss": 1e-9}]
    monkeypatch.setattr("sys.argv", ["/somewhere/trial.py", "--seeds", "2"])
    assert measured.write("trial", rows, seeds=range(2)) == tmp_path / "measured/trial.csv"
    found = measured.load("trial")
    assert found.rows == rows
    assert found.about["seeds"] == "0 1"
    assert str(found).endswith("; seeds 0 1; python benchmarks/trial.py --seeds 2")
    assert found.column("loss", way="a, b", seed=1) == [1e-9]
    with pytest.raises(ValueError, match="`name` must be one of trial, got 'none'"):
        measured.load("none")


def test_every_kept_measurement_says_where_it_comes_from():
    from dlguide.files import data_folder

    for path in (data_folder() / "measured").glob("*.csv"):
        found = measured.load(path.stem)
        assert found.rows, path
        assert all(found.about[key] for key in measured.ABOUT), path
        script = found.about["command"].split()[1]
        assert (measured.Path(__file__).parents[2] / script).is_file(), script
