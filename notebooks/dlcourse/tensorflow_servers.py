"""TensorFlow's own parameter servers, started and stopped by one call.

`tf.distribute.Server` processes for workers and servers, and a chief that schedules steps. They
use gRPC on ports of this machine. Sources: Abadi et al., OSDI (2016), section 4; the TensorFlow
guide's parameter server training.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from dlcourse.tensorflow_lab import Lab
from dlguide.errors import require_count

BATCH, RATE, SAMPLES = 100, 0.1, 10_000


@dataclass(frozen=True)
class ServersRun:
    """The result of a training with TensorFlow's parameter servers."""

    steps: int
    updates: int
    accuracy: float
    places: dict[str, str]  # which process holds each variable


def train(workers: int, servers: int, steps: int, timeout_s: float = 120.0) -> ServersRun:
    """Train a small net on MNIST with `ParameterServerStrategy`, `steps` over all workers.

    Updates are asynchronous: each is applied when it comes. The servers answer on all network
    interfaces of the machine, without encryption, while the call lasts.
    """
    for name, value in {"workers": workers, "servers": servers, "steps": steps}.items():
        require_count(value, name)
    roles = ["chief", *["worker"] * workers, *["ps"] * servers]
    threads = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "0")
    how = {"limit_s": timeout_s, "leader": 0, "environment": threads}
    with Lab() as lab:
        outcome = lab.try_out(_take_part, roles, steps, workers=len(roles), **how)
    for role, each in zip(roles, outcome.endings, strict=True):
        if each.verdict in ("refused", "died"):
            raise RuntimeError(f"TensorFlow's {role} {each.verdict}.\n{each.words}")
    chief = outcome.endings[0]
    if chief.verdict == "hung":
        raise RuntimeError(f"TensorFlow's chief did not end in time.\n{chief.words}")
    return chief.answer


def _take_part(roles: list[str], steps: int) -> ServersRun | None:
    """Be a worker or a parameter server until the process is ended, or the chief."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    cluster: dict[str, list[str]] = {role: [] for role in dict.fromkeys(roles)}
    tasks = []
    for role, address in zip(roles, config["cluster"]["worker"], strict=True):
        tasks.append(len(cluster[role]))
        cluster[role].append(address)
    spec, mine = tf.train.ClusterSpec(cluster), config["task"]["index"]
    if mine == 0:
        return _coordinate(spec, steps)
    tf.distribute.Server(spec, roles[mine], tasks[mine], protocol="grpc").join()


def _coordinate(spec: Any, steps: int) -> ServersRun:
    """Be the chief: hand out steps to the workers, as each becomes free.

    The variables lie on the servers. A step reads them, computes a gradient, and subtracts it:
    asynchronous SGD. The net is plain TensorFlow variables, because Keras 3 does not support
    this strategy.
    """
    import tensorflow as tf

    from dlguide.data import datasets

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = {}
        for number, (name, shape) in enumerate((("hidden", (784, 64)), ("logits", (64, 10)))):
            start = tf.random.stateless_normal(shape, [0, number]) * shape[0] ** -0.5
            weights[name] = tf.Variable(start, name=name)
        updates = tf.Variable(0, dtype=tf.int64, name="updates")
    data = datasets.load("mnist")

    def logits(images: Any) -> Any:
        flat = tf.reshape(images, (-1, 784))
        return tf.nn.relu(flat @ weights["hidden"]) @ weights["logits"]

    def batches() -> Any:
        images, labels = data.train_images[:SAMPLES], data.train_labels[:SAMPLES]
        whole = tf.data.Dataset.from_tensor_slices((images, labels))
        # unequal orders on the workers: this strategy does not share the data out
        return whole.shuffle(SAMPLES).repeat().batch(BATCH)

    @tf.function
    def step(iterator: Any) -> Any:
        images, labels = next(iterator)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images))
            loss = tf.reduce_mean(losses)
        variables = list(weights.values())
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * gradient)
        updates.assign_add(1)
        return loss

    each = iter(coordinator.create_per_worker_dataset(batches))
    for _ in range(steps):
        coordinator.schedule(step, (each,))
    coordinator.join()
    right = tf.argmax(logits(data.test_images), axis=1) == data.test_labels
    accuracy = float(tf.reduce_mean(tf.cast(right, tf.float32)))
    devices = {name: variable.device for name, variable in weights.items()}
    places = {
        name: device.split("/replica")[0].strip("/") + device.split("/task")[1][:2]
        for name, device in devices.items()
    }
    return ServersRun(steps, int(updates.numpy()), accuracy, places)
