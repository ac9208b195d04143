"""The road on ranks: a common beginning, and from its checkpoint the two endings."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from dlcourse.usecases.imagenet import data as pictures_of
from dlcourse.usecases.imagenet.outcome import Outcome
from dlcourse.usecases.imagenet.planning import planned
from dlcourse.usecases.imagenet.way import Way
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require_count
from dlguide.training import devices
from dlguide.training.devices import connect

SAVE_EVERY = 500  # steps of a real training, whose epochs take hours


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    parallel: bool | None = None,
    device: str = "auto",
    workers: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    net: str | None = None,
    batch: int | None = None,
    subset: bool = False,
    dtype: str = "float32",
) -> Outcome:
    """Go the road of ResNet-50 to its end, and to its other end.

    Part 1: the rate rises for a while and then falls in a straight line to 0, on pictures that are
    cut out and mirrored at random. Part 2 leaves it near its end: plain pictures, twice the weight
    decay, and the rate falls as a square. Both begin from the same checkpoint, so that what they
    differ in is the ending alone, over equally many epochs.

    Every rank calls this with the same arguments. Each worker has its own 16 pictures and its own
    batch normalisation; a rank plays as many workers as fall to it. So the result depends on the
    workers, not on the ranks.

    Leaves out, of the guide's part 2: it began with a velocity of 0, and went on mirroring and
    cropping its pictures; only scale and aspect were let alone.

    Args:
        real: folder of ImageNet as class folders or TFRecord shards, for ResNet-50 and all the
            guide's epochs; None for a small net on small made-up pictures.
        seed: of made-up pictures, first weights and order.
        checkpoint: folder to write checkpoints to, and to go on from; None for neither.
        report: progress, as in `training.fit`.
        parallel: as in `training.fit`.
        device: "auto" takes a GPU for each rank where there are so many, else the CPU; "cpu",
            "gpu".
        workers: in all (count); None for two, those of one node, or one for each rank.
        epochs: of part 1; all phases follow in proportion (epochs). None for the road's own.
        samples: made-up pictures (count); None for the road's own.
        net: another net; None for the road's own.
        batch: pictures of a worker, which the rate follows; None for the guide's 16 (count).
        subset: whether `real` may be a part of ImageNet.
        dtype: of the net, as in `training.fit`.

    Returns:
        Outcome: as this rank saw it.

    Raises:
        ValueError: on all ranks, when an argument is not what it must be.
        MissingComponentError: on all ranks, when ImageNet or the device is not there.
        DataError: on all ranks, when ImageNet is damaged or not all of it is there.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.
    """
    comm = connect(parallel)
    place = devices.choose(device, comm)
    with comm.agree_or_raise():
        require_count(seed, "seed", least=0)
        road, found = planned(real, subset, workers, epochs, samples, net, batch, comm.size)
        data = pictures_of.pictures(road, seed) if found is None else found
        # made-up pictures come from memory; those of ImageNet are decoded on all of a rank's cores
        threads = 1 if found is None else len(os.sched_getaffinity(0))
        train_data, test_data = pictures_of.pipelines(road, data, threads)
    with ExitStack() as stack:
        folder = _folder(checkpoint, comm, stack)
        if checkpoint is None and report is None:
            # Nobody asked for checkpoints, so nobody needs to hear where the endings go on from.
            stack.enter_context(redirect_stdout(io.StringIO()))
        way = Way(
            road, train_data, test_data, comm, place.device, seed, dtype, folder, report, parallel,
            None if found is None else SAVE_EVERY,
        )  # fmt: skip
        trunk, _ = way.trunk()
        line, _ = way.ending("line", road.part_1())
        collapsed, run = way.ending("collapsed", road.part_2())
    return Outcome(
        comm.rank, comm.size, run.threads, place.device, place.why, train_data.name, seed,
        found is not None, road, trunk, line, collapsed,
    )  # fmt: skip


def _folder(checkpoint: str | os.PathLike | None, comm: Communicator, stack: ExitStack) -> Path:
    """Give the folder of the checkpoints; without one, rank 0's own, which goes at the end."""
    if checkpoint is not None:
        return Path(checkpoint)
    mine = ""
    with comm.agree_or_raise():
        if comm.rank == 0:
            mine = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlguide-imagenet-"))
    return Path(comm.allgather(mine)[0])
