"""TensorFlow's own parameter servers, started and stopped by one call.

`tf.distribute.Server` processes for workers and servers, and a chief that hands out steps. They
speak gRPC on ports of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require_count, require_positive


@dataclass(frozen=True)
class Trained:
    """What came out of a training with TensorFlow's parameter servers."""

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
) -> Trained:
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
        Trained: throughput, accuracy, updates.

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
    return Trained(
        workers, servers, steps, answer["updates"], batch, answer["seconds"], answer["accuracy"],
        {name: place.split("/replica")[0].strip("/") + place.split("/task")[1][:2]
         for name, place in answer["places"].items()},
    )  # fmt: skip


@contextlib.contextmanager
def _process(order: dict[str, Any]) -> Any:
    """Start one process and end it after the block."""
    with tempfile.TemporaryFile("w+b") as errors, tempfile.TemporaryFile("w+b") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dlguide.parallel.tensorflow_role", json.dumps(order)],
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
