"""Writers of ImageNet's folders and shards, for tests of their readers."""

from pathlib import Path

from dlguide.data.formats.dataset import crc32c
from dlguide.data.formats.records import FRAMINGS
from dlguide.data.formats.sample import encode_features
from dlguide.files import new_folder


def _names(picture, split):
    """WordNet's own numbers all begin with 0 or 1."""
    synset = f"n{90_000_000 + picture.label:08d}"
    name = f"{synset}_{picture.index}"
    return synset, name if split == "train" else f"ILSVRC2012_val_{picture.index + 1:08d}"


def write_folders(folder, train, val):
    """Write pictures as ImageNet's class folders."""
    with new_folder(folder) as partial:
        for split, pictures in (("train", train), ("val", val)):
            for picture in pictures:
                synset, name = _names(picture, split)
                path = partial / split / synset / f"{name}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(picture.encoded())
    return Path(folder)


def fields(picture, split="train", **changed):
    """Give the features of a picture as the usual conversion has them."""
    synset, name = _names(picture, split)
    found = {
        "image/height": [picture.pixels.shape[0]],
        "image/width": [picture.pixels.shape[1]],
        "image/colorspace": [b"RGB"],
        "image/channels": [3],
        "image/class/label": [picture.label + 1],
        "image/class/synset": [synset.encode()],
        "image/format": [b"JPEG"],
        "image/filename": [f"{name}.JPEG".encode()],
        "image/encoded": [picture.encoded()],
    }
    found.update(changed)
    return {name: values for name, values in found.items() if values is not None}


def framed(contents):
    """Give a record with what is around it in a TFRecord file."""
    before, after = FRAMINGS["tfrecord"].frame(len(contents), crc32c(contents))
    return before + contents + after


def write_shards(folder, train, validation, shards):
    """Write pictures as TFRecord shards: shard i of s has those from i n // s on."""
    with new_folder(folder) as partial:
        splits = ("train", "validation"), (train, validation), shards
        for split, pictures, count in zip(*splits, strict=True):
            for number in range(count):
                first, last = (place * len(pictures) // count for place in (number, number + 1))
                records = (
                    framed(encode_features(fields(one, split))) for one in pictures[first:last]
                )
                path = partial / f"{split}-{number:05d}-of-{count:05d}"
                path.write_bytes(b"".join(records))
    return Path(folder)
