"""A process that computes steps of a net on request, and the program that runs in it.

Requests go as lines of JSON to the standard input of `python -m dlguide.bench.worker`, answers
return on its standard output. What libraries print goes to its standard error, so it cannot mix
with answers. (A pool of `concurrent.futures` would import the caller's `__main__` again, which a
script without a guard does not survive, and would mix TensorFlow's messages with the output.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any

START_S, STEP_S = 300.0, 120.0  # limits: to start and build; for one step beside the time asked
RATE = 1e-3  # of plain SGD: the speed does not depend on it, the weights must stay finite


class WorkerProcess:
    """One worker process: `ask` it, wait for its `answer`, `close` it.

    Several can be asked before the first answer is taken: then they compute at the same time.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Start the process; TensorFlow starts in it with the first request."""
        self._stderr = tempfile.TemporaryFile("w+b")  # noqa: SIM115  closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dlguide.bench.worker"],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._read = b""

    def ask(self, do: str, **arguments: Any) -> None:
        """Send a request without waiting."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(self._ended()) from error

    def answer(self, timeout_s: float) -> Any:
        """Wait for the answer to the oldest request."""
        limit = monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, limit - monotonic())):
                    raise RuntimeError(f"A benchmark's process did not answer in {timeout_s:g} s.")
                came = os.read(self._process.stdout.fileno(), 65536)
                if not came:
                    raise RuntimeError(self._ended())
                self._read += came
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"A benchmark's process failed: {answer['error']}")
        return answer["answer"]

    def close(self) -> None:
        """End the process at once."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ended(self) -> str:
        status = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return "\n".join([f"A benchmark's process ended with {status}.", *lines[-10:]])


def ask_all(
    processes: Sequence[WorkerProcess], timeout_s: float, do: str, **arguments: Any
) -> list[Any]:
    """Let processes do the same at the same time; return their answers."""
    for process in processes:
        process.ask(do, **arguments)
    return [process.answer(timeout_s) for process in processes]


def random_images(model: Any, samples: int, seed: int) -> tuple[Any, Any]:
    """Draw images and labels (whole numbers) of the shapes that a classifier takes."""
    import numpy as np

    random = np.random.default_rng(seed)
    images = random.random((samples, *model.input_shape[1:]), np.float32)
    return images, random.integers(0, model.output_shape[-1], samples).astype(np.int32)


class NetSteps:
    """A net with its input, for steps of training and of inference."""

    def build(
        self,
        plan: dict[str, Any],
        rank: int,
        net: str,
        batch_per_rank: int,
        image: int | None,
        seed: int,
    ) -> dict[str, Any]:
        """Apply the plan of one rank, build net and input; return what identifies the work."""
        from dlguide.machine import threads

        threads.apply(threads.ThreadPlan.from_dict(plan), rank)
        import numpy as np
        import tensorflow as tf

        from dlguide import models

        size = {} if image is None else {"image": image}
        self.model = models.build(net, seed=seed, dropout=0.0, **size)
        arrays = random_images(self.model, batch_per_rank, seed)
        self.images, self.labels = map(tf.constant, arrays)
        self.steps = {
            "train": tf.function(self._train, autograph=False),
            "infer": tf.function(self._infer, autograph=False),
        }
        digest = hashlib.sha256()
        for weight in self.model.get_weights():
            digest.update(np.ascontiguousarray(weight))
        cost = models.costs.count(self.model)
        return {
            "digest": digest.hexdigest(),
            "tensorflow": tf.__version__,
            "flops_per_image": {"train": cost.training_flops, "infer": cost.flops},
        }

    def check(self, mode: str) -> list[float]:
        """Do one step; return loss and norm of the gradient, or mean and norm of the logits."""
        return [float(each) for each in self.steps[mode]()]

    def run(self, mode: str, seconds: float, least: int = 2) -> list[float]:
        """Do steps for some seconds, at least a few; return the time of every step (s)."""
        step, took = self.steps[mode], []
        begin = before = perf_counter()
        while len(took) < least or before - begin < seconds:
            step()[0].numpy()  # waits until the step has really ended
            now = perf_counter()
            took.append(now - before)
            before = now
        return took

    def _loss(self, logits: Any) -> Any:
        import tensorflow as tf

        each = tf.nn.sparse_softmax_cross_entropy_with_logits(self.labels, logits)
        return tf.reduce_mean(each)

    def _train(self) -> tuple[Any, Any]:
        import tensorflow as tf

        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(self.model(self.images, training=True))
        gradients = tape.gradient(loss, [each.value for each in variables])
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.value.assign_sub(RATE * gradient)
        return loss, tf.linalg.global_norm(gradients)

    def _infer(self) -> tuple[Any, Any]:
        import tensorflow as tf

        logits = self.model(self.images, training=False)
        return tf.reduce_mean(logits), tf.norm(logits)


def serve() -> None:
    """Answer requests until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    work = NetSteps()
    known = {"build": work.build, "check": work.check, "run": work.run}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": known[request.pop("do")](**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
