"""The data sets' files as first published: where they lie, how long they are, their SHA-256."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dlguide.errors import MissingComponentError
from dlguide.files import data_folder

CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
# The same images as Python pickles: reading one runs whatever code somebody put into it.
_PICKLES = ("cifar-10-batches-py", "cifar-10-python.tar.gz")
_RECORDS = (10_000, 3073)


@dataclass(frozen=True)
class Original:
    """A file as it was published."""

    name: str
    sha256: str
    nbytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class OriginalSet:
    """The files of a data set."""

    name: str
    files: tuple[Original, ...]
    image: tuple[int, int, int]
    classes: int
    source: str
    in_repository: bool = False


def _idx(*facts: tuple[str, int]) -> tuple[Original, ...]:
    """Name the four files of MNIST and its like; each fact is a checksum and a length."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    shapes = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
    return tuple(
        Original(f"{part}-ubyte.gz", sha256, nbytes, shape)
        for part, shape, (sha256, nbytes) in zip(parts, shapes, facts, strict=True)
    )


def _cifar(*checksums: str) -> tuple[Original, ...]:
    """Name the six files of CIFAR-10: in each 10 000 times a label and 3072 bytes of pixels."""
    files = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    return tuple(
        Original(f"{CIFAR_FOLDER}/{file}", sha256, _RECORDS[0] * _RECORDS[1], _RECORDS)
        for file, sha256 in zip(files, checksums, strict=True)
    )


ORIGINALS = {
    one.name: one
    for one in (
        OriginalSet(
            "mnist",
            _idx(
                ("0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971", 9_719_438),
                ("1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203", 28_857),
                ("1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be", 1_616_508),
                ("b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b", 4_517),
            ),
            (28, 28, 1),
            10,
            "LeCun, Cortes, Burges: The MNIST database of handwritten digits (1998)",
            in_repository=True,
        ),
        OriginalSet(
            "fashion_mnist",
            _idx(
                ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
                ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
                ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
                ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
            ),
            (28, 28, 1),
            10,
            "Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747",
        ),
        OriginalSet(
            "cifar10",
            _cifar(
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
            (32, 32, 3),
            10,
            "Krizhevsky: Learning Multiple Layers of Features from Tiny Images (2009)",
        ),
    )
}


def paths(name: str, folder: str | os.PathLike | None = None) -> list[Path]:
    """Name the files of a data set, whether they are there or not."""
    place = data_folder(folder) / name
    return [place / file.name for file in ORIGINALS[name].files]


def find(name: str, folder: str | os.PathLike | None = None) -> list[Path]:
    """Name the files of a data set that is there; nothing is read and nothing is downloaded.

    Args:
        name: a key of `ORIGINALS`.
        folder: the data folder, as for `paths`.

    Returns:
        list: in the order of `ORIGINALS`.

    Raises:
        MissingComponentError: when one is not there; says which, and how to get them with a
            network and without.
    """
    found = paths(name, folder)
    missing = [path for path in found if not path.is_file()]
    place = data_folder(folder) / name
    if ORIGINALS[name].in_repository and not place.is_dir():
        raise MissingComponentError(
            f"There is no folder {place}: {name} is part of the repository, not of the installed "
            "package. Set the environment variable DLGUIDE_DATA to the `data` folder of a clone."
        )
    if missing and not ORIGINALS[name].in_repository:
        raise MissingComponentError(_missing_text(name, place, missing, len(found)))
    return found


def restoring(name: str, place: Path) -> str:
    """Say how to get an undamaged copy of a data set's file."""
    if ORIGINALS[name].in_repository:
        return (
            f"Restore it in your clone with `git checkout -- data/{name}`, or copy it to "
            f"{place} from another clone."
        )
    return (
        f"Remove it and run `dlguide data fetch {name}`, or copy it to {place} from another "
        "machine."
    )


def _missing_text(name: str, place: Path, missing: list[Path], count: int) -> str:
    files = ", ".join(str(path.relative_to(place)) for path in missing)
    text = f"{len(missing)} of the {count} files of {name} are not in {place}: {files}."
    if name == "cifar10":
        pickles = [each for each in _PICKLES if (place / each).exists()]
        if pickles:
            text += (
                f" {pickles[0]} is the Python version, a pickle, which can run any code when it "
                f"is read, so it is left alone. Take the binary version, {CIFAR_ARCHIVE}."
            )
        if (place / CIFAR_ARCHIVE).is_file():
            text += (
                f" The archive is there: unpack it with `tar -xzf {CIFAR_ARCHIVE}` in that folder."
            )
    return (
        f"{text} With a network: `dlguide data fetch {name}`. Without: copy these files there "
        "from another machine that has them (each is held against its SHA-256), or use data "
        "that is made on the spot by `dlguide.data.synthetic`."
    )
