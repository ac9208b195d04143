"""Samples of a data set that `dlguide.data.formats` wrote, read by several threads."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dlguide.data import formats
from dlguide.data.formats.damage import DamageError
from dlguide.data.formats.manifest import crc32c, read_exactly
from dlguide.data.formats.sample import Sample
from dlguide.data.input_pipeline.sources import REQUEST_NBYTES, Source
from dlguide.errors import require

# Libraries that go through one handle, one thread at a time.
_ONE_AT_A_TIME = ("lmdb", "hdf5")


class FormatSource(Source):
    """A data set that `dlguide.data.formats` wrote; every record is held against its checksum.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(os.path.abspath(path))
        with formats.open(self.path) as dataset:
            require(len(dataset) > 0, "source", "hold at least one sample", str(path))
            labels = dataset[0].labels
            self.count, self.kind, self.name = len(dataset), dataset.kind, self.path.name
        self.label_shape = () if len(labels) == 1 else (len(labels),)
        self._handles: list[formats.Dataset] = []
        self._lock = threading.Lock()

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        """Read records in the order of the file, neighbours at once; give them as asked for."""
        order = np.argsort(numbers, kind="stable")
        found: list[Sample] = []
        asked = []
        with self._dataset() as dataset:
            for number, count in _runs(numbers[order]):
                opens = dataset.opens
                samples = self._neighbours(dataset, number, count)
                found += samples
                nbytes = sum(len(sample.data) for sample in samples)
                requests = math.ceil(nbytes / REQUEST_NBYTES)
                if self.kind == "folder":
                    requests = len(samples)
                asked.append((dataset.opens - opens, max(requests, 1), nbytes))
        if throttle is not None:  # only now: where readers share a handle, the next one has it
            for opens, requests, nbytes in asked:
                throttle.take(opens, requests, nbytes)
        samples = [found[place] for place in np.argsort(order).tolist()]
        labels = self.labels_of([sample.labels for sample in samples], numbers)
        return [sample.data for sample in samples], labels

    def damaged(self, number: int, what: str) -> DamageError:
        """Name file, record and byte."""
        with self._dataset() as dataset:
            return dataset.damaged(number, what)

    def close(self) -> None:
        """Close the handles that nobody uses."""
        with self._lock:
            while self._handles:
                self._handles.pop().close()

    def _neighbours(self, dataset: formats.Dataset, number: int, count: int) -> list[Sample]:
        """Read neighbours; where they stand one after the other in a file, with one request."""
        numbers = range(number, number + count)
        rows = dataset.index[number : number + count]
        files, starts, nbytes, checks = (rows[name].tolist() for name in rows.dtype.names)
        ends = [start + length for start, length in zip(starts, nbytes, strict=True)]
        grows = all(a <= b for a, b in zip(ends, starts[1:], strict=False))
        packed = self.kind in ("tfrecord", "recordio") and files[0] == files[-1] and grows
        if count == 1 or not packed:
            return [dataset[one] for one in numbers]
        descriptor, path = dataset.descriptor(files[0]), dataset.path_of(files[0])
        block = read_exactly(descriptor, ends[-1] - starts[0], starts[0], path)
        samples = []
        for one, start, end, check in zip(numbers, starts, ends, checks, strict=True):
            place = start - starts[0], end - starts[0]
            if crc32c(block, *place) == check:
                samples.append(dataset.sample(one, block, *place))
            else:  # alone it raises the error that names the place
                samples.append(dataset[one])
        return samples

    @contextmanager
    def _dataset(self) -> Iterator[formats.Dataset]:
        """Give a handle that no other thread uses meanwhile."""
        if self.kind in _ONE_AT_A_TIME:
            with self._lock:
                if not self._handles:
                    self._handles.append(formats.open(self.path))
                yield self._handles[0]
            return
        with self._lock:
            handle = self._handles.pop() if self._handles else None
        handle = formats.open(self.path) if handle is None else handle
        try:
            yield handle
        finally:
            with self._lock:
                self._handles.append(handle)

    def __getstate__(self) -> dict[str, Any]:
        # Handles and the lock stay in their process.
        kept = ("path", "count", "kind", "name", "label_shape")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handles, self._lock = [], threading.Lock()


def _runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Cut growing numbers where the next one is not the neighbour: first one and count of each."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    edges = [0, *breaks.tolist(), len(numbers)]
    return [(int(numbers[a]), b - a) for a, b in pairwise(edges) if b > a]
