"""One pass over an epoch: batches in their order, or the error with the name of its record."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from dlguide.data.datasets import Step
from dlguide.data.input_pipeline.order import draws
from dlguide.data.input_pipeline.reading import Reader, said, undecodable, unequal


class Epoch:
    """An iterator over (images, labels), one pair per step; made by `Pipeline.epoch`.

    Exactly as many as there are steps, or an error: a sample is never left out. A rank's last
    batch may be shorter, or empty. Ended, closed, and after an error its threads are gone.

    Attributes: samples (those of this rank in these steps, count), steps (the `Step` of each),
    wait_s (seconds spent in each `next` so far).
    """

    def __init__(
        self, pipeline: Any, dataset: Any, reader: Reader, steps: list[Step], until: str | None
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
