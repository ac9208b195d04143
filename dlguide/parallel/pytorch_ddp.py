"""Train the MNIST net with PyTorch, alone or on all ranks, by one of several ways.

The net, its first weights, the batches, their order and the rule (SGD with momentum) are those of
`dlguide.training.fit(net="mnist_cnn", optimizer="sgd", dropout=0.0)`, so that the result is the
same, and the times can be compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.data import datasets
from dlguide.data.datasets import Dataset
from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.measure import Run, steady_images_per_s
from dlguide.parallel import pytorch_net, pytorch_weights
from dlguide.parallel.pytorch_data_parallel import DataParallel
from dlguide.parallel.pytorch_joining import joined_by_mpi
from dlguide.parallel.pytorch_ways import Alone, Distributed, OwnAllreduce

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

WAYS = {
    "alone": "one process",
    "data_parallel": "rank 0 owns everything, the others help",
    "ddp": "DistributedDataParallel over Gloo",
    "own": "the course's own allreduce over MPI",
}
EVALUATION_BLOCK = 200  # as in `training`, so that the same images meet in one matrix product


@dataclass(frozen=True)
class Trained:
    """What came out of a training with PyTorch, as one rank saw it."""

    way: str
    run: Run
    weights: tuple[np.ndarray, ...]
    sent: dict[str, float]
    held: dict[str, int]
    spans: tuple[tuple[str, float, float], ...]
    buckets: tuple[int, ...]


def train(
    weights: Sequence[np.ndarray],
    data: Dataset,
    way: str = "ddp",
    comm: Comm | None = None,
    epochs: int = 1,
    batch: int = 100,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    seed: int = 0,
    threads: int | None = None,
    cap_nbytes: int | None = None,
    views: bool = True,
    watch: bool = False,
    evaluate: bool = False,
    layout: str = "channels_first",
) -> Trained:
    """Train from given weights; on many ranks all must call this, with the same arguments.

    Args:
        weights: the first ones, as the Keras net's `get_weights` returns them.
        data: its training images are divided as `datasets.epoch_batches` says.
        way: a key of `WAYS`.
        comm: the ranks; None for this process alone, and then the way is "alone".
        epochs: passes over the training samples (count).
        batch: images per rank and step (count).
        learning_rate: of SGD, for the global batch; it is not scaled.
        momentum: of SGD.
        seed: of the order of the samples.
        threads: as in `pytorch_net.set_threads` (count).
        cap_nbytes: size of the buckets of "ddp"; None for PyTorch's own (bytes).
        views: whether the gradients of "ddp" live in its buckets.
        watch: whether to note the buckets of "ddp", which costs time.
        evaluate: whether to count right answers on the whole test set after each epoch.
        layout: as in `pytorch_net.build`.

    Returns:
        Trained: what came out.

    Raises:
        ValueError: when an argument is not what it must be; on all ranks alike.
        MissingComponentError: when PyTorch is not installed.
    """
    asked = {"way": way, "epochs": epochs, "batch": batch, "learning_rate": learning_rate}
    asked |= {"momentum": momentum, "seed": seed, "cap_nbytes": cap_nbytes, "views": views}
    asked |= {"watch": watch, "evaluate": evaluate, "layout": layout}
    asked |= {"samples": len(data.train_labels)}
    start, started_unix_s = perf_counter(), time.time()
    rank, ranks = (comm.rank, comm.size) if comm else (0, 1)
    if comm:
        require_equal(comm, **asked)
    with agree_or_raise(comm) if comm else contextlib.nullcontext():
        _check(way, comm, epochs, learning_rate, momentum)
        pytorch_weights.require_shapes(weights)
        require_known(layout, pytorch_net.LAYOUTS, "layout")
        parts = [
            datasets.epoch_batches(len(data.train_labels), batch, rank, ranks, epoch, seed)
            for epoch in range(epochs)
        ]
    if comm:  # "own" sends no first weights: ranks with different ones would stay apart
        require_equal(comm, weights=_printed(weights))
    if way == "data_parallel":
        whole = len(data.train_labels), batch * ranks
        parts = [datasets.epoch_batches(*whole, 0, 1, epoch, seed) for epoch in range(epochs)]
    pytorch_net.require_pytorch()
    in_use = pytorch_net.set_threads(threads)
    net = pytorch_net.build(weights, layout)
    with joined_by_mpi(comm) if way == "ddp" else contextlib.nullcontext():
        if way == "ddp":
            worker = Distributed(net, learning_rate, momentum, ranks, cap_nbytes, views)
            if watch:
                worker.watch()
        elif way == "own":
            worker = OwnAllreduce(net, learning_rate, momentum, comm)
        elif way == "data_parallel":
            worker = DataParallel(net, learning_rate, momentum, comm)
        else:
            worker = Alone(net, learning_rate, momentum)
        setup_s = perf_counter() - start
        step_s, wait_s, images, losses, accuracy = [], [], [], [], []
        evaluate_s = train_s = 0.0
        for steps in parts:
            begin = epoch_begin = perf_counter()
            total = 0.0
            for part in steps:
                batch_of = _taken(data, part.indices, way, rank)
                ready = perf_counter()
                total += worker.step(*batch_of, 1 / part.global_size) * part.global_size
                end = perf_counter()
                step_s.append(end - begin)
                wait_s.append(ready - begin)
                images.append(part.global_size)
                begin = end
            losses.append((comm.allreduce(total) if comm else total) / len(data.train_labels))
            evaluate_begin = perf_counter()
            train_s += evaluate_begin - epoch_begin
            if evaluate:
                if way == "data_parallel":  # only rank 0 has made the steps
                    net = pytorch_net.build(comm.bcast(pytorch_net.weights_of(net)))
                accuracy.append(_accuracy(net, data, comm))
                net = worker.net
                evaluate_s += perf_counter() - evaluate_begin
        held, final = worker.held(), pytorch_net.weights_of(net)
    names = ("dlguide", "numpy", "torch", *(["mpi4py"] if comm else []))
    run = Run(
        rank=rank, ranks=ranks, threads=in_use, model="mnist_cnn", data=data.name, device="cpu",
        epochs=epochs, batch_per_rank=batch, global_batch=batch * ranks, optimizer="sgd",
        learning_rate=learning_rate, seed=seed,
        parameters=sum(each.size for each in weights), samples=len(data.train_labels),
        steps_per_epoch=len(parts[0]), first_epoch=0, loss=tuple(losses),
        test_accuracy=tuple(accuracy), step_s=tuple(step_s), wait_s=tuple(wait_s),
        first_step_s=step_s[0], setup_s=setup_s, train_s=train_s, evaluate_s=evaluate_s,
        checkpoint_s=0.0, total_s=perf_counter() - start,
        images_per_s=steady_images_per_s(step_s, images),
        images_per_s_with_first=sum(images) / sum(step_s),
        weights_digest=hashlib.sha256(b"".join(each.tobytes() for each in final)).hexdigest(),
        started_unix_s=started_unix_s, versions={name: version(name) for name in names},
    )  # fmt: skip
    sent = {kind: nbytes / len(step_s) for kind, nbytes in worker.sent.items()}
    buckets = tuple(getattr(worker, "buckets", ()))
    return Trained(way, run, tuple(final), sent, held, tuple(worker.spans), buckets)


def _check(way: str, comm: Any, epochs: int, learning_rate: float, momentum: float) -> None:
    require_known(way, WAYS, "way")
    then = "Give the ranks as `comm`, or take the way alone."
    require(way == "alone" or comm is not None, "comm", f"be the ranks for {way}", comm, then)
    then = "Leave `comm` out, or take another way."
    require(way != "alone" or comm is None, "comm", "be None for a process alone", comm, then)
    require_count(epochs, "epochs")
    require_positive(learning_rate, "learning_rate")
    require(0 <= momentum < 1, "momentum", "be at least 0 and below 1", momentum)


def _printed(weights: Sequence[np.ndarray]) -> str:
    """Give a short text that differs where weights do."""
    checksum = 0
    for array in weights:
        checksum = zlib.crc32(array.tobytes(), checksum)
    return f"{weights[0].dtype} with checksum {checksum:08x}"


def _taken(data: Dataset, indices: np.ndarray, way: str, rank: int) -> tuple[Any, Any]:
    """Take a step's images and labels; with DataParallel only rank 0 reads any."""
    if way == "data_parallel" and rank:
        return None, None
    return data.train_images[indices], data.train_labels[indices]


def _accuracy(net: Any, data: Dataset, comm: Any) -> float:
    """Count right answers in blocks, shared by the ranks, and add up the counts."""
    import torch

    rank, ranks = (comm.rank, comm.size) if comm else (0, 1)
    samples, right = len(data.test_labels), 0
    with torch.no_grad():
        for begin in range(0, samples, EVALUATION_BLOCK)[rank::ranks]:
            block = slice(begin, begin + EVALUATION_BLOCK)
            pixels, classes = pytorch_net.tensors(data.test_images[block], data.test_labels[block])
            logits = net(pixels.to(next(net.parameters()).dtype))
            right += int((logits.argmax(dim=1) == classes).sum())
    return (comm.allreduce(right) if comm else right) / samples
