"""Each way of TensorFlow equals one process; every trial ends, and leaves nothing behind.

Tests dlcourse.tensorflow_lab and dlcourse.tensorflow_strategies.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import psutil
import pytest

from dlcourse import tensorflow_lab
from dlcourse import tensorflow_strategies as claims


@pytest.fixture(scope="module")
def lab():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with tensorflow_lab.Lab() as lab:
        yield lab
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def children(process):
    return [each.pid for each in psutil.Process(process.pid).children(recursive=True)]


def flat(steps):
    return [number for step in steps for number in step]


def soon(condition, limit_s=15.0):
    limit = time.monotonic() + limit_s
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)
    return condition()


def expected_weights(batch, steps, rate):
    """The weights of the small net after plain SGD on the means of these batches, in NumPy."""
    from dlguide import models
    from dlguide.data import datasets

    data = datasets.load("mnist").first(batch * steps)
    images = data.train_images.reshape(steps, batch, -1).astype(float)
    labels = np.eye(10)[data.train_labels.reshape(steps, batch)]
    w1, b1, w2, b2 = (each.astype(float) for each in models.build("mlp", seed=0).get_weights())
    for x, y in zip(images, labels, strict=True):
        hidden = np.maximum(x @ w1 + b1, 0)
        power = np.exp(hidden @ w2 + b2)
        error = (power / power.sum(axis=1, keepdims=True) - y) / batch
        back = error @ w2.T * (hidden > 0)
        w2, b2 = w2 - rate * hidden.T @ error, b2 - rate * error.sum(axis=0)
        w1, b1 = w1 - rate * x.T @ back, b1 - rate * back.sum(axis=0)
    return w1, b1, w2, b2


def far(trained, weights):
    return max(abs(a - b).max() for a, b in zip(trained.weights, weights, strict=True))


@pytest.mark.parametrize(
    ("way", "workers", "how"),
    [
        ("alone", 1, {}),
        ("mirrored", 1, {}),
        ("mirrored", 1, {"devices": 4}),
        ("mirrored", 1, {"reduction": "ReductionToOneDevice"}),
        ("multi_worker", 3, {}),
    ],
)
def test_every_way_gives_the_weights_of_numpy_on_every_worker(lab, way, workers, how):
    batch = 40 if workers < 3 else 39
    trained = lab.try_out(_train, way, batch, how, workers=workers, limit_s=120).results()
    assert len(trained) == workers
    right = expected_weights(batch, 10, 0.1)
    assert max(far(one, right) for one in trained) < 1e-6


def _train(way, batch, how):
    return claims.train(way, batch=batch, **how)


def test_division_by_the_replica_is_the_rate_times_the_replicas(lab):
    def mistaken():
        return claims.train("mirrored", batch=40, devices=4, divide="replica")

    (trained,) = lab.try_out(mistaken).results()
    assert far(trained, expected_weights(40, 10, 0.4)) < 1e-5
    assert far(trained, expected_weights(40, 10, 0.1)) > 1e-3


def test_sharding_by_data_gives_each_sample_once_and_off_gives_all_to_all(lab):
    data = lab.try_out(claims.samples_seen, "DATA", workers=2).results()
    assert list(data) == np.arange(12).reshape(3, 2, 2).transpose(1, 0, 2).tolist()
    off = lab.try_out(claims.samples_seen, "OFF", workers=2).results()
    assert [sorted(flat(each)) for each in off] == [list(range(12))] * 2


def test_a_refusal_is_reported_in_its_words_and_the_lab_goes_on(lab):
    def too_late():
        import tensorflow as tf

        tf.zeros(1)
        claims.split_cpu(2)

    outcome = lab.try_out(too_late)
    assert outcome.verdict == "refused"
    assert outcome.words.startswith("RuntimeError: Virtual devices cannot be modified")
    with pytest.raises(RuntimeError, match=r"Worker 0 refused\.\nRuntimeError: Virtual"):
        outcome.results()
    assert lab.try_out(claims.split_cpu, 3).answers == (["CPU:0", "CPU:1", "CPU:2"],)


def test_a_killed_worker_ends_the_others_within_the_limit(lab):
    def lose():
        import tensorflow as tf

        scheme = claims.strategy("multi_worker")
        if scheme.cluster_resolver.task_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            scheme.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(3)))

    outcome = lab.try_out(lose, workers=2, limit_s=60, grace_s=1.0)
    assert outcome.endings[1].verdict == outcome.verdict == "died"
    assert outcome.endings[0].verdict in ("hung", "refused")
    assert not multiprocessing.active_children()


def test_a_worker_that_hangs_is_ended_at_the_limit(lab):
    outcome = lab.try_out(lambda: time.sleep(600), workers=2, limit_s=1.0)
    assert outcome.verdict == "hung"
    assert outcome.answers == (None, None)
    assert not multiprocessing.active_children()


def test_temporary_files_of_a_worker_go_with_it(lab):
    def leave():
        import tempfile

        return tempfile.mkstemp()[1]  # as TensorFlow does for each function that it rewrites

    (path,) = lab.try_out(leave).results()
    assert not os.path.exists(path)


def test_a_worker_that_leaves_without_an_answer_died(lab):
    outcome = lab.try_out(lambda: os._exit(0))
    assert (outcome.verdict, outcome.words) == ("died", "It said nothing.")


def test_nothing_outlives_who_made_the_lab_even_after_a_kill():
    program = (
        "import time, threading\n"
        "from dlcourse.tensorflow_lab import Lab\n"
        "lab = Lab()\n"
        "threading.Thread(target=lab.try_out, args=(time.sleep, 600)).start()\n"
        "time.sleep(0.5)\n"
        "print('started', flush=True)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"started\n"
    family = children(owner)
    assert len(family) == 3  # Python's resource tracker, the fork server, the worker
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert soon(lambda: not any(psutil.pid_exists(pid) for pid in family))
