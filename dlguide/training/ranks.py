"""What a training loop needs of the other ranks, and the same for a process alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import measure
from dlguide.errors import require

if TYPE_CHECKING:
    import keras

    from dlguide.parallel.compressors import Compressor


class Alone:
    """A process that trains by itself: every exchange gives back what it was given."""

    rank, ranks = 0, 1

    def distribute(
        self, optimizer: keras.Optimizer, compression: Compressor | None = None
    ) -> keras.Optimizer:
        """Give the optimizer that sums the gradients over all ranks before it applies them."""
        return optimizer

    def broadcast(self, variables: Sequence[keras.Variable]) -> None:
        """Set variables on every rank to those of rank 0."""

    def average(self, variables: Sequence[keras.Variable]) -> None:
        """Set variables on every rank to their mean over ranks."""

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sum numbers over ranks, in double precision: exact for counts below 2**53."""
        return [float(number) for number in numbers]

    def gather(self, text: str) -> list[str]:
        """Give every rank the text of each one, in rank order."""
        return [text]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Give every rank the bytes of each one, in rank order."""
        return [data]

    @contextmanager
    def recording(self, path: str | None) -> Iterator[None]:
        """Record Horovod's timeline of a block; all ranks must enter it."""
        then = "Train on more ranks."
        must = "be None in a training without other ranks, which exchanges nothing"
        require(path is None or self.ranks > 1, "timeline", must, path, then)
        with self._recorder(path) if path is not None else nullcontext():
            yield

    def _recorder(self, path: str) -> AbstractContextManager:
        return nullcontext()

    @contextmanager
    def together(self, settings: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Let all ranks leave the block, or fail in it, together.

        A rank that raised alone would leave the others waiting in their next collective. All
        ranks must enter the block, and nothing inside may wait for another rank.
        """
        problem = None
        try:
            yield
        except Exception as error:  # every failure must reach the other ranks
            problem = error
        _agree(self, problem, settings or {})


class Ranks(Alone):
    """The ranks that Horovod connects; every method is called by all of them."""

    def __init__(self, recording: bool = False) -> None:
        import dlguide.horovod as hvd

        if recording:
            hvd.init_for_recording()
        elif not hvd.is_initialized():
            hvd.init()
        self._hvd = hvd
        self.rank, self.ranks = hvd.rank(), hvd.size()

    def distribute(
        self, optimizer: keras.Optimizer, compression: Compressor | None = None
    ) -> keras.Optimizer:
        """Give the optimizer that sums the gradients over all ranks before it applies them."""
        return self._hvd.DistributedOptimizer(
            optimizer,
            op=self._hvd.Sum,
            compression=self._hvd.Compression.none if compression is None else compression,
        )

    def _recorder(self, path: str) -> AbstractContextManager:
        return self._hvd.record_timeline(path)

    def broadcast(self, variables: Sequence[keras.Variable]) -> None:
        """Set variables on every rank to those of rank 0."""
        self._hvd.broadcast_variables(list(variables), root_rank=0)

    def average(self, variables: Sequence[keras.Variable]) -> None:
        """Set variables on every rank to their mean over ranks."""
        for index, variable in enumerate(variables):
            mean = self._hvd.allreduce(
                variable.value, op=self._hvd.Average, name=f"dlguide.training.average.{index}"
            )
            variable.assign(mean)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sum numbers over ranks, in double precision: exact for counts below 2**53."""
        here = np.asarray(numbers, np.float64)
        summed = self._hvd.allreduce(here, op=self._hvd.Sum, name="dlguide.training.total")
        return [float(number) for number in np.asarray(summed)]

    def gather(self, text: str) -> list[str]:
        """Give every rank the text of each one, in rank order."""
        here = np.frombuffer(text.encode() + b"\0", np.uint8)
        everyone = np.asarray(self._hvd.allgather(here, name="dlguide.training.gather"))
        return everyone.tobytes().decode().split("\0")[:-1]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Give every rank the bytes of each one, in rank order."""
        name = "dlguide.training.gather_bytes"
        lengths = self._hvd.allgather(np.array([len(data)], np.int64), name=f"{name}.lengths")
        here = np.frombuffer(data, np.uint8)
        everyone = np.asarray(self._hvd.allgather(here, name=name)).tobytes()
        edges = np.cumsum([0, *np.asarray(lengths)])
        return [everyone[a:b] for a, b in pairwise(edges)]


def connect(parallel: bool | None = None, recording: bool = False) -> Alone:
    """Give the ranks to train with."""
    require(parallel in (True, False, None), "parallel", "be True, False or None", parallel)
    if parallel is None:
        parallel = measure.launched()[1] > 1
    return Ranks(recording) if parallel else Alone()


def _agree(ranks: Alone, problem: Exception | None, settings: Mapping[str, Any]) -> None:
    text = "" if problem is None else f"{problem}" or repr(problem)
    answers = [
        json.loads(answer)
        for answer in ranks.gather(json.dumps({"problem": text, "settings": settings}))
    ]
    problems = [answer["problem"] for answer in answers]
    if problem is not None and len(set(problems)) == 1:
        raise problem
    for rank, text in enumerate(problems):
        if text:
            raise RuntimeError(f"rank {rank}: {text}") from problem
    for rank, answer in enumerate(answers):
        for name, value in answers[0]["settings"].items():
            other = answer["settings"].get(name)
            require(
                other == value,
                name,
                f"be the same on all ranks, {value!r} as on rank 0",
                other,
                f"Rank {rank} was called with that.",
            )
