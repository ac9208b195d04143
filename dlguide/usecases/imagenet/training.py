"""The road on ranks: a common beginning, and from its checkpoint the two endings."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import nets
from dlguide.checks import require, require_count, require_known
from dlguide.data.input_pipeline import Pipeline
from dlguide.measure import Run
from dlguide.training import checkpoint as checkpoints
from dlguide.training import devices, fit, optimizers
from dlguide.training.ranks import Alone, connect
from dlguide.training.schedules import Collapsed
from dlguide.training.settings import name_of, require_device
from dlguide.training.steps import evaluator
from dlguide.usecases.imagenet import data as pictures_of
from dlguide.usecases.imagenet.outcome import Curve, Ending, Outcome
from dlguide.usecases.imagenet.road import GUIDE, SMALL, Road

if TYPE_CHECKING:
    import keras

TOP = 5


def check(
    real: str | os.PathLike | None = None,
    subset: bool = False,
    workers: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    net: str | None = None,
    batch: int | None = None,
    **others: Any,
) -> None:
    """Refuse what `train` would refuse, before any rank is started and without TensorFlow.

    Args:
        real: as in `train`, like all the others.
        subset: whether a part of ImageNet will do.
        workers: in all (count).
        epochs: of part 1 (epochs).
        samples: made-up pictures (count).
        net: name of the net.
        batch: pictures of a worker (count).
        others: what `train` checks itself.

    Raises:
        ValueError: when a setting is not what it must be.
        MissingComponentError: when ImageNet is not there.
        DataError: when it is damaged, or not all of it is there.
    """
    ranks = workers if isinstance(workers, int) and workers > 0 else SMALL.workers
    planned(real, subset, workers, epochs, samples, net, batch, ranks)


def planned(
    real: str | os.PathLike | None, subset: bool, workers: int | None, epochs: float | None,
    samples: int | None, net: str | None, batch: int | None, ranks: int,
) -> tuple[Road, pictures_of.Found | None]:  # fmt: skip
    """Make the road that was asked for.

    Args:
        real: as in `train`, like the following.
        subset: whether a part of ImageNet will do.
        workers: in all (count); None for two, or one for each rank where that does not go.
        epochs: of part 1 (epochs); None for the road's own.
        samples: made-up pictures to train with (count); None for the road's own.
        net: name of the net; None for the road's own.
        batch: pictures of a worker; None for the road's own (count).
        ranks: that play the workers (count).

    Returns:
        tuple: the road, and where the pictures are if they are real.

    Raises:
        ValueError: when a setting is not what it must be.
        MissingComponentError: when ImageNet is not there.
        DataError: when it is damaged, or not all of it is there.
    """
    if workers is None:
        two = SMALL.workers
        workers = two if two % ranks == 0 else ranks
    require_count(workers, "workers")
    then = f"Use {ranks * max(1, round(workers / ranks))}, or other ranks."
    must = f"be a multiple of the {ranks} ranks that play them"
    require(workers % ranks == 0, "workers", must, workers, then)
    require(real is not None or not subset, "subset", "be False without `real`", subset)
    found = None if real is None else pictures_of.find(real, subset)
    road = (SMALL if found is None else pictures_of.road_of(GUIDE, found)).on(workers)
    if batch is not None:
        road = road.each(batch)
    if epochs is not None:
        must, then = "be a number of at least 2", "One to begin, and one to end in two ways."
        fits = isinstance(epochs, int | float) and not isinstance(epochs, bool) and epochs >= 2
        require(fits and epochs == int(epochs), "epochs", f"{must}, whole", epochs, then)
        road = road.stretched(epochs / road.epochs)
    if samples is not None:
        must = "be None with `real`, all of which is used"
        require(found is None, "samples", must, samples)
        least = 2 * road.global_batch
        road = replace(road, samples=require_count(samples, "samples", least))
    if net is not None:
        known = (*nets.imagenet_names(), *(n for n in nets.classifier_names() if "resnet" in n))
        road = replace(road, net=require_known(net, known, "net"))
    return road, found


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
    ranks = connect(parallel)
    place = devices.choose(device, ranks)
    with ranks.together():
        require_count(seed, "seed", least=0)
        road, found = planned(real, subset, workers, epochs, samples, net, batch, ranks.ranks)
        data = pictures_of.pictures(road, seed) if found is None else found
        train_data, test_data = pictures_of.pipelines(road, data)
    with ExitStack() as stack:
        folder = _folder(checkpoint, ranks, stack)
        if checkpoint is None and report is None:
            # Nobody asked for checkpoints, so nobody needs to hear where the endings go on from.
            stack.enter_context(redirect_stdout(io.StringIO()))
        way = Way(road, train_data, test_data, ranks, place.device, seed, dtype, folder, report,
                  parallel)  # fmt: skip
        trunk, _ = way.trunk()
        line, collapsed = (
            way.ending(name, schedule)
            for name, schedule in (("line", road.part_1()), ("collapsed", road.part_2()))
        )
    return Outcome(
        ranks.rank, ranks.ranks, way.threads, place.device, place.why, train_data.name, seed,
        found is not None, road, trunk, line, collapsed,
    )  # fmt: skip


def build_net(road: Road, seed: int, dtype: str = "float32") -> keras.Model:
    """Build the road's net: its size of pictures, its classes, its moving averages.

    Args:
        road: names the net.
        seed: of the first weights.
        dtype: of the net.

    Returns:
        keras.Model: gives logits.
    """
    model = nets.build(road.net, seed, dtype=dtype, image=road.image, classes=road.classes)
    nets.set_momentum(model, road.averages)
    return model


@dataclass
class Way:
    """One training along a road: its parts, each in a folder of its own.

    road, pipelines (of training and test), ranks, device, seed, dtype, folder (of all parts),
    report and parallel (as `fit` takes them).
    """

    road: Road
    train: Pipeline
    test: Pipeline
    ranks: Alone
    device: str
    seed: int
    dtype: str
    folder: Path
    report: Callable[..., None] | None
    parallel: bool | None
    threads: int = 0

    def trunk(self) -> tuple[Curve, Any]:
        """Train what both endings have in common, unless both went on from it already."""
        known = self._written("trunk")
        ends = [checkpoints.latest(self.folder / name) for name in ("line", "collapsed")]
        begun = self.ranks.total([float(None not in ends)])[0] > 0  # rank 0 sees the folder
        if known is not None and begun:
            return known, None
        return self._fit("trunk", self.road.part_1(self.road.trunk), self.road.trunk)

    def ending(self, name: str, schedule: Collapsed) -> Ending:
        """Go on from the common epochs to one of the ends.

        Args:
            name: "line" or "collapsed".
            schedule: of the whole road to this end.

        Returns:
            Ending: with the net's answers on the test pictures.
        """
        import tensorflow as tf

        with self.ranks.together():
            here = self.folder / name
            if self.ranks.rank == 0 and checkpoints.latest(here) is None:
                changes = {"schedule": name_of(schedule)}
                checkpoints.branch(self.folder / "trunk", here, changes)
        curve, (run, model) = self._fit(name, schedule, round(schedule.rates.epochs))
        with tf.device(require_device(self.device)):
            top = min(TOP, self.road.classes)
            top5 = evaluator(model, self.test, self.ranks, top)()
        return Ending(name, curve, run.test_accuracy[-1], top5, run.weights_digest)

    def _fit(
        self, name: str, schedule: Collapsed, epochs: int
    ) -> tuple[Curve, tuple[Run, keras.Model]]:
        made = []

        def build() -> keras.Model:
            made.append(build_net(self.road, self.seed, self.dtype))
            return made[-1]

        road = self.road
        # what a checkpoint knows the net by
        build.__qualname__ = (
            f"{road.net}, {road.image} pixels, {road.classes} classes, {self.dtype}"
        )
        run = fit(
            build, self.train, epochs, road.batch, partial(_rule, momentum=road.momentum),
            seed=self.seed, parallel=self.parallel, device=self.device, report=self.report,
            checkpoint=self.folder / name, test=self.test, schedule=schedule, dtype=self.dtype,
            workers=road.workers // self.ranks.ranks,
        )  # fmt: skip
        self.threads = run.threads
        known = self._written(name)
        curve = _curve(run)
        if known is not None and not curve.loss:
            return known, (run, made[-1])  # nothing was trained: an earlier call saw it
        with self.ranks.together():
            if self.ranks.rank == 0:
                text = json.dumps(asdict(curve))
                (self.folder / f"{name}.json").write_text(text, encoding="utf-8")
        return curve, (run, made[-1])

    def _written(self, name: str) -> Curve | None:
        """Read what an earlier call saw, on rank 0 for all."""
        path, text = self.folder / f"{name}.json", ""
        with self.ranks.together():
            if self.ranks.rank == 0 and path.exists():
                text = path.read_text(encoding="utf-8")
        text = self.ranks.gather(text)[0]
        if not text:
            return None
        found = json.loads(text)
        lists = {key: tuple(each) for key, each in found.items() if isinstance(each, list)}
        return Curve(**{**found, **lists})


def _rule(rate: Any, weight_decay: Any, momentum: float) -> keras.Optimizer:
    return optimizers.momentum_sgd(rate, momentum=momentum, weight_decay=weight_decay)


def _curve(run: Run) -> Curve:
    trained = len(run.loss)
    accuracy = run.test_accuracy[-trained:] if trained else ()
    step_s = float(np.median(run.step_s)) if run.step_s else 0.0
    return Curve(
        run.first_epoch, run.loss, run.train_accuracy, accuracy, step_s, run.images_per_s,
        run.train_s,
    )  # fmt: skip


def _folder(checkpoint: str | os.PathLike | None, ranks: Alone, stack: ExitStack) -> Path:
    """Give the folder of the checkpoints; without one, rank 0's own, which goes at the end."""
    if checkpoint is not None:
        return Path(checkpoint)
    mine = ""
    with ranks.together():
        if ranks.rank == 0:
            mine = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlguide-imagenet-"))
    return Path(ranks.gather(mine)[0])
