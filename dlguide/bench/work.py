"""The program of one process that computes on request: started by `bench.process`.

Requests come as lines of JSON on the standard input, answers leave as lines on the standard
output. What libraries print goes to the standard error, so that it cannot mix with answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

RATE = 1e-3  # of plain SGD: the speed does not depend on it, the weights must stay finite


class Work:
    """A net with its input, ready for steps of training and of inference."""

    def build(
        self,
        plan: dict[str, Any],
        rank: int,
        net: str,
        batch: int,
        image: int | None,
        seed: int,
    ) -> dict[str, Any]:
        """Take this process' part of the cores, start TensorFlow, build net and input.

        Args:
            plan: a ThreadPlan as plain dictionary.
            rank: which part of it this process is.
            net: name for `models.build`.
            batch: images per step (count).
            image: height and width of the images (pixels); None takes the net's own.
            seed: of weights and images.

        Returns:
            dict: a digest of the weights, TensorFlow's version.
        """
        from dlguide.machine import threads

        threads.apply(threads.ThreadPlan.from_dict(plan), rank)
        import numpy as np
        import tensorflow as tf

        from dlguide import models

        size = {} if image is None else {"image": image}
        self.model = models.build(net, seed=seed, dropout=0.0, **size)
        random = np.random.default_rng(seed)
        shape, classes = self.model.input_shape[1:], self.model.output_shape[-1]
        self.images = tf.constant(random.random((batch, *shape), np.float32))
        self.labels = tf.constant(random.integers(0, classes, batch))
        self.steps = {
            "train": tf.function(self._train, autograph=False),
            "infer": tf.function(self._infer, autograph=False),
        }
        digest = hashlib.sha256()
        for weight in self.model.get_weights():
            digest.update(np.ascontiguousarray(weight))
        return {"digest": digest.hexdigest(), "tensorflow": tf.__version__}

    def check(self, mode: str) -> list[float]:
        """Make one step and return numbers that must agree between processes.

        Args:
            mode: "train" or "infer".

        Returns:
            list: loss and norm of the gradient, or mean and norm of the logits.
        """
        return [float(each) for each in self.steps[mode]()]

    def run(self, mode: str, seconds: float, least: int = 2) -> list[float]:
        """Make steps until the time is over.

        Args:
            mode: "train" or "infer".
            seconds: how long (s).
            least: steps that are made also when they take longer (count).

        Returns:
            list: time of every step (s).
        """
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
    work = Work()
    known: dict[str, Callable[..., Any]] = {
        "build": work.build,
        "check": work.check,
        "run": work.run,
    }
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
