"""One pass over an epoch: samples are read in whole batches, cached, and given in their order."""

from __future__ import annotations

import re
import threading
from time import perf_counter
from typing import Any

import numpy as np

from dlguide.data.datasets import RankShard
from dlguide.data.input_pipeline.augment import draws
from dlguide.data.input_pipeline.sources import Source
from dlguide.errors import DataError

CachedSample = tuple[bytes, tuple[int, ...], np.ndarray]  # what is kept, its shape, labels


class Cache:
    """What has been read, kept in memory: bytes as they were stored, or decoded pixels.

    A rank meets other samples in each epoch, so after some epochs each rank holds nearly the
    whole data set: count on `ranks` times its size for a node.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.nbytes = kind, 0
        self._held: dict[int, CachedSample] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> CachedSample | None:
        """Give a sample, or None where it has not been read yet."""
        return self._held.get(number)

    def put(self, number: int, sample: CachedSample) -> None:
        """Keep a sample."""
        with self._lock:
            if number not in self._held:
                self._held[number] = sample
                self.nbytes += len(sample[0])

    def __getstate__(self) -> str:
        return self.kind  # another process reads for itself

    def __setstate__(self, kind: str) -> None:
        self.__init__(kind)


class Reader:
    """Reads one epoch's samples of one rank, piece by piece; several threads may."""

    def __init__(self, pipeline: Any, pieces: list[np.ndarray], epoch: int) -> None:
        self.pieces, self._pipeline, self._epoch = pieces, pipeline, epoch
        # At least one: TensorFlow's `unbatch` dies of rows without numbers.
        self.draws = max(1, sum(one.draws for one in pipeline.augment))
        self.failures: dict[int, Exception] = {}

    def read(self, piece: int) -> tuple[Any, ...]:
        """Read a piece: arrays or bytes with their shapes, labels, random numbers."""
        numbers, pipeline = self.pieces[int(piece)], self._pipeline
        random = self.random(numbers)
        try:
            if pipeline.cache.kind == "none" or not pipeline.source.encoded:
                data, labels = pipeline.source.read(numbers, pipeline.throttle)
                shapes = np.zeros((len(data), 3), np.int32)
            else:
                data, shapes, labels = self._cached(numbers)
            if not pipeline.source.encoded:
                return data, labels, random
            if pipeline.stages[1] != "decode":
                return self._stacked(numbers, data, shapes), labels, random
        except Exception as error:
            # TensorFlow hands on the text of an error; `Epoch` raises the error itself.
            self.failures[int(piece)] = error
            raise
        return np.array(data, object), shapes, labels, random

    def random(self, numbers: np.ndarray) -> np.ndarray:
        """Give the random numbers of samples, one row for each."""
        return draws(self._pipeline.seed, self._epoch, numbers, self.draws)

    def _cached(self, numbers: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        cache = self._pipeline.cache
        held = {number: cache.get(number) for number in numbers.tolist()}
        missing = [number for number, one in held.items() if one is None]
        if missing:
            found = self._pipeline.source.read(np.array(missing), self._pipeline.throttle)
            for number, data, labels in zip(missing, *found, strict=True):
                shape: tuple[int, ...] = (0, 0, 0)
                if cache.kind == "decoded":
                    data, shape = self._decoded(number, data)
                held[number] = data, shape, labels
                cache.put(number, held[number])
        data, shapes, labels = zip(*held.values(), strict=True)
        return data, np.array(shapes, np.int32), np.array(labels, np.int32)

    def _stacked(self, numbers: np.ndarray, data: Any, shapes: np.ndarray) -> np.ndarray:
        """Put pixels of equal shape into one array."""
        other = int(np.argmax((shapes != shapes[0]).any(axis=1)))
        if other:
            found = [(int(numbers[at]), tuple(shapes[at].tolist())) for at in (0, other)]
            raise _unequal(self._pipeline.name, *found)
        return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), *shapes[0])

    def _decoded(self, number: int, data: bytes) -> tuple[bytes, tuple[int, ...]]:
        try:
            pixels = np.asarray(self._pipeline.decoder(data))
        except Exception as error:
            raise _undecodable(self._pipeline.source, number, error) from error
        return pixels.tobytes(), pixels.shape


def _unequal(name: str, one: tuple[int, Any], other: tuple[int, Any]) -> DataError:
    """Make the error for images of different sizes, which no batch can hold."""
    return DataError(
        f"{name}: images differ in size: sample {one[0]} has {one[1]}, sample {other[0]} has "
        f"{other[1]} (rows, columns, channels). Add `ResizedCrop` or `CentreCrop`."
    )


def _undecodable(source: Source, number: int, error: Exception) -> DataError:
    """Make the error for a sample that was read well and is no image."""
    return source.damaged(number, f"no image that can be decoded: {_first_line(error)}")


def _first_line(error: Exception) -> str:
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
            self._last = self._next(whole)
        except BaseException:
            self.close()
            raise
        self.given += 1
        self.wait_s.append(perf_counter() - begin)
        return self._last

    def close(self) -> None:
        """End it: what was read ahead is dropped; closing twice does nothing."""
        if self._iterator is not None:
            self._iterator = None
            self._pipeline.source.close()

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
        if self._last is None:  # the pass begins with this step: one sample tells the shape
            one = self._pipeline.replace(batch_per_rank=1, rank=0, ranks=1, samples=1)
            with one.epoch(until=self._until) as first:
                self._last = next(first)
        return tuple(part[:0] for part in self._last)

    def _explained(self, error: Exception) -> Exception:
        """Find which sample it was: the first one that fails in the step that failed."""
        import tensorflow as tf

        pipeline, reader = self._pipeline, self._reader
        numbers = np.concatenate(reader.pieces)
        begins = np.cumsum([0, *map(len, reader.pieces)]).tolist()
        failed = min(reader.failures, default=len(reader.pieces))
        if self._until in (None, "augment", "batch"):
            start = sum(len(step.indices) for step in self.steps[: self.given])
            end = start + len(self.steps[self.given].indices)
        elif self._until == "read":
            start, end = begins[self.given], begins[self.given + 1]
        else:
            start, end = self.given, self.given + 1
        sizes: dict[tuple[int, ...], int] = {}
        misfit = None
        # What was read ahead may have failed, too, but no later step has been asked for.
        for number in numbers[start : min(end, begins[failed])]:
            image = pipeline.source.read(number[None])[0][0]
            if pipeline.source.encoded:
                try:
                    image = pipeline.decoder(image)
                except Exception as own:
                    return _undecodable(pipeline.source, int(number), own)
            sizes.setdefault(tuple(image.shape), int(number))
            chance = reader.random(number[None])[0]
            try:
                pipeline.augmented(tf.convert_to_tensor(image), chance, pipeline.augment)
            except Exception as own:  # such as a part larger than the image; a bug is no damage
                if misfit is None and isinstance(own, tf.errors.InvalidArgumentError):
                    misfit = pipeline.source.damaged(int(number), _first_line(own))
        if begins[failed] < end:
            return reader.failures[failed]
        if len(sizes) > 1 and not any(one.sizes for one in pipeline.augment):
            (first, one), (second, other) = list(sizes.items())[:2]
            return _unequal(pipeline.name, (one, first), (other, second))
        return misfit or error


def with_threads(dataset: Any, pipeline: Any) -> Any:
    """Give a dataset the pipeline's thread settings: its own pool, nothing tuned automatically."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.threading.private_threadpool_size = pipeline.readers + pipeline.threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)
