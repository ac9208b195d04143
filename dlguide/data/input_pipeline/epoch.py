"""One pass over an epoch: samples are read in whole batches, cached, and given in their order."""

from __future__ import annotations

import re
import threading
from time import perf_counter
from typing import Any

import numpy as np

from dlguide.data.datasets import RankShard
from dlguide.data.input_pipeline.order import draws
from dlguide.data.input_pipeline.sources import Source
from dlguide.errors import DataError


class Cache:
    """What has been read, kept in memory: bytes as they were stored, or decoded pixels.

    A rank meets other samples in each epoch, so after some epochs each rank holds nearly the
    whole data set: count on `ranks` times its size for a node.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.nbytes = kind, 0
        self._held: dict[int, tuple[bytes, tuple[int, ...], np.ndarray]] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> tuple[bytes, tuple[int, ...], np.ndarray] | None:
        """Give bytes, shape and labels of a sample, or None where it has not been read yet."""
        return self._held.get(number)

    def put(self, number: int, data: bytes, shape: tuple[int, ...], labels: np.ndarray) -> None:
        """Keep a sample."""
        with self._lock:
            if number not in self._held:
                self._held[number] = (data, shape, labels)
                self.nbytes += len(data)

    def __getstate__(self) -> str:
        return self.kind  # another process reads for itself

    def __setstate__(self, kind: str) -> None:
        self.__init__(kind)


class Reader:
    """Reads one epoch's samples of one rank, piece by piece; several threads may."""

    def __init__(
        self,
        source: Source,
        cache: Cache,
        throttle: Any,
        pieces: list[np.ndarray],
        chance: tuple[int, int, int],
        decoder: Any,
        stack: str | None = None,
    ) -> None:
        self.source, self.cache, self.throttle, self.stack = source, cache, throttle, stack
        self.pieces, self.chance, self.decoder = pieces, chance, decoder
        self.failures: dict[int, Exception] = {}

    def read(self, piece: int) -> tuple[Any, ...]:
        """Read a piece."""
        numbers = self.pieces[int(piece)]
        seed, epoch, count = self.chance
        random = draws(seed, epoch, numbers, count)
        try:
            if not self.source.encoded:
                images, labels = self.source.read(numbers, self.throttle)
                return images, labels, random
            if self.cache.kind == "none":
                data, labels = self.source.read(numbers, self.throttle)
                shapes = np.zeros((len(data), 3), np.int32)
            else:
                data, shapes, labels = self._cached(numbers)
                if self.stack is not None:
                    return self._stacked(numbers, data, shapes), labels, random
        except Exception as error:
            # TensorFlow hands on the text of an error; `Epoch` raises the error itself.
            self.failures[int(piece)] = error
            raise
        return np.array(data, object), shapes, labels, random

    def _cached(self, numbers: np.ndarray) -> tuple[list[bytes], np.ndarray, np.ndarray]:
        held = [self.cache.get(number) for number in numbers.tolist()]
        missing = np.array([n for n, one in zip(numbers, held, strict=True) if one is None], int)
        if len(missing):
            data, labels = self.source.read(missing, self.throttle)
            fresh = {}
            for number, one, its_labels in zip(missing.tolist(), data, labels, strict=True):
                shape: tuple[int, ...] = (0, 0, 0)
                if self.cache.kind == "decoded":
                    one, shape = self._decoded(number, one)
                self.cache.put(number, one, shape, its_labels)
                fresh[number] = one, shape, its_labels
            held = [
                fresh[n] if one is None else one
                for n, one in zip(numbers.tolist(), held, strict=True)
            ]
        data, shapes, labels = zip(*held, strict=True)
        return list(data), np.array(shapes, np.int32), np.array(labels, np.int32)

    def _stacked(self, numbers: np.ndarray, data: list[bytes], shapes: np.ndarray) -> np.ndarray:
        """Put pixels of equal shape into one array."""
        other = int(np.argmax((shapes != shapes[0]).any(axis=1)))
        if other:
            found = [(int(numbers[at]), tuple(shapes[at].tolist())) for at in (0, other)]
            raise unequal(self.stack, *found)
        return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), *shapes[0])

    def _decoded(self, number: int, data: bytes) -> tuple[bytes, tuple[int, ...]]:
        try:
            pixels = np.asarray(self.decoder(data))
        except Exception as error:
            raise undecodable(self.source, number, error) from error
        return pixels.tobytes(), pixels.shape


def unequal(name: str, one: tuple[int, Any], other: tuple[int, Any]) -> DataError:
    """Make the error for images of different sizes, which no batch can hold."""
    return DataError(
        f"{name}: images differ in size: sample {one[0]} has {one[1]}, sample {other[0]} has "
        f"{other[1]} (rows, columns, channels). Add `ResizedCrop` or `CentreCrop`."
    )


def undecodable(source: Source, number: int, error: Exception) -> DataError:
    """Make the error for a sample that was read well and is no image."""
    return source.damaged(number, f"no image that can be decoded: {said(error)}")


def said(error: Exception) -> str:
    """Take the first line of an error's text, without TensorFlow's own places."""
    text = str(getattr(error, "message", error)).strip().split("\n")[0]
    return re.sub(r"\{\{.*?\}\} *| *\[Op:.*\]|[. ]+$", "", text)


class Epoch:
    """An iterator over (images, labels), one pair per step; made by `Pipeline.epoch`.

    Exactly as many as there are steps, or an error: a sample is never left out. A rank's last
    batch may be shorter, or empty. Ended, closed, and after an error its threads are gone.

    Attributes: samples (those of this rank in these steps, count), steps (the `RankShard` of each),
    wait_s (seconds spent in each `next` so far).
    """

    def __init__(
        self, pipeline: Any, dataset: Any, reader: Reader, steps: list[RankShard], until: str | None
    ) -> None:
        self.steps, self.samples = steps, sum(len(step.indices) for step in steps)
        self.wait_s: list[float] = []
        self.given = 0
        self._pipeline, self._reader, self._until = pipeline, reader, until
        self._iterator = iter(with_threads(dataset, pipeline))
        self._last: Any = None

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            raise StopIteration
        begin = perf_counter()
        whole = self._until in (None, "augment", "batch")
        if whole and self.given == len(self.steps):
            self.close()
            raise StopIteration
        try:
            element = self._next(whole)
        except BaseException:
            self.close()
            raise
        self.given += 1
        self.wait_s.append(perf_counter() - begin)
        self._last = element
        return element

    def close(self) -> None:
        """End it: what was read ahead is dropped; closing twice does nothing."""
        if self._iterator is not None:
            self._iterator = None
            self._reader.source.close()

    def __enter__(self) -> Epoch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _next(self, whole: bool) -> Any:
        if whole and not len(self.steps[self.given].indices):
            return self._empty()
        try:
            return next(self._iterator)
        except StopIteration:
            if not whole:
                raise
            text = f"The pipeline ended after {self.given} of {len(self.steps)} steps."
            failed: Exception = RuntimeError(text)
        except Exception as error:
            failed = error.with_traceback(None)
        # Raised here and bare: the frames in TensorFlow hold the iterator, and so its threads.
        failed.__context__ = failed.__cause__ = None
        raise self._explained(failed)

    def _empty(self) -> Any:
        """Give a batch without samples, of the shape that the others have."""
        last = self._last
        if last is None:  # the pass begins with this step: one sample tells the shape
            one = self._pipeline.replace(batch=1, rank=0, ranks=1, samples=1)
            with one.epoch(until=self._until) as first:
                last = next(first)
        return tuple(part[:0] for part in last)

    def _explained(self, error: Exception) -> Exception:
        """Find which sample it was: the first one that fails in the step that failed."""
        import tensorflow as tf

        pipeline, reader = self._pipeline, self._reader
        numbers = np.concatenate(reader.pieces)
        begins = np.cumsum([0, *map(len, reader.pieces)]).tolist()
        failed = min(reader.failures, default=len(reader.pieces))
        start, end = self._failing(begins)
        sizes: dict[tuple[int, ...], int] = {}
        misfit = None
        # What was read ahead may have failed, too, but no later step has been asked for.
        for place in range(start, min(end, begins[failed])):
            number = int(numbers[place])
            image = pipeline.source.read(np.array([number]))[0][0]
            if pipeline.source.encoded:
                try:
                    image = pipeline.decoder(image)
                except Exception as own:
                    return undecodable(pipeline.source, number, own)
            sizes.setdefault(tuple(image.shape), number)
            chance = draws(*reader.chance[:2], numbers[place : place + 1], reader.chance[2])[0]
            try:
                pipeline.augmented(tf.convert_to_tensor(image), chance, pipeline.augment)
            except Exception as own:  # such as a part larger than the image; a bug is no damage
                if misfit is None and isinstance(own, tf.errors.InvalidArgumentError):
                    misfit = pipeline.source.damaged(number, said(own))
        if begins[failed] < end:
            return reader.failures[failed]
        if len(sizes) > 1 and not any(one.sizes for one in pipeline.augment):
            (first, one), (second, other) = list(sizes.items())[:2]
            return unequal(pipeline.name, (one, first), (other, second))
        return misfit or error

    def _failing(self, begins: list[int]) -> tuple[int, int]:
        """Give the places of the samples, in the order of this pass, among which it failed."""
        if self._until in (None, "augment", "batch"):
            start = sum(len(step.indices) for step in self.steps[: self.given])
            return start, start + len(self.steps[self.given].indices)
        if self._until == "read":
            return begins[self.given], begins[self.given + 1]
        return self.given, self.given + 1


def with_threads(dataset: Any, pipeline: Any) -> Any:
    """Give a dataset the pipeline's thread settings: a pool of its own, nothing tuned by itself."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.threading.private_threadpool_size = pipeline.readers + pipeline.threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)
