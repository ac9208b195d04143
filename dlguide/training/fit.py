"""`fit`: one training, the same for one process and for many ranks."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from dlguide import measure, models
from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import require
from dlguide.measure import Run
from dlguide.parallel.compression import named
from dlguide.training import rates, settings
from dlguide.training.clock import Clock
from dlguide.training.devices import connect
from dlguide.training.divergence import Watch
from dlguide.training.loop import Steps, train_epoch
from dlguide.training.saving import Saver
from dlguide.training.schedules_collapsed import Collapsed
from dlguide.training.schedules_recipe import Recipe
from dlguide.training.settings import Settings
from dlguide.training.steps import evaluator
from dlguide.training.workers import Workers, feed_of

if TYPE_CHECKING:
    import keras

    from dlguide.collectives.communicator import Communicator
    from dlguide.parallel.compressors import Compressor


def fit(
    net: str | Callable[[], keras.Model] = "mnist_cnn",
    data: str | Dataset | Pipeline = "mnist",
    epochs: int = 1,
    batch: int = 100,
    optimizer: str | Callable[..., keras.Optimizer] = "adam",
    learning_rate: float | None = None,
    rate_scaling: str | None = None,
    seed: int = 0,
    parallel: bool | None = None,
    samples: int | None = None,
    dropout: float | None = None,
    dtype: str = "float32",
    shuffle: bool = True,
    device: str = "cpu",
    evaluate: bool = True,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    compression: str | Compressor = "none",
    timeline: str | os.PathLike | None = None,
    test: Dataset | Pipeline | None = None,
    schedule: Recipe | Collapsed | None = None,
    workers: int = 1,
    save_every: int | None = None,
) -> Run:
    """Train a net, alone or on all ranks together, and tell what came out and what it took.

    Synchronous data parallelism: p ranks hold the same weights; in each step every rank takes
    its own `batch` images of the global batch of p * batch, and the gradients of all are summed
    by Horovod. Without dropout and batch normalisation the weights are those of one process that
    trains with the global batch. On many ranks all of them must call this, with the same
    arguments: the same seed for the order of the samples and the first weights; only the units
    that dropout leaves out differ from rank to rank.

    The learning rate is the one for one rank and follows the ranks as `rates.scaled_rate`
    says: linearly for SGD, by the square root for Adam. A schedule names the rates themselves.

    One rank can play several workers, one after the other in each step: with k workers, p ranks
    train like k * p ranks, batch normalisation and dropout included (`workers.Workers`). That
    shows what many workers do to the accuracy, not how fast they are.

    Data that does not fit into memory comes from a pipeline, which gives each rank the samples
    that it would take from an array. Where one rank cannot read its data, all fail together at
    the end of that epoch.

    Args:
        net: a name of `models.names("digits", "classifier")`, or a function that returns a
            Keras model with logits.
        data: one of `datasets.names()`, a Dataset, or an `input_pipeline.build(...)`, whose
            batch, seed, shuffle, rank and ranks are then those of the training.
        epochs: passes over the training samples, those of a checkpoint included (count).
        batch: images per worker and step (count).
        optimizer: "adam", "sgd" (momentum 0.9), or a function that returns a Keras optimizer; it
            is called with the rate where there is a `schedule`: `optimizers.momentum_sgd`.
        learning_rate: for one rank; None for the optimizer's own.
        rate_scaling: "linear", "sqrt", "none"; None for the optimizer's own rule.
        seed: of the first weights of a named net, of the order of samples, of dropout.
        parallel: False for this process alone, True for all ranks of the launcher; None for
            True exactly when the launcher started more than one.
        samples: training samples to use, the first ones; None for all (count).
        dropout: fraction of units a named net leaves out while training; None for its own.
        dtype: of a named net: "float32", "float64", "mixed_bfloat16", "mixed_float16".
        shuffle: whether each epoch takes the samples in an order of its own.
        device: "cpu" or "gpu".
        evaluate: whether to count right answers on the whole test set after each epoch.
        checkpoint: folder to write a checkpoint to after each epoch, and to go on from if it
            holds one (rank 0 says so first); None for neither. Resumed on as many ranks, a
            training ends with the weights of the uninterrupted one, bit by bit. Not with an
            optimizer that accumulates gradients.
        report: called with numbers (epoch, epochs, step, steps, loss, images_per_s) up to ten
            times a second; None for `measure.report_progress`.
        compression: of gradients on their way between ranks: a name or a compressor of
            `dlguide.parallel.compression`.
        timeline: file for Horovod's timeline of the epochs, which rank 0 writes and
            `measure.timeline.read` reads; None for none. It slows rank 0 down: take few steps.
        test: a Dataset whose test images are counted, or a Pipeline; None for those of `data`.
        schedule: learning rates of the global batch over all epochs, made by `schedules`; a
            collapsed one gives the optimizer its weight decay too, and lets a pipeline's images
            alone from its last part on. None for a constant rate.
        workers: how many each rank plays, `batch` images each (count).
        save_every: steps between two checkpoints within an epoch, from which only as many ranks,
            workers and images can go on; None for one at the end of each epoch only (count).

    Returns:
        Run: as this rank saw it.

    Raises:
        ValueError: when an argument is not what it must be; on all ranks, before any work.
        CheckpointError: when the checkpoint there is damaged or another training's, when another
            process trains with that folder, or when a checkpoint cannot be written.
        DivergedError: on all ranks, when a loss or a weight is nan or infinite; the text has step,
            ranks, learning rate and the last good checkpoint.
        MissingComponentError: when the data or the device is not there.

    Source:
        Goyal et al., arXiv:1706.02677 (synchronous SGD, scaling of the rate).
    """
    asked = Settings(
        net=net, data=data, epochs=epochs, batch=batch, optimizer=optimizer,
        learning_rate=learning_rate, rate_scaling=rate_scaling, seed=seed, samples=samples,
        dropout=dropout, dtype=dtype, shuffle=shuffle, device=device, evaluate=evaluate,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint), compression=compression,
        timeline=None if timeline is None else os.fspath(timeline), test=test, schedule=schedule,
        workers=workers, save_every=save_every,
    )  # fmt: skip
    clock = Clock()
    report = measure.report_progress if report is None else report
    with ExitStack() as stack:
        with clock.phase("setup"):
            comm = connect(parallel, recording=timeline is not None)
            saver = stack.enter_context(closing(Saver(asked, comm)))
            with comm.agree_or_raise(asked.names()):
                asked.check()
                saver.announce()
                data = settings.load_data(data, samples, batch, comm.size, workers)
                place = settings.require_device(device)
                import tensorflow as tf

                with tf.device(place):
                    model = (
                        models.build(net, seed, dropout, dtype) if isinstance(net, str) else net()
                    )
                plain_from = schedule.at if isinstance(schedule, Collapsed) else None
                feed = feed_of(data, batch, seed, shuffle, comm, model, workers, plain_from)
                with tf.device(place):
                    rule = rates.make_optimizer(
                        optimizer, comm.size * workers, learning_rate, rate_scaling, dtype,
                        schedule, len(feed.steps(0)),
                    )  # fmt: skip
                saver.require_whole(rule)
            with tf.device(place):
                compressor = named(compression)
                sent_before = compressor.sent
                rule = comm.distribute(rule, compressor)
                rule.build(model.trainable_variables)
                comm.broadcast(model.weights)
                start = saver.resume(model, rule)
                players = Workers(model, rule, comm, workers)
                begun = saver.give_back(players)
                watch = Watch(model, rule, comm, start.done, saver.last_good, players.not_finite)
                accuracy = (
                    evaluator(model, data if test is None else test, comm) if evaluate else None
                )
                # Keras holds it in float32; by way of its text 0.002 stays 0.002.
                rate = float(str(np.float32(rule.learning_rate)))
                if schedule is not None:
                    rate = float(rates.rates_of(schedule).at(len(feed.steps(0))).rates().max())

        measured, loss, train_accuracy, test_accuracy = Steps(), [], [], []
        with tf.device(place), _recording(asked.timeline, comm):
            for epoch in range(start.epoch, epochs):
                parts = feed.steps(epoch)
                at, sums = (start.step, begun) if epoch == start.epoch else (0, (0.0, 0.0))
                batches = feed.batches(epoch, at)
                if at == 0:
                    players.begin_epoch(seed, epoch * len(parts))
                tell = partial(report, epoch=epoch + 1, epochs=epochs)
                after = partial(watch.after, epoch=epoch + 1)
                for until in saver.stops(at, len(parts)):
                    with clock.phase("train"):
                        sums = train_epoch(
                            players.step, batches, parts, measured, tell, at, until, sums, after
                        )
                        feed.check()
                        if until == len(parts):
                            summed = comm.allreduce_sum(sums)
                            players.end_epoch()  # batch normalisation saw each worker's own images
                        watch.settle()
                    if until < len(parts):
                        with clock.phase("checkpoint"):
                            saver.save_within(epoch, until, len(measured.step_s), sums)
                    at = until
                loss.append(summed[0] / feed.samples)
                train_accuracy.append(summed[1] / feed.samples)
                if evaluate:
                    with clock.phase("evaluate"):
                        test_accuracy.append(accuracy())
                if checkpoint is not None:
                    with clock.phase("checkpoint"):
                        saver.save(epoch + 1, len(measured.step_s))
            if evaluate and not test_accuracy:  # a finished checkpoint was found
                with clock.phase("evaluate"):
                    test_accuracy.append(accuracy())
    return Run(
        rank=comm.rank,
        ranks=comm.size,
        threads=_threads(),
        net=settings.name_of(net),
        data=data.name,
        device=device,
        epochs=int(epochs),
        batch=int(batch),
        global_batch=int(batch) * comm.size * workers,
        optimizer=settings.name_of(optimizer),
        learning_rate=rate,
        seed=int(seed),
        parameters=sum(int(np.prod(v.shape, dtype=int)) for v in model.trainable_weights),
        samples=feed.samples,
        steps_per_epoch=len(feed.steps(0)),
        first_epoch=start.epoch,
        loss=tuple(loss),
        test_accuracy=tuple(test_accuracy),
        step_s=tuple(measured.step_s),
        wait_s=tuple(measured.wait_s),
        first_step_s=measured.step_s[0] if measured.step_s else 0.0,
        setup_s=clock.total_s("setup"),
        train_s=clock.total_s("train"),
        evaluate_s=clock.total_s("evaluate"),
        checkpoint_s=clock.total_s("checkpoint"),
        images_per_s=measure.steady_images_per_s(measured.step_s, measured.images),
        images_per_s_with_first=measured.images_per_s(),
        weights_digest=_digest(model),
        started_unix_s=clock.started_unix_s,
        phases=tuple(clock.phases),
        versions=_versions(comm.size),
        total_s=clock.now_s,
        compression=compressor.name,
        sent_nbytes=compressor.sent - sent_before,
        step_start_s=tuple(clock.after_start_s(begin) for begin in measured.begin_s),
        workers=int(workers),
        train_accuracy=tuple(train_accuracy),
    )


def _recording(path: str | None, comm: Communicator) -> AbstractContextManager:
    if path is None:
        return nullcontext()
    must = "be None in a training without other ranks, which exchanges nothing"
    require(comm.size > 1, "timeline", must, path, "Train on more ranks.")
    from dlguide.horovod import record_timeline

    return record_timeline(path)


def _digest(model: keras.Model) -> str:
    digest = hashlib.sha256()
    for weight in model.trainable_weights:
        digest.update(np.asarray(weight).tobytes())
    return digest.hexdigest()


def _threads() -> int:
    import tensorflow as tf

    # 0 is TensorFlow's word for as many as it finds.
    chosen = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return threads or int(chosen if chosen.isdigit() else 0) or len(os.sched_getaffinity(0))


def _versions(ranks: int) -> dict[str, str]:
    names = ["dlguide", "keras", "numpy", *(["horovod", "mpi4py"] if ranks > 1 else [])]
    import tensorflow as tf

    found = {"python": platform.python_version(), "tensorflow": tf.__version__}
    return found | {name: version(name) for name in names}
