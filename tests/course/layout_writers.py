"""Writers of ChestX-ray14 and KITTI tracking, for tests of their readers."""

from pathlib import Path

from dlcourse.synthetic import encoded
from dlcourse.usecases.chest_xray.data import LISTS, TABLE
from dlcourse.usecases.video.data import IMAGES
from dlguide.files import new_folder

# As published: the brackets hold a comma, so each counts as two columns, and the line ends in one.
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
_SPACING_MM = 0.143
_TEST_ONE_IN = 5


def write_chestxray14(folder, radiographs, images_per_folder=None):
    """Write radiographs as ChestX-ray14 has them; every fifth patient goes to the test list."""
    with new_folder(folder) as partial:
        rows, lists = [HEADER], {split: [] for split in LISTS}
        for count, one in enumerate(radiographs):
            images = partial / "images"
            if images_per_folder is not None:
                images = partial / f"images_{count // images_per_folder + 1:03d}" / "images"
            images.mkdir(parents=True, exist_ok=True)
            (images / one.name).write_bytes(one.encoded())
            height, width = one.pixels.shape
            findings = "|".join(sorted(one.findings)) or "No Finding"
            cells = (one.name, findings, one.follow_up, one.patient, one.age)
            cells += (one.gender, one.view, width, height, _SPACING_MM, _SPACING_MM)
            rows.append(",".join(map(str, cells)) + ",")
            lists["train" if one.patient % _TEST_ONE_IN else "test"].append(one.name)
        (partial / TABLE).write_text("\n".join(rows) + "\n")
        for split, names in lists.items():
            (partial / LISTS[split]).write_text("".join(f"{name}\n" for name in names))
    return Path(folder)


def write_kitti(folder, drives):
    """Write drives as KITTI tracking has them."""
    with new_folder(folder) as partial:
        for number, drive in enumerate(drives):
            images = partial / IMAGES / f"{number:04d}"
            images.mkdir(parents=True)
            for index, pixels in enumerate(drive):
                (images / f"{index:06d}.png").write_bytes(encoded(pixels, "png"))
    return Path(folder)
