"""Threads of TensorFlow: `ConfigProto` of 2019 and `tf.config.threading`, counted.

A session of TensorFlow 1 took its threads with it; today they belong to the process and cannot be
changed once it has computed. So the count is taken in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from dlguide.errors import MissingComponentError, require_count

# The threads that start operators carry TensorFlow's name; those inside an operator do not.
_PROGRAM = """
import json, os
import numpy as np
import tensorflow as tf

def pool():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("tf_Compute") for name in names)

tf.config.threading.set_inter_op_parallelism_threads(NOW)
tf.matmul(tf.ones((64, 64)), tf.ones((64, 64)))
now = pool()
with tf.Graph().as_default():
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=THEN)
    x = tf.compat.v1.placeholder(tf.float32, (64, 64))
    with tf.compat.v1.Session(config=config) as session:
        session.run(tf.matmul(x, x), feed_dict={x: np.ones((64, 64))})
        then = pool() - now
try:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    refused = ""
except RuntimeError as error:
    refused = str(error)
print(json.dumps({"then": then, "now": now, "refused": refused}))
"""


def count(then: int = 4, now: int = 2, timeout_s: float = 120.0) -> dict[str, Any]:
    """Set the inter-op threads by `ConfigProto` and by `tf.config.threading`, and count them.

    Leaves out the threads inside an operator: that pool is made once for the process, by whichever
    of the two comes first, so a session in a process that has computed already cannot set it.

    Args:
        then: operators at a time, asked for by `ConfigProto` (count).
        now: operators at a time, asked for by `tf.config.threading` (count).
        timeout_s: time limit of the process (s).

    Returns:
        dict: `then` and `now`, the threads that were there, and `refused`, what TensorFlow says
        when they are changed once more.

    Raises:
        ValueError: when a count is below 1.
        MissingComponentError: when the process fails.
    """
    require_count(then, "then")
    require_count(now, "now")
    program = _PROGRAM.replace("NOW", str(now)).replace("THEN", str(then))
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout_s
    )
    if run.returncode:
        raise MissingComponentError(f"TensorFlow did not run: {run.stderr[-400:]}")
    return json.loads(run.stdout.splitlines()[-1])
