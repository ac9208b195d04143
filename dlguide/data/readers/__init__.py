"""Readers of data sets in the folders and files in which they are published.

    from dlguide.data import formats
    from dlguide.data.readers import imagenet

    with formats.create("packed", "tfrecord") as writer:
        for sample in imagenet.read("imagenet", "train").samples():
            writer.append(sample)

`samples()` of each reader gives the files' own bytes with labels and a key, checked, for any of
the formats; `items()` lists the files with their labels for an input pipeline that reads them.
"""

from importlib import import_module
from typing import Any

__all__ = ["READERS", "image_files", "imagenet", "imagenet_shards"]

# name -> module with MARKS, parts(folder), read(folder, **part), unchecked(folder), which
# `dlguide.data.verification` looks for; others may add theirs
READERS = {
    "imagenet": "dlguide.data.readers.imagenet",
    "imagenet_shards": "dlguide.data.readers.imagenet_shards",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"dlguide.data.readers.{name}")
    raise AttributeError(f"dlguide.data.readers has no {name!r}; it has {', '.join(__all__)}")
