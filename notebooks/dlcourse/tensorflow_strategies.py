"""Trainings with TensorFlow's strategies, and which samples their workers see.

Called in a new process each, by `dlcourse.tensorflow_lab.Lab`, or on the ranks of a cluster where
Horovod exchanges the gradients.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dlguide.errors import require, require_count, require_known
from dlguide.measure import Timing

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

WAYS = ("alone", "mirrored", "multi_worker", "horovod")
REDUCTIONS = ("HierarchicalCopyAllReduce", "ReductionToOneDevice", "NcclAllReduce")
DIVIDE = ("global", "replica")
POLICIES = ("AUTO", "FILE", "DATA", "OFF")


@dataclass(frozen=True)
class StrategyRun:
    """The result of a training for one worker."""

    way: str
    replicas: int
    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    weights: tuple[np.ndarray, ...]


def split_cpu(devices: int = 2) -> list[str]:
    """Let TensorFlow see its one CPU as several devices, which share its threads."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * require_count(devices, "devices")
    tf.config.set_logical_device_configuration(cpu, parts)
    return [f"CPU:{device}" for device in range(devices)]


def strategy(
    way: str, devices: int = 2, reduction: str | None = None, communication: str = "AUTO"
) -> tf.distribute.Strategy:
    """Make a strategy, in a process in which TensorFlow has not started."""
    import tensorflow as tf

    require_known(way, WAYS, "way")
    if way == "mirrored":
        known = None if reduction is None else require_known(reduction, REDUCTIONS, "reduction")
        operations = None if known is None else getattr(tf.distribute, known)()
        return tf.distribute.MirroredStrategy(split_cpu(devices), operations)
    if way == "multi_worker":
        kinds = tf.distribute.experimental.CommunicationImplementation
        require_known(communication, kinds.__members__, "communication")
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=kinds[communication]
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return tf.distribute.get_strategy()


def train(
    way: str,
    net: str = "mlp",
    batch: int = 100,
    steps: int = 10,
    rate: float = 0.1,
    divide: str = "global",
    **how: Any,
) -> StrategyRun:
    """Train with a custom loop; all ways take the same global batches of MNIST in order."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dlguide import models
    from dlguide.data import datasets

    require_known(divide, DIVIDE, "divide")
    require_count(steps, "steps")
    scheme = strategy(way, **how)
    ranks, rank = _horovod() if way == "horovod" else (1, 0)
    replicas = ranks * scheme.num_replicas_in_sync
    require(batch % replicas == 0, "batch", f"be a multiple of {replicas} replicas", batch)
    with scheme.scope():
        model = models.build(net, seed=0, dropout=0.0)
        optimizer = keras.optimizers.SGD(rate)
        if way == "horovod":
            import dlguide.horovod as hvd

            optimizer = hvd.DistributedOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
    own = divide == "replica" or way == "horovod"
    counted = batch // replicas if own else batch

    def replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / counted
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return tf.reduce_sum(losses) / (batch // ranks)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return scheme.reduce("SUM", scheme.run(replica, args=(images, labels)), axis=None)

    data = datasets.load("mnist").first(batch * steps)
    mine = np.arange(batch * steps).reshape(steps, ranks, -1)[:, rank].ravel()
    samples = data.train_images[mine], data.train_labels[mine]
    batches = tf.data.Dataset.from_tensor_slices(samples).batch(batch // ranks)
    batches = scheme.experimental_distribute_dataset(sharded(batches, "DATA"))
    losses, times = [], [perf_counter()]
    for each in batches:
        losses.append(float(step(*each)))
        times.append(perf_counter())
    step_s = tuple(after - before for before, after in pairwise(times))
    return StrategyRun(way, replicas, tuple(losses), step_s, tuple(model.get_weights()))


def _horovod() -> tuple[int, int]:
    import dlguide.horovod as hvd

    hvd.init()
    return hvd.size(), hvd.rank()


def slowest(trained: Sequence[StrategyRun], warmup: int = 3) -> Timing:
    """Take from each step the time of its slowest worker."""
    seconds = tuple(max(each) for each in zip(*(one.step_s for one in trained), strict=True))
    return Timing(seconds[warmup:], seconds[:warmup])


def distance(first: StrategyRun, second: StrategyRun) -> float:
    """Return the largest difference of any weight between two trainings."""
    pairs = zip(first.weights, second.weights, strict=True)
    return max(float(abs(one - other).max()) for one, other in pairs)


def sharded(batches: tf.data.Dataset, policy: str) -> tf.data.Dataset:
    """Set how a strategy shares a data set out to its workers."""
    import tensorflow as tf

    require_known(policy, POLICIES, "policy")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return batches.with_options(options)


def samples_seen(policy: str, files: int = 0, samples: int = 12, batch: int = 4) -> list[list[int]]:
    """Return the numbers of the samples that this worker gets, step by step."""
    import tensorflow as tf

    scheme = strategy("multi_worker")
    with tempfile.TemporaryDirectory() as folder:
        if files:
            _write(folder, files, samples)
            names = tf.data.Dataset.list_files(f"{folder}/*", shuffle=False)
            numbers = names.interleave(tf.data.TFRecordDataset, cycle_length=1)
            numbers = numbers.map(lambda record: tf.strings.to_number(record, tf.int64))
        else:
            numbers = tf.data.Dataset.range(samples)
        batches = scheme.experimental_distribute_dataset(sharded(numbers.batch(batch), policy))
        steps = [scheme.experimental_local_results(each) for each in batches]
    return [[int(number) for part in step for number in part.numpy()] for step in steps]


def _write(folder: str, files: int, samples: int) -> None:
    import numpy as np
    import tensorflow as tf

    for file, numbers in enumerate(np.array_split(np.arange(samples), files)):
        with tf.io.TFRecordWriter(os.path.join(folder, f"{file:03}.tfrecord")) as writer:
            for number in numbers:
                writer.write(b"%d" % number)
