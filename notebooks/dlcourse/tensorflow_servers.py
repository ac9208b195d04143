"""TensorFlow's own parameter servers, started and stopped by one call.

`tf.distribute.Server` processes for workers and servers, and a chief that schedules steps. They
use gRPC on ports of this machine. `python -m dlcourse.tensorflow_servers ORDER` is one of these
processes, ORDER as JSON; it ends when its standard input closes, so that nothing outlives the
process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from dlguide.errors import require_count, require_positive


@dataclass(frozen=True)
class ServersRun:
    """The result of a training with TensorFlow's parameter servers."""

    workers: int
    servers: int
    steps: int
    updates: int
    batch: int
    seconds: float
    accuracy: float
    places: dict[str, str]

    @property
    def images_per_s(self) -> float:
        """Throughput over all workers, without the first step."""
        return (self.steps - 1) * self.batch / self.seconds


def train(
    workers: int = 2,
    servers: int = 1,
    steps: int = 200,
    batch: int = 100,
    rate: float = 0.1,
    samples: int = 10_000,
    hidden: int = 64,
    seed: int = 0,
    timeout_s: float = 120.0,
) -> ServersRun:
    """Train a small net on MNIST with `ParameterServerStrategy` in processes of their own.

    Updates are asynchronous: each is applied when it comes. Its servers answer on all network
    interfaces of the machine, without encryption, while the call lasts.

    Args:
        workers: number of workers (count).
        servers: number of parameter servers, which get the variables in turn (count).
        steps: steps over all workers (count), at least 2.
        batch: images of a step (count).
        rate: learning rate.
        samples: training images (count).
        hidden: units of the hidden layer (count).
        seed: of the first weights.
        timeout_s: when to give up (s).

    Returns:
        ServersRun: throughput, accuracy, updates.

    Raises:
        ValueError: when a number is out of range.
        RuntimeError: when a process ends or does not answer; the text ends with what it said.

    Source:
        Abadi et al., OSDI (2016), section 4; the TensorFlow guide's parameter server training.
    """
    for name, value in (("workers", workers), ("servers", servers), ("batch", batch)):
        require_count(value, name)
    require_count(steps, "steps", least=2)
    require_count(hidden, "hidden")
    require_count(samples, "samples")
    require_positive(rate, "rate")
    limit = time.monotonic() + require_positive(timeout_s, "timeout_s")
    ports = iter(free_ports(1 + workers + servers))
    counts = {"chief": 1, "worker": workers, "ps": servers}
    cluster = {
        role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items()
    }
    work = {
        "steps": steps, "batch": batch, "rate": rate, "samples": samples, "hidden": hidden,
        "seed": seed,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        said = {}
        for role in ("ps", "worker", "chief"):
            for index in range(counts[role]):
                order = {"role": role, "index": index, "cluster": cluster, "work": work}
                said[role, index] = stack.enter_context(_process(order))
        answer = _answer(said, limit)
    return ServersRun(
        workers, servers, steps, answer["updates"], batch, answer["seconds"], answer["accuracy"],
        {name: place.split("/replica")[0].strip("/") + place.split("/task")[1][:2]
         for name, place in answer["places"].items()},
    )  # fmt: skip


@contextlib.contextmanager
def _process(order: dict[str, Any]) -> Any:
    """Start one process and end it after the block."""
    with tempfile.TemporaryFile("w+b") as errors, tempfile.TemporaryFile("w+b") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dlcourse.tensorflow_servers", json.dumps(order)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE, stdout=out, stderr=errors,
        )  # fmt: skip
        try:
            yield process, out, errors
        finally:
            process.kill()
            process.stdin.close()
            process.wait()


def _answer(said: dict[tuple[str, int], Any], limit: float) -> dict[str, Any]:
    chief = said["chief", 0][0]
    while chief.poll() is None:
        for (role, index), (process, _, errors) in said.items():
            if process.poll() is not None and role != "chief":
                raise RuntimeError(f"TensorFlow's {role} {index} ended.\n{_tail(errors)}")
        if time.monotonic() > limit:
            raise RuntimeError(
                f"TensorFlow's chief did not end in time.\n{_tail(said['chief', 0][2])}"
            )
        time.sleep(0.05)
    _, out, errors = said["chief", 0]
    out.seek(0)
    lines = out.read().decode().splitlines()
    if chief.returncode != 0 or not lines:
        raise RuntimeError(f"TensorFlow's chief ended with {chief.returncode}.\n{_tail(errors)}")
    return json.loads(lines[-1])


def _tail(file: Any) -> str:
    file.seek(0)
    return "\n".join(file.read().decode(errors="replace").splitlines()[-10:])


def free_ports(count: int) -> list[int]:
    """Find ports that are free now; all are held until the last one is found."""
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            found.append(probe.getsockname()[1])
        return found


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
