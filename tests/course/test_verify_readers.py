"""`verify` knows the data sets whose readers the course adds: ChestX-ray14 and KITTI tracking."""

import layout_writers
import pytest

from dlcourse.usecases.chest_xray import phantoms
from dlcourse.usecases.video.data import Drive
from dlguide.data import verification


def write(kind, path):
    """Write a small data set; return its folder and how many records it should count."""
    if kind == "chestxray14":
        return layout_writers.write_chestxray14(path, phantoms.chest(12, 32, seed=1)), 12
    drives = [Drive(3, 32, seed=number) for number in range(2)]
    return layout_writers.write_kitti(path, drives), 6


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("chestxray14", "test_list.txt", "test_list.txt"),
        ("kitti_tracking", "image_02/0001/000001.png", "0001: frame 000001.png is missing"),
    ],
)
def test_whole_folders_pass_and_what_is_cut_or_lost_is_named(kind, name, said, tmp_path):
    folder, count = write(kind, tmp_path / "data")
    calls = []
    report = verification.verify(folder, progress=lambda *two: calls.append(two))
    assert (report.ok, report.count) == (True, count), str(report)
    assert calls[-1][0] == calls[-1][1] > 0
    assert "it has no checksum" in " ".join(report.unchecked)
    path = max(folder.rglob("*.png"), key=lambda path: path.stat().st_size)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    report = verification.verify(folder)
    assert not report.ok
    assert path.name in str(report)
    path.write_bytes(whole)
    (folder / name).unlink()
    assert said in str(verification.verify(folder))
