"""ImageNet's class folders: `train/n01440764/n01440764_10026.JPEG` and `val` alike.

The folder's name is the class; classes are numbered in the order of the names. Real files are not
all what they are called: some are grey, some CMYK, one is a PNG. All are read as RGB.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlcourse.readers.image_files import file_sample, read_image, require_existing
from dlcourse.synthetic import Picture
from dlguide.data.formats.sample import Sample
from dlguide.errors import DataError

SPLITS = ("train", "val")
ORIGIN = (
    "image-net.org gives it out after registration: ILSVRC2012_img_train.tar, "
    "ILSVRC2012_img_val.tar; dlcourse.synthetic makes pictures without a network."
)
_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ClassFolders(Sequence):
    """The pictures of one split; each is read and checked when it is asked for."""

    folder: Path
    synsets: tuple[str, ...]
    files: tuple[tuple[Path, int], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Picture:
        path, label = self.files[index]
        pixels, kind = read_image(path, "RGB")
        return Picture(index, label, kind, pixels)

    def items(self) -> tuple[tuple[Path, int], ...]:
        """List the files with their classes, for callers that read and decode them."""
        return self.files

    def samples(self) -> Iterator[Sample]:
        """Give the files as they are, each decoded once to see that it is whole."""
        for path, label in self.items():
            key = "/".join((self.folder.name, *path.parts[-2:]))
            yield file_sample(path, (label,), key)


# What `verification.verify` needs: files at the top of the folder, the parts, what is not checked.
MARKS = SPLITS


def parts(folder: Path) -> list[dict[str, str]]:
    """Return the arguments of `read` for each split that is there."""
    return [{"split": split} for split in SPLITS if (folder / split).exists()]


def unchecked(folder: Path) -> tuple[str, ...]:
    """Return what these files give no means to check, a sentence each."""
    return ("changed bytes of an image that can still be decoded: it has no checksum",)


def read(folder: str | os.PathLike, split: str = "train") -> ClassFolders:
    """List the pictures of a split, "train" or "val".

    Raises:
        MissingComponentError: when the split's folder is not there.
        DataError: for a folder that is no class, a file of another kind, an empty class of `train`,
            or a class of `val` that `train` does not have; names it.
    """
    base = require_existing(Path(folder) / split, f"folder {split!r} of ImageNet", ORIGIN)
    # validation alone would number the classes otherwise when it lacks one
    numbered = Path(folder) / "train"
    synsets = _classes(numbered if numbered.is_dir() else base)
    strange = set(_classes(base)) - set(synsets)
    if strange:
        raise DataError(f"{base / min(strange)}: a class that {numbered} does not have.")
    files = []
    for label, name in enumerate(synsets):
        here = base / name
        found = sorted(os.listdir(here)) if here.is_dir() else []
        for file in found:
            if not file.lower().endswith((".jpeg", ".jpg")):
                raise DataError(f"{here / file}: no .JPEG file, in a folder of pictures.")
        if not found and split == "train":
            raise DataError(f"{here}: the class has no pictures.")
        files += [(here / file, label) for file in found]
    return ClassFolders(base, synsets, tuple(files))


def _classes(base: Path) -> tuple[str, ...]:
    names = sorted(os.listdir(base))
    for name in names:
        if not _SYNSET.fullmatch(name) or not (base / name).is_dir():
            raise DataError(f"{base / name}: no folder of a class, which is called n and 8 digits.")
    if not names:
        raise DataError(f"{base}: has no folders of classes.")
    return tuple(names)
