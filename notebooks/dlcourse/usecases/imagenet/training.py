"""Training by the recipe on ranks: a shared phase, and from its checkpoint two branches."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.bench.scaling import StepWorker, TimedStep, classifier_worker
from dlcourse.usecases.imagenet import data
from dlcourse.usecases.imagenet.recipe import CHANGES, GUIDE, SMALL, TrainingRecipe
from dlcourse.usecases.imagenet.report import Branch, Curve, Outcome
from dlcourse.usecases.plan import Rehearsal
from dlcourse.usecases.run import Option
from dlguide import models
from dlguide.collectives.communicator import Communicator
from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline import CentreCrop, Operation, Pipeline
from dlguide.errors import require, require_count, require_known
from dlguide.measure import TrainingResult
from dlguide.training import checkpoint as checkpoints
from dlguide.training import devices, fit
from dlguide.training.config import CheckpointConfig, FitConfig, describe
from dlguide.training.devices import connect, require_device
from dlguide.training.schedules import CollapsedDecay
from dlguide.training.step import evaluator, top_k

if TYPE_CHECKING:
    import keras

# What `dlguide usecase imagenet --set` accepts.
OPTIONS = {
    "device": Option("auto", str),
    "workers": Option(None, int),
    "epochs": Option(None, float),
    "samples": Option(None, int),
    "net": Option(None, str),
    "batch_per_worker": Option(None, int),
    "subset": Option(False, bool),
    "dtype": Option("float32", str),
    "apart": Option(False, bool),
}
DRAWN = 320  # made-up pictures of each part that `rehearse` draws
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
    batch_per_worker: int | None = None,
    subset: bool = False,
    dtype: str = "float32",
    apart: bool = False,
) -> Outcome:
    """Train ResNet-50 by the guide's recipe, to both of its ends.

    Part 1: the rate rises for a while and then falls linearly to 0, on pictures that are cropped
    and mirrored at random. Part 2 branches off near its end: plain pictures, twice the weight
    decay, and the rate falls as a square. Both start from the same checkpoint, so they differ
    only in the branch, over equally many epochs.

    Every rank calls this with the same arguments. Each virtual worker has its 16 pictures and its
    own batch normalisation; a rank runs its share of the workers. So the result depends on the
    workers, not on the ranks.

    Leaves out, of the guide's part 2: it began with a momentum buffer of 0, and continued to
    mirror and crop its pictures, with scale and aspect left alone.

    Args:
        real: folder of ImageNet as class folders or TFRecord shards, for ResNet-50 and all the
            guide's epochs; None for a small net on small made-up pictures.
        seed: of made-up pictures, initial weights and order.
        checkpoint: folder to write checkpoints to, and to resume from; None for neither.
        report: progress, as `on_result` of `training.fit`.
        parallel: False for this process alone, True for all ranks of the launcher; None for True
            if the launcher started more than one.
        device: "auto" takes a GPU for each rank if there are enough, else the CPU; "cpu", "gpu".
        workers: in all; None for two, those of one node, or one for each rank.
        epochs: of part 1; all phases follow in proportion. None for the recipe's.
        samples: made-up pictures; None for the recipe's.
        net: another net; None for the recipe's.
        batch_per_worker: pictures of a worker, which the rate follows; None for the guide's 16.
        subset: whether `real` may be a part of ImageNet.
        dtype: of the net, as in `training.fit`.
        apart: whether to train three more endings, each with one of part 2's changes alone.

    Raises:
        ValueError: on all ranks, if an argument is invalid.
        MissingComponentError: on all ranks, if ImageNet or the device is not there.
        DataError: on all ranks, if ImageNet is damaged or incomplete.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.
    """
    comm = connect(parallel)
    place = devices.choose(device, comm)
    with comm.agree_or_raise():
        require_count(seed, "seed", least=0)
        recipe, found = plan(
            real, subset, workers, epochs, samples, net, batch_per_worker, comm.size
        )
        images = data.pictures(recipe, seed) if found is None else found
        # ImageNet is decoded on all cores of a rank; made-up pictures are in memory
        threads = 1 if found is None else len(os.sched_getaffinity(0))
        train_data, test_data = data.pipelines(recipe, images, threads)
    with ExitStack() as stack:
        folder = _folder(checkpoint, comm, stack)
        if checkpoint is None and report is None:
            # Without `checkpoint` the messages about resuming from one are of no use.
            stack.enter_context(redirect_stdout(io.StringIO()))
        run = TrainingRun(
            recipe, train_data, test_data, comm, place.device, seed, dtype, folder, report,
            None if found is None else SAVE_EVERY,
        )  # fmt: skip
        shared, _ = run.shared_phase()
        line, _, first = run.branch("line", recipe.part_1())
        collapsed, last, _ = run.branch("collapsed", recipe.part_2(), first)
        single = tuple(
            run.branch(change, recipe.ending(change), first)[0]
            for change in (CHANGES if apart else ())
        )
    return Outcome(
        comm.rank, comm.size, last.threads, place.device, place.why, train_data.name, seed,
        found is not None, recipe, shared, line, collapsed, single,
    )  # fmt: skip


def rehearse(
    work: Rehearsal, real: str | os.PathLike | None = None, seed: int = 0, device: str = "auto",
    workers: int | None = None, epochs: float | None = None, samples: int | None = None,
    net: str | None = None, batch_per_worker: int | None = None, subset: bool = False,
    dtype: str = "float32", apart: bool = False,
) -> None:  # fmt: skip
    """Measure a little of each part of `train`, for `usecases.plan`; all ranks call."""
    comm = work.comm
    place = devices.choose(device, comm)
    with work.once("ImageNet: list of pictures"):
        recipe, images = plan(
            real, subset, workers, epochs, samples, net, batch_per_worker, comm.size
        )
    if images is None:
        few = min(DRAWN, recipe.samples, recipe.test_samples)
        with work.once("pictures: drawing", (recipe.samples + recipe.test_samples) / (2 * few)):
            drawn = data.pictures(replace(recipe, samples=few, test_samples=few), seed)
        parts = (np.resize(one, (count, *one.shape[1:])) for count, some in (
            (recipe.samples, (drawn.train_images, drawn.train_labels)),
            (recipe.test_samples, (drawn.test_images, drawn.test_labels)),
        ) for one in some)  # fmt: skip
        images = Dataset(drawn.name, *parts)
    threads = 1 if real is None else len(os.sched_getaffinity(0))
    pipelines = data.pipelines(recipe, images, threads)
    TrainingRun(
        recipe, *pipelines, comm, place.device, seed, dtype, work.folder, None,
        None if real is None else SAVE_EVERY,
    ).rehearse(work, endings=5 if apart else 2)  # fmt: skip


def check(
    real: str | os.PathLike | None = None,
    subset: bool = False,
    workers: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    net: str | None = None,
    batch_per_worker: int | None = None,
    **_others: Any,
) -> None:
    """Raise what `train` would raise, before any rank is started and without TensorFlow."""
    ranks = workers if isinstance(workers, int) and workers > 0 else SMALL.workers
    plan(real, subset, workers, epochs, samples, net, batch_per_worker, ranks)


def plan(
    real: str | os.PathLike | None, subset: bool, workers: int | None, epochs: float | None,
    samples: int | None, net: str | None, batch_per_worker: int | None, ranks: int,
) -> tuple[TrainingRecipe, data.Found | None]:  # fmt: skip
    """Return the recipe of these settings and the real data, if any."""
    if workers is None:
        two = SMALL.workers
        workers = two if two % ranks == 0 else ranks
    require_count(workers, "workers")
    then = f"Use {ranks * max(1, round(workers / ranks))}, or other ranks."
    must = f"be a multiple of the {ranks} ranks that run them"
    require(workers % ranks == 0, "workers", must, workers, then)
    require(real is not None or not subset, "subset", "be False without `real`", subset)
    found = None if real is None else data.find(real, subset)
    recipe = (SMALL if found is None else data.recipe_for(GUIDE, found)).with_workers(workers)
    if batch_per_worker is not None:
        recipe = recipe.with_batch(batch_per_worker)
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


RATE = 1e-3  # speed does not depend on it, the weights must stay finite


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
        real: anything but None or False for ResNet-50 with pictures of 224 x 224 and 1000
            classes; the content of the pictures does not change the time.
        dtype: of the net.

    Raises:
        ValueError: if `batch_per_worker` is not positive.
    """
    recipe = GUIDE if real else SMALL
    batch = recipe.batch_per_worker
    if batch_per_worker is not None:
        batch = require_count(batch_per_worker, "batch_per_worker")
    name = f"{recipe.net}, {recipe.image} x {recipe.image}"
    return TimedStep(name, batch, partial(_worker, recipe, seed, dtype), partial(_samples, recipe))


def _worker(recipe: TrainingRecipe, seed: int, dtype: str, comm: Communicator) -> StepWorker:
    model = build_net(recipe, seed, dtype)
    from dlguide.training.optimizers import MomentumSGD

    optimizer = MomentumSGD(RATE, recipe.momentum, recipe.weight_decay)
    return classifier_worker(model, optimizer, comm)


def _samples(recipe: TrainingRecipe, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    pictures = random.normal(size=(count, recipe.image, recipe.image, 3)).astype(np.float32)
    return pictures, random.integers(0, recipe.classes, count, np.int32)


TOP = 5


def build_net(recipe: TrainingRecipe, seed: int, dtype: str = "float32") -> keras.Model:
    """Build the recipe's net, which returns logits."""
    model = models.build(recipe.net, seed, dtype=dtype, image=recipe.image, classes=recipe.classes)
    models.set_momentum(model, recipe.averages)
    return model


class Pair:
    """Two nets of the same pictures, as one whose logits have shape (pictures, 2, classes)."""

    def __init__(self, *nets: keras.Model) -> None:
        self.nets, self.inputs = nets, nets[0].inputs

    def __call__(self, images: Any, training: bool) -> Any:
        import tensorflow as tf

        return tf.stack([net(images, training=training) for net in self.nets], axis=1)


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

    def shared_phase(self) -> tuple[Curve, Any]:
        """Train the epochs before the branches, unless both branches have started already."""
        known = self._written("shared")
        ends = [checkpoints.latest(self.folder / name) for name in ("line", "collapsed")]
        begun = (
            self.comm.allreduce_sum([float(None not in ends)])[0] > 0
        )  # only rank 0 may see the folder
        if known is not None and begun:
            return known, None
        return self._fit(
            "shared", self.recipe.part_1(self.recipe.shared_epochs), self.recipe.shared_epochs
        )

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
        curve, (run, model) = self._fit(name, schedule, round(schedule.rates.epochs))
        with tf.device(require_device(self.device)):
            found = self.judge(model, self.test, line)()
        counts = (round(found[only] * self.test.samples) for only in ("won", "lost"))
        return Branch(
            name, curve, found["top 1"], found["top 5"], run.weights_digest, *counts,
            *self._on_training_pictures(model),
        ), run, model  # fmt: skip

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
        return evaluator(Pair(model, line or model), test, self.comm, metrics)

    def _on_training_pictures(self, model: keras.Model) -> list[float]:
        """Return the accuracy on random parts of training pictures, and on whole ones."""
        few = self.train.replace(samples=min(self.train.samples, self.test.samples))
        import tensorflow as tf

        with tf.device(require_device(self.device)):
            return [
                evaluator(model, part, self.comm)()["accuracy"]
                for part in (few, few.without_augmentation())
            ]

    def _fit(
        self, name: str, schedule: CollapsedDecay, epochs: int
    ) -> tuple[Curve, tuple[TrainingResult, keras.Model]]:
        made: list[keras.Model] = []
        run = fit(**self.arguments(name, schedule, epochs, made))
        known = self._written(name)
        curve = _curve(run)
        if known is not None and not curve.loss:
            return known, (run, made[-1])  # nothing was trained: an earlier call wrote it
        with self.comm.agree_or_raise():
            if self.comm.rank == 0:
                text = json.dumps(asdict(curve))
                written = self.folder / f"{name}.json.partial"
                written.write_text(text, encoding="utf-8")
                os.replace(written, self.folder / f"{name}.json")  # whole, or not at all
        return curve, (run, made[-1])

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
        return {
            "model": build, "data": self.train, "epochs": epochs,
            "batch_per_rank": recipe.batch_per_worker * workers, "learning_rate": schedule,
            "optimizer": partial(_optimizer, momentum=recipe.momentum),
            "checkpoint": CheckpointConfig(folder=self.folder / name, every_steps=self.save_every),
            "comm": self.comm, "on_result": self.report,
            "config": FitConfig(
                seed=self.seed, device=self.device, test=self._epoch_test(), dtype=self.dtype,
                virtual_workers=workers,
            ),
        }  # fmt: skip

    def rehearse(self, work: Rehearsal, endings: int) -> None:
        """Measure a little of the training and of the test at its two ends."""
        recipe, made = self.recipe, []
        schedule = recipe.part_1()
        arguments = self.arguments("line", schedule, round(recipe.epochs), made)
        # the endings go on from the shared phase
        paid = recipe.epochs + (endings - 1) * recipe.collapse
        work.fit("training", paid=paid, starts=1 + endings, **arguments)
        few = min(self.test.samples, 8 * recipe.global_batch)
        import tensorflow as tf

        with tf.device(require_device(self.device)):
            judge = self.judge(made[-1], self.test.replace(samples=few))
            # each ending is tested, and sees some training pictures twice
            samples = self.test.samples + min(self.train.samples, self.test.samples)
            work.repeat("test", endings * samples / few, judge)

    def _epoch_test(self) -> Pipeline:
        """Return the test pictures that are evaluated after each epoch."""
        few = self.recipe.tested
        return self.test if few is None else self.test.replace(samples=few)

    def _written(self, name: str) -> Curve | None:
        """Return the curve that an earlier call wrote; rank 0 reads for all."""
        path, text = self.folder / f"{name}.json", ""
        with self.comm.agree_or_raise():
            if self.comm.rank == 0 and path.exists():
                text = path.read_text(encoding="utf-8")
        text = self.comm.allgather(text)[0]
        if not text:
            return None
        found = json.loads(text)
        lists = {key: tuple(each) for key, each in found.items() if isinstance(each, list)}
        return Curve(**{**found, **lists})


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
    views = {size: (CentreCrop(size, size, round(size * 8 / 7)),) for size in sizes}
    correct = by_view(final_weights(folder, endings), images, views, recipe)
    return {
        name: {size: float(right.mean()) for size, right in of_net.items()}
        for name, of_net in correct.items()
    }


def final_weights(folder: str | os.PathLike, endings: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Return the weights that each ending has last written to `folder`, with its averages."""
    last = {name: checkpoints.latest(Path(folder) / name) for name in endings}
    return {name: list(checkpoints.read(path)[1]) for name, path in last.items()}


def by_view(
    nets: Mapping[str, Sequence[np.ndarray]],
    images: Dataset,
    views: Mapping[Any, tuple[Operation, ...]],
    recipe: TrainingRecipe = SMALL,
) -> dict[str, dict[Any, np.ndarray]]:
    """Return which test pictures each net classifies correctly, shown in several ways.

    Args:
        nets: name -> weights, with the moving averages.
        images: made-up pictures, of which those to test with are taken.
        views: name -> what is done to a picture before its values are normalised; the last
            operation crops.
        recipe: of the training.

    Returns:
        dict: net -> view -> booleans of shape (test pictures,).
    """
    _, test = data.pipelines(recipe, images, threads=len(os.sched_getaffinity(0)))
    found: dict[str, dict[Any, np.ndarray]] = {name: {} for name in nets}
    for view, operations in views.items():
        model = build_net(replace(recipe, image=operations[-1].rows), seed=0)
        augment = (*operations, test.augment[-1])
        shown = test.replace(augment=augment, batch_per_rank=min(400, test.samples), shuffle=False)
        with shown.epoch(0) as batches:
            batches = [(pixels, np.asarray(labels)) for pixels, labels in batches if len(labels)]
        for name, arrays in nets.items():
            model.set_weights(arrays[: len(model.weights)])  # the optimizer's follow
            best = [np.argmax(model(pixels, training=False), axis=1) for pixels, _ in batches]
            labels = [each for _, each in batches]
            found[name][view] = np.concatenate(best) == np.concatenate(labels)
    return found


def with_averages_of_whole(
    weights: Sequence[np.ndarray], images: Dataset, recipe: TrainingRecipe = SMALL, passes: int = 2
) -> list[np.ndarray]:
    """Return the same weights with batch normalisation's averages of whole training pictures.

    The net sees all pictures `passes` times in batches of one worker, and makes no update: after
    two passes of the small version 0.2 % of the old averages are left.

    Args:
        weights: of a trained net, with its averages.
        images: made-up pictures, of which those to train with are taken.
        recipe: of the training.
        passes: through the training pictures.
    """
    import tensorflow as tf

    model = build_net(recipe, seed=0)
    model.set_weights(weights[: len(model.weights)])
    seen = tf.function(lambda pixels: model(pixels, training=True), autograph=False)
    train, _ = data.pipelines(recipe, images)
    whole = train.without_augmentation()
    for epoch in range(passes):
        with whole.epoch(epoch) as batches:
            for pixels, _ in batches:
                seen(pixels)
    return model.get_weights()


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


def _folder(checkpoint: str | os.PathLike | None, comm: Communicator, stack: ExitStack) -> Path:
    """Return the folder of the checkpoints; without one, a temporary one of rank 0."""
    if checkpoint is not None:
        return Path(checkpoint)
    mine = ""
    with comm.agree_or_raise():
        if comm.rank == 0:
            mine = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlguide-imagenet-"))
    return Path(comm.allgather(mine)[0])
