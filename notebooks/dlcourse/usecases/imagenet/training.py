"""Training by the recipe on ranks: a shared phase, and from its checkpoint two branches."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.imagenet import data
from dlcourse.usecases.imagenet.recipe import CHANGES, GUIDE, SMALL, TrainingRecipe
from dlcourse.usecases.imagenet.report import Branch, Curve, Outcome
from dlcourse.usecases.plan import Rehearsal
from dlcourse.usecases.run import Option, shared_folder
from dlguide import models
from dlguide.collectives.communicator import Communicator, SingleProcess
from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import require, require_count, require_known
from dlguide.files import atomic_write
from dlguide.measure import TrainingResult
from dlguide.training import checkpoint as checkpoints
from dlguide.training import devices, fit
from dlguide.training.config import CheckpointConfig, FitConfig, describe
from dlguide.training.devices import connect, require_device
from dlguide.training.schedules import CollapsedDecay
from dlguide.training.step import evaluator, top_k
from dlguide.training.step_breakdown import StepWorker, TimedStep, classifier_worker

if TYPE_CHECKING:
    import keras

# What `dlguide usecase imagenet --set` accepts.
OPTIONS = {
    "device": Option("auto", str), "workers": Option(None, int), "epochs": Option(None, float),
    "samples": Option(None, int), "net": Option(None, str), "batch_per_worker": Option(None, int),
    "subset": Option(False, bool), "dtype": Option("float32", str), "apart": Option(False, bool),
}  # fmt: skip
DRAWN = 320  # made-up pictures of each part that `rehearse` draws
SAVE_EVERY = 500  # steps of a real training, whose epochs take hours
TOP = 5


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    parallel: bool | None = None,
    device: str = "auto",
    dtype: str = "float32",
    apart: bool = False,
    **own: Any,
) -> Outcome:
    """Train ResNet-50 by the guide's recipe, to both of its ends.

    Part 1: the rate rises for a while and then falls linearly to 0, on pictures that are cropped
    and mirrored at random. Part 2 branches off near its end: plain pictures, twice the weight
    decay, and the rate falls as a square. Both start from the same checkpoint, so they differ
    only in the branch, over equally many epochs.

    Each virtual worker has its 16 pictures and its own batch normalisation; a rank runs its share
    of the workers. So the result depends on the workers, not on the ranks.

    Leaves out, of the guide's part 2: it began with a momentum buffer of 0, and continued to
    mirror and crop its pictures, with scale and aspect left alone.

    Args:
        real: class folders or TFRecord shards, for ResNet-50 and all the guide's epochs; None for
            a small net on small made-up pictures.
        device: "auto" takes a GPU for each rank if there are enough, else the CPU; "cpu", "gpu".
        dtype: of the net, as in `training.fit`.
        apart: whether to train three more endings, each with one of part 2's changes alone.
        own: workers, epochs, samples, net, batch_per_worker, subset, as in `plan`.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.
    """
    comm = connect(parallel)
    place = devices.choose(device, comm)
    with comm.agree_or_raise():
        require_count(seed, "seed", least=0)
        recipe, found = plan(real, comm.size, **own)
        images = data.pictures(recipe, seed) if found is None else found
        parts = data.pipelines(recipe, images, _threads(found))
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder(checkpoint, comm))
        if checkpoint is None and report is None:
            # Without `checkpoint` the messages about resuming from one are of no use.
            stack.enter_context(redirect_stdout(io.StringIO()))
        run = TrainingRun(
            recipe, *parts, comm, place.device, seed, dtype, folder, report,
            None if found is None else SAVE_EVERY,
        )  # fmt: skip
        shared = run.shared_phase()
        line, _, first = run.branch("line", recipe.part_1())
        collapsed, last, _ = run.branch("collapsed", recipe.part_2(), first)
        single = tuple(
            run.branch(change, recipe.ending(change), first)[0]
            for change in (CHANGES if apart else ())
        )
    return Outcome(
        comm.rank, comm.size, last.threads, place.device, place.why, parts[0].name, seed,
        found is not None, recipe, shared, line, collapsed, single,
    )  # fmt: skip


def rehearse(
    work: Rehearsal, real: str | os.PathLike | None = None, seed: int = 0, device: str = "auto",
    dtype: str = "float32", apart: bool = False, **own: Any,
) -> None:  # fmt: skip
    """Measure a little of each part of `train`, for `usecases.plan`; all ranks call."""
    comm = work.comm
    place = devices.choose(device, comm)
    with work.once("ImageNet: list of pictures"):
        recipe, images = plan(real, comm.size, **own)
    if images is None:
        few = min(DRAWN, recipe.samples, recipe.test_samples)
        with work.once("pictures: drawing", (recipe.samples + recipe.test_samples) / (2 * few)):
            drawn = data.pictures(replace(recipe, samples=few, test_samples=few), seed)
        parts = (np.resize(one, (count, *one.shape[1:])) for count, some in (
            (recipe.samples, (drawn.train_images, drawn.train_labels)),
            (recipe.test_samples, (drawn.test_images, drawn.test_labels)),
        ) for one in some)  # fmt: skip
        images = Dataset(drawn.name, *parts)
    TrainingRun(
        recipe, *data.pipelines(recipe, images, _threads(real)), comm, place.device, seed, dtype,
        work.folder, None, None if real is None else SAVE_EVERY,
    ).rehearse(work, endings=5 if apart else 2)  # fmt: skip


def _threads(real: Any) -> int:
    """ImageNet is decoded on all cores of a rank; made-up pictures are in memory."""
    return 1 if real is None else len(os.sched_getaffinity(0))


def check(
    real: str | os.PathLike | None = None, workers: int | None = None, device: str = "auto",
    dtype: str = "float32", apart: bool = False, **own: Any,
) -> None:  # fmt: skip
    """Raise what `train` would raise, before any rank is started and without TensorFlow."""
    ranks = workers if isinstance(workers, int) and workers > 0 else SMALL.workers
    plan(real, ranks, workers=workers, **own)


def plan(
    real: str | os.PathLike | None, ranks: int, workers: int | None = None,
    epochs: float | None = None, samples: int | None = None, net: str | None = None,
    batch_per_worker: int | None = None, subset: bool = False,
) -> tuple[TrainingRecipe, data.Found | None]:  # fmt: skip
    """Return the recipe of these settings and the real data, if any.

    Args:
        real: as in `train`.
        ranks: that run the workers.
        workers: in all; None for two, those of one node, or one for each rank.
        epochs: of part 1; all phases follow in proportion. None for the recipe's.
        samples: made-up pictures; None for the recipe's.
        net: another net; None for the recipe's.
        batch_per_worker: pictures of a worker, which the rate follows; None for the guide's 16.
        subset: whether `real` may be a part of ImageNet.
    """
    if workers is None:
        two = SMALL.workers
        workers = two if two % ranks == 0 else ranks
    require_count(workers, "workers")
    then = f"Use {ranks * max(1, round(workers / ranks))}, or other ranks."
    must = f"be a multiple of the {ranks} ranks that run them"
    require(workers % ranks == 0, "workers", must, workers, then)
    require(real is not None or not subset, "subset", "be False without `real`", subset)
    found = None if real is None else data.find(real, subset)
    recipe = SMALL if found is None else data.recipe_for(GUIDE, found)
    recipe = recipe.scaled(workers, batch_per_worker)
    if epochs is not None:
        must, then = "be a number of at least 2", "One to begin, and one to branch off."
        fits = isinstance(epochs, int | float) and not isinstance(epochs, bool) and epochs >= 2
        require(fits and epochs == int(epochs), "epochs", f"{must}, whole", epochs, then)
        recipe = recipe.stretched(epochs / recipe.epochs)
    if samples is not None:
        must = "be None with `real`, all of which is used"
        require(found is None, "samples", must, samples)
        least = 2 * recipe.global_batch
        recipe = replace(recipe, samples=require_count(samples, "samples", least))
    if net is not None:
        small = [name for name in models.names("classifier") if "resnet" in name]
        known = [*models.names("imagenet"), *small]
        recipe = replace(recipe, net=require_known(net, known, "net"))
    steps = -(-recipe.samples // recipe.global_batch)
    short = min(recipe.warmup, recipe.collapse)
    must = f"have a step for the {short:g} epochs of warmup or last part, {steps} steps each"
    then = "Use more epochs, or more pictures."
    require(round(short * steps) >= 1, "epochs", must, round(recipe.epochs), then)
    return recipe, found


def step(
    batch_per_worker: int | None = None,
    seed: int = 0,
    real: str | os.PathLike | bool | None = None,
    dtype: str = "float32",
) -> TimedStep:
    """Return a step of one worker, for `speedup.measure` or a timer.

    Args:
        batch_per_worker: pictures of one worker; None for the guide's 16.
        seed: of the initial weights.
        real: anything but None or False for ResNet-50 with pictures of 224 x 224; their content
            does not change the time.
        dtype: of the net.
    """
    recipe = GUIDE if real else SMALL
    recipe = recipe.scaled(recipe.workers, batch_per_worker)
    name = f"{recipe.net}, {recipe.image} x {recipe.image}"
    parts = partial(_worker, recipe, seed, dtype), partial(_samples, recipe)
    return TimedStep(name, recipe.batch_per_worker, *parts)


def _worker(recipe: TrainingRecipe, seed: int, dtype: str, comm: Communicator) -> StepWorker:
    # speed does not depend on the rate; the weights must stay finite
    rule = _optimizer(1e-3, recipe.weight_decay, recipe.momentum)
    return classifier_worker(build_net(recipe, seed, dtype), rule, comm)


def _samples(recipe: TrainingRecipe, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    pictures = random.normal(size=(count, recipe.image, recipe.image, 3)).astype(np.float32)
    return pictures, random.integers(0, recipe.classes, count, np.int32)


def build_net(recipe: TrainingRecipe, seed: int, dtype: str = "float32") -> keras.Model:
    """Build the recipe's net, which returns logits."""
    model = models.build(recipe.net, seed, dtype=dtype, image=recipe.image, classes=recipe.classes)
    models.set_momentum(model, recipe.averages)
    return model


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training by a recipe: the shared phase and its two branches, each in its folder."""

    recipe: TrainingRecipe
    train: Pipeline
    test: Pipeline
    comm: Communicator
    device: str
    seed: int
    dtype: str
    folder: Path
    report: Callable[..., None] | None
    save_every: int | None = None

    def shared_phase(self) -> Curve:
        """Train the epochs before the branches, unless both branches have started already."""
        known, epochs = self._written("shared"), int(self.recipe.collapse_at)
        ends = [checkpoints.latest(self.folder / name) for name in ("line", "collapsed")]
        # only rank 0 may see the folder
        begun = self.comm.allreduce_sum([float(None not in ends)])[0] > 0
        if known is not None and begun:
            return known
        return self._fit("shared", self.recipe.part_1(epochs), epochs)[0]

    def branch(
        self, name: str, schedule: CollapsedDecay, line: keras.Model | None = None
    ) -> tuple[Branch, TrainingResult, keras.Model]:
        """Train one branch from the last checkpoint of the shared phase, and test its net.

        With the net of the line both are tested together.
        """
        import tensorflow as tf

        with self.comm.agree_or_raise():
            here = self.folder / name
            if self.comm.rank == 0 and checkpoints.latest(here) is None:
                changes = {"schedule": describe(schedule)}
                checkpoints.branch(self.folder / "shared", here, changes)
        curve, run, model = self._fit(name, schedule, round(schedule.rates.epochs))
        few = self.train.replace(samples=min(self.train.samples, self.test.samples))
        with tf.device(require_device(self.device)):
            found = self.judge(model, self.test, line)()
            # random parts of training pictures, and whole ones
            training = [evaluator(model, part, self.comm)()["accuracy"]
                        for part in (few, few.without_augmentation())]  # fmt: skip
        counts = (round(found[only] * self.test.samples) for only in ("won", "lost"))
        tops = found["top 1"], found["top 5"]
        return Branch(name, curve, *tops, run.weights_digest, *counts, *training), run, model

    def judge(
        self, model: keras.Model, test: Pipeline, line: keras.Model | None = None
    ) -> Callable[[], dict[str, float]]:
        """Compile the test of a net: "top 1" and "top 5", and "won" and "lost" against the line."""
        best, best_5 = top_k(1), top_k(min(TOP, self.recipe.classes))

        def only(one: int) -> Any:
            return lambda labels, found: (
                best(labels, found[:, one]) & ~best(labels, found[:, 1 - one])
            )

        metrics = {
            "top 1": lambda labels, found: best(labels, found[:, 0]),
            "top 5": lambda labels, found: best_5(labels, found[:, 0]),
            "won": only(0), "lost": only(1),
        }  # fmt: skip
        return evaluator(_Pair(model, line or model), test, self.comm, metrics)

    def _fit(
        self, name: str, schedule: CollapsedDecay, epochs: int
    ) -> tuple[Curve, TrainingResult, keras.Model]:
        made: list[keras.Model] = []
        run = fit(**self.arguments(name, schedule, epochs, made))
        known, curve = self._written(name), _curve(run)
        if known is not None and not curve.loss:
            return known, run, made[-1]  # nothing was trained: an earlier call wrote it
        with self.comm.agree_or_raise():
            if self.comm.rank == 0:
                with atomic_write(self.folder / f"{name}.json") as file:
                    file.write(json.dumps(asdict(curve)))
        return curve, run, made[-1]

    def arguments(
        self, name: str, schedule: CollapsedDecay, epochs: int, made: list[keras.Model]
    ) -> dict[str, Any]:
        """Return those of `fit`; the net that it builds is added to `made`."""
        recipe = self.recipe

        def build() -> keras.Model:
            made.append(build_net(recipe, self.seed, self.dtype))
            return made[-1]

        # the net's name in checkpoints
        build.__qualname__ = (
            f"{recipe.net}, {recipe.image} pixels, {recipe.classes} classes, {self.dtype}"
        )
        workers = recipe.workers // self.comm.size
        few = recipe.tested
        return {
            "model": build, "data": self.train, "epochs": epochs,
            "batch_per_rank": recipe.batch_per_worker * workers, "learning_rate": schedule,
            "optimizer": partial(_optimizer, momentum=recipe.momentum),
            "checkpoint": CheckpointConfig(folder=self.folder / name, every_steps=self.save_every),
            "comm": self.comm, "on_result": self.report,
            "config": FitConfig(
                seed=self.seed, device=self.device, dtype=self.dtype, virtual_workers=workers,
                test=self.test if few is None else self.test.replace(samples=few),
            ),
        }  # fmt: skip

    def rehearse(self, work: Rehearsal, endings: int) -> None:
        """Measure a little of the training and of the test at its two ends."""
        import tensorflow as tf

        recipe, made = self.recipe, []
        arguments = self.arguments("line", recipe.part_1(), round(recipe.epochs), made)
        # the endings go on from the shared phase
        paid = recipe.epochs + (endings - 1) * recipe.collapse
        work.fit("training", paid=paid, starts=1 + endings, **arguments)
        few = min(self.test.samples, 8 * recipe.global_batch)
        with tf.device(require_device(self.device)):
            judge = self.judge(made[-1], self.test.replace(samples=few))
            # each ending is tested, and sees some training pictures twice
            samples = self.test.samples + min(self.train.samples, self.test.samples)
            work.repeat("test", endings * samples / few, judge)

    def _written(self, name: str) -> Curve | None:
        """Return the curve that an earlier call wrote; rank 0 reads for all."""
        path, text = self.folder / f"{name}.json", ""
        with self.comm.agree_or_raise():
            if self.comm.rank == 0 and path.exists():
                text = path.read_text(encoding="utf-8")
        text = self.comm.allgather(text)[0]
        if not text:
            return None
        return Curve(**{key: tuple(each) if isinstance(each, list) else each
                        for key, each in json.loads(text).items()})  # fmt: skip


class _Pair:
    """Two nets of the same pictures, as one whose logits have shape (pictures, 2, classes)."""

    def __init__(self, *nets: keras.Model) -> None:
        self.nets, self.inputs = nets, nets[0].inputs

    def __call__(self, images: Any, training: bool) -> Any:
        import tensorflow as tf

        return tf.stack([net(images, training=training) for net in self.nets], axis=1)


def by_size(
    folder: str | os.PathLike,
    endings: Sequence[str],
    images: Dataset,
    sizes: Sequence[int],
    recipe: TrainingRecipe = SMALL,
) -> dict[str, dict[int, float]]:
    """Return the top-1 accuracy of trained nets on whole test pictures of other sizes.

    Random parts of a picture are enlarged, so a net that was trained with them knows things
    larger than a test shows them: it may see more in larger test pictures.

    Args:
        folder: `checkpoint` of `train`.
        endings: of "line", "collapsed" and `CHANGES`.
        images: made-up pictures, of which those to test with are taken.
        sizes: heights and widths to test with (pixels).
        recipe: of the training.

    Returns:
        dict: ending -> size -> accuracy.

    Source:
        Touvron et al., arXiv:1906.06423.
    """
    weights = {name: checkpoints.read(checkpoints.latest(Path(folder) / name))[1]
               for name in endings}  # fmt: skip
    found: dict[str, dict[int, float]] = {name: {} for name in endings}
    for size in sizes:
        larger = replace(recipe, image=size)
        model = build_net(larger, seed=0)
        _, test = data.pipelines(larger, images, threads=len(os.sched_getaffinity(0)))
        judge = evaluator(model, test, SingleProcess())
        for name, arrays in weights.items():
            model.set_weights(arrays[: len(model.weights)])  # the optimizer's follow
            found[name][size] = judge()["accuracy"]
    return found


def _optimizer(rate: Any, weight_decay: Any, momentum: float) -> keras.Optimizer:
    from dlguide.training.optimizers import MomentumSGD

    return MomentumSGD(rate, momentum=momentum, weight_decay=weight_decay)


def _curve(run: TrainingResult) -> Curve:
    trained = len(run.loss)
    accuracy = run.test_accuracy[-trained:] if trained else ()
    step_s = float(np.median(run.step_s)) if run.step_s else 0.0
    return Curve(
        run.first_epoch, run.loss, run.train_accuracy, accuracy, step_s, run.images_per_s,
        run.train_s,
    )  # fmt: skip
