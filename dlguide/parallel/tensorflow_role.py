"""One process of TensorFlow's parameter-server engine: `python -m ... ORDER`, ORDER as JSON.

It ends when its standard input closes, so that nothing outlives who started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from time import perf_counter
from typing import Any


def serve(cluster: dict[str, list[str]], role: str, index: int) -> None:
    """Be a worker or a parameter server until the process is ended."""
    import tensorflow as tf

    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=role, task_index=index, protocol="grpc"
    )
    server.join()


def coordinate(cluster: dict[str, list[str]], work: dict[str, Any]) -> dict[str, Any]:
    """Be the chief: hand out steps to the workers, as each becomes free.

    The variables lie on the servers. A step reads them, computes a gradient, and subtracts it:
    asynchronous SGD. The net is plain TensorFlow variables, because Keras 3 does not support
    this strategy.
    """
    import tensorflow as tf

    from dlguide.data import datasets

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    shapes = {"hidden": (784, work["hidden"]), "logits": (work["hidden"], 10)}
    with strategy.scope():
        weights = {
            name: tf.Variable(
                tf.random.stateless_normal(shape, [work["seed"], number]) * shape[0] ** -0.5,
                name=name,
            )
            for number, (name, shape) in enumerate(shapes.items())
        }
        updates = tf.Variable(0, dtype=tf.int64, name="updates")
    data = datasets.load("mnist")
    samples = work["samples"]

    def logits(images: Any) -> Any:
        flat = tf.reshape(images, (-1, 784))
        return tf.nn.relu(flat @ weights["hidden"]) @ weights["logits"]

    def batches() -> Any:
        images, labels = data.train_images[:samples], data.train_labels[:samples]
        whole = tf.data.Dataset.from_tensor_slices((images, labels))
        # unequal orders on the workers: this strategy does not share the data out
        return whole.shuffle(samples).repeat().batch(work["batch"])

    @tf.function
    def step(iterator: Any) -> Any:
        images, labels = next(iterator)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images))
            loss = tf.reduce_mean(losses)
        variables = list(weights.values())
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(work["rate"] * gradient)
        updates.assign_add(1)
        return loss

    each = iter(coordinator.create_per_worker_dataset(batches))
    coordinator.schedule(step, (each,))  # tracing, on the first worker
    coordinator.join()
    start = perf_counter()
    for _ in range(work["steps"] - 1):
        coordinator.schedule(step, (each,))
    coordinator.join()
    seconds = perf_counter() - start
    right = tf.argmax(logits(data.test_images), axis=1) == data.test_labels
    return {
        "seconds": seconds,
        "accuracy": float(tf.reduce_mean(tf.cast(right, tf.float32))),
        "steps": work["steps"],
        "updates": int(updates.numpy()),
        "places": {name: variable.device for name, variable in weights.items()},
    }


def main(order: dict[str, Any]) -> None:
    """Do what ORDER says; the chief prints its result as one line of JSON."""

    def end_with_the_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    if order["role"] == "chief":
        found = json.dumps(coordinate(order["cluster"], order["work"]))
        os.write(1, f"{found}\n".encode())
        os._exit(0)  # the strategy's own threads would wait for servers that never end
    serve(order["cluster"], order["role"], order["index"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
