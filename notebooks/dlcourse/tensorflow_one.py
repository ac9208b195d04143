"""Programs of TensorFlow 1 beside those of today: the same result, each row run.

What the deck's `cnn_mnist` is made of: placeholders, a session, an optimizer as part of the graph,
a monitored session with hooks. The left ones still run, under `tf.compat.v1`.

Source: 2019 workshop deck, its pages on TensorFlow and `cnn_mnist`.
"""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dlguide.errors import MissingComponentError

# Of each pair: its name and the tolerance, the trap, the program of 2019 and that of today.
_PROGRAMS = """\
=== placeholder, feed_dict | 0
pass tensors: each new Python number would be traced anew
---
with tf.Graph().as_default():
    a = tf.compat.v1.placeholder(tf.float32, name="input1")
    b = tf.compat.v1.placeholder(tf.float32, name="input2")
    d = a * b + b
    with tf.compat.v1.Session() as sess:
        return sess.run(d, feed_dict={a: 3.0, b: 2.0})
---
@tf.function
def d(a, b):
    return a * b + b

return d(tf.constant(3.0), tf.constant(2.0))
=== initializer, Session | 0
no initialiser to forget; a variable made inside a step is made only once
---
with tf.Graph().as_default():
    count = tf.compat.v1.get_variable("count", initializer=0.0)
    add = count.assign_add(1.0)
    start = tf.compat.v1.global_variables_initializer()
    with tf.compat.v1.Session() as sess:
        sess.run(start)
        return [sess.run(add) for _ in range(3)]
---
count = tf.Variable(0.0)
return [count.assign_add(1.0).numpy() for _ in range(3)]
=== next_batch | 0
next_batch shuffled and repeated; batch() ends and keeps a short rest
---
data, size = np.arange(12.0), 4
with tf.Graph().as_default():
    x = tf.compat.v1.placeholder(tf.float32, (None,))
    total = tf.reduce_sum(x)
    with tf.compat.v1.Session() as sess:
        # what next_batch(4) gave, one after the other
        return [sess.run(total, {x: data[i : i + size]}) for i in (0, 4, 8)]
---
data = tf.data.Dataset.from_tensor_slices(np.arange(12.0)).batch(4)
return [tf.reduce_sum(batch).numpy() for batch in data]
=== minimize | 1e-06
nothing is recorded outside the tape
---
with tf.Graph().as_default():
    w = tf.compat.v1.get_variable("w", initializer=0.0)
    loss = (w - 3.0) ** 2
    train_step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.compat.v1.Session() as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        for _ in range(5):
            sess.run(train_step)
        return sess.run(w)
---
w, optimizer = keras.Variable(0.0), keras.optimizers.SGD(0.1)
for _ in range(5):
    with tf.GradientTape() as tape:
        loss = (w - 3.0) ** 2
    optimizer.apply(tape.gradient(loss, [w.value]), [w])
return w.numpy()
=== hooks | 1e-06
last_step counts from the very first step, also after a checkpoint (num_steps counts this
run's); epochs count from 0 in every fit
---
class Note(tf.compat.v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        seen.append(run_context.session.run(now))

seen = []
with tf.Graph().as_default():
    step = tf.compat.v1.train.get_or_create_global_step()
    x = tf.compat.v1.placeholder(tf.float32, (None, 1))
    w = tf.compat.v1.get_variable("w", (1, 1), initializer=tf.zeros_initializer())
    now, loss = w.read_value(), tf.reduce_mean((x @ w - 3.0) ** 2)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    train_step = optimizer.minimize(loss, global_step=step)
    hooks = [tf.compat.v1.train.StopAtStepHook(last_step=5), Note()]
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as mon_sess:
        while not mon_sess.should_stop():
            mon_sess.run(train_step, feed_dict={x: np.ones((4, 1))})
return np.ravel(seen)
---
class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append(self.model.get_weights()[0])

seen = []
net = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
net.compile(keras.optimizers.SGD(0.1), "mse")
x, y = np.ones((20, 1)), np.full((20, 1), 3.0)
net.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=[Note()])
return np.ravel(seen)
=== checkpoint_dir | 0
saving is now yours: at the end, or in a callback
---
with tempfile.TemporaryDirectory() as folder:
    for last_step in (3, 5):
        with tf.Graph().as_default():
            step = tf.compat.v1.train.get_or_create_global_step()
            more = step.assign_add(1)
            hooks = [tf.compat.v1.train.StopAtStepHook(last_step=last_step)]
            with tf.compat.v1.train.MonitoredTrainingSession(
                checkpoint_dir=folder, hooks=hooks
            ) as mon_sess:
                began = mon_sess.run(step)
                while not mon_sess.should_stop():
                    mon_sess.run(more)
return began
---
with tempfile.TemporaryDirectory() as folder:
    for last_step in (3, 5):
        step = tf.Variable(0)
        saved = tf.train.Checkpoint(step=step)
        manager = tf.train.CheckpointManager(saved, folder, max_to_keep=2)
        manager.restore_or_initialize()
        began = int(step)
        while step < last_step:
            step.assign_add(1)
        manager.save()
return began
=== keep_prob | 0.02
rate is what is dropped, keep_prob what is kept
---
with tf.Graph().as_default():
    keep_prob = tf.compat.v1.placeholder(tf.float32)
    kept = tf.compat.v1.nn.dropout(tf.ones(100_000), keep_prob=keep_prob, seed=0) > 0
    with tf.compat.v1.Session() as sess:
        return np.mean(sess.run(kept, feed_dict={keep_prob: 0.8}))
---
layer = keras.layers.Dropout(rate=0.2, seed=0)
return np.mean(layer(np.ones(100_000), training=True) > 0)
"""


@dataclass(frozen=True)
class Pair:
    """A piece of a program of 2019 and what one writes today."""

    name: str
    then: str
    now: str
    tolerance: float
    trap: str

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Run both and compare."""
        then, now = (np.asarray(_returned(each), float) for each in (self.then, self.now))
        if then.shape != now.shape or np.abs(then - now).max() > self.tolerance:
            raise RuntimeError(f"{self.name}: {then} in 2019, {now} today.")
        return then, now

    def row(self) -> dict[str, str]:
        """Give a row of a table: the name, both programs, the trap."""
        return {"in_2019": self.name, "then": self.then, "now": self.now, "trap": self.trap}


def _returned(program: str) -> Any:
    """Run a program as the body of a function, whose source TensorFlow finds."""
    text, name = f"def program():\n{textwrap.indent(program, '    ')}\n", f"<{hash(program)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    scope = {"keras": keras, "np": np, "tempfile": tempfile, "tf": tf}
    exec(compile(text, name, "exec"), scope)
    return scope["program"]()


def pairs() -> tuple[Pair, ...]:
    """List what the deck's programs use, each with today's form."""
    found = []
    for text in _PROGRAMS.split("=== ")[1:]:
        head, then, now = (part.strip() for part in text.split("\n---\n"))
        title, _, trap = head.partition("\n")
        name, tolerance = title.split(" | ")
        found.append(Pair(name, then, now, float(tolerance), trap.replace("\n", " ")))
    return tuple(found)


# The threads that start operators carry TensorFlow's name; those inside an operator do not.
_COUNT_THREADS = """
import json, os
import numpy as np
import tensorflow as tf

def pool():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("tf_Compute") for name in names)

def by_session(threads):
    before = pool()
    with tf.Graph().as_default():
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
        x = tf.compat.v1.placeholder(tf.float32, (64, 64))
        with tf.compat.v1.Session(config=config) as session:
            session.run(tf.matmul(x, x), feed_dict={x: np.ones((64, 64))})
            return pool() - before

tf.config.threading.set_inter_op_parallelism_threads(NOW)
tf.matmul(tf.ones((64, 64)), tf.ones((64, 64)))
counted = {"now": pool(), "then": by_session(THEN)}
print(json.dumps({**counted, "second": by_session(SECOND)}))
"""


def count_threads(then: int, second: int, now: int) -> dict[str, int]:
    """Count the inter-op threads that a fresh process starts.

    Args:
        then, second: what its first and its second session ask for by `ConfigProto`.
        now: what it asks for by `tf.config.threading`.
    """
    program = _COUNT_THREADS
    for name, count in {"THEN": then, "SECOND": second, "NOW": now}.items():
        program = program.replace(name, str(count))
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120.0
    )
    if run.returncode:
        raise MissingComponentError(f"TensorFlow did not run: {run.stderr[-400:]}")
    return json.loads(run.stdout.splitlines()[-1])
