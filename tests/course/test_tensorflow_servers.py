"""TensorFlow's own servers: every step is an update, and nothing is left running.

Tests dlcourse.tensorflow_strategies.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import psutil
import pytest

from dlcourse import execution, tensorflow_lab, tensorflow_strategies

needs_network = pytest.mark.skipif(
    not execution.network_cutter(), reason="this system allows no network namespace"
)


def left():
    """Processes that this one has started and not ended."""
    return [
        each.pid
        for each in psutil.Process().children(recursive=True)
        if "forkserver" in " ".join(each.cmdline())
    ]


def test_every_step_is_an_update_and_the_net_learns(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody answers there
    trained = tensorflow_strategies.train_on_servers(workers=2, servers=2, steps=120)
    assert trained.updates == trained.steps == 120
    assert set(trained.places.values()) == {"job:ps:0", "job:ps:1"}
    assert trained.accuracy > 0.6  # 0.1 by guessing
    assert not left()


def test_one_core_is_enough():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        trained = tensorflow_strategies.train_on_servers(workers=1, servers=1, steps=2)
    finally:
        os.sched_setaffinity(0, cores)
    assert trained.updates == 2


def test_what_a_failed_process_said_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path / "gone"))
    with pytest.raises(RuntimeError, match=r"chief refused\.[^!]*gone does not exist"):
        tensorflow_strategies.train_on_servers(workers=1, servers=1, steps=2)
    assert not left()


def serve(path):
    """Be TensorFlow's server until a file is there; it would read and write any file."""
    import tensorflow as tf

    (port,) = tensorflow_lab.free_ports(1)
    spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}"]})
    server = tf.distribute.Server(spec, "worker", 0)
    with socket.create_connection(("127.0.0.1", port)):
        path.write_text(str(port))
    while path.exists():
        time.sleep(0.05)
    return server.target


@needs_network
def test_nobody_on_this_machine_reaches_a_server(tmp_path):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    path = tmp_path / "port"
    with tensorflow_lab.Lab() as lab, ThreadPoolExecutor(1) as background:
        serving = background.submit(lab.try_out, serve, path)
        while not serving.done() and not (path.exists() and path.read_text()):
            time.sleep(0.05)
        try:
            listening = [c for c in psutil.net_connections() if c.status == psutil.CONN_LISTEN]
            assert int(path.read_text()) not in [each.laddr.port for each in listening]
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(path.read_text())))
        finally:
            path.unlink()
        assert serving.result().results()[0].startswith("grpc://")


OPEN = """
from multiprocessing import forkserver
from dlcourse.tensorflow_lab import Lab
if __name__ == "__main__":
    forkserver.ensure_running()  # so that the lab's workers cannot have their own network
    try:
        Lab()
    except Exception as error:
        print(type(error).__name__, error)
    with Lab(allow_open_servers=True) as lab:
        print(lab.try_out(abs, -3).results())
"""


def test_open_servers_are_refused_with_the_danger_unless_they_are_asked_for(tmp_path):
    (tmp_path / "program.py").write_text(OPEN)
    command, env = [sys.executable, tmp_path / "program.py"], {**os.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    refused, answered = done.stdout.splitlines()
    assert refused.startswith("MissingComponentError TensorFlow's servers do not ask")
    assert "can read and write your files" in refused
    assert "`allow_open_servers=True`" in refused
    assert answered == "(3,)"


ALONE = """
import os
from dlcourse.tensorflow_lab import Lab
def where():
    return os.readlink("/proc/self/ns/net"), os.getuid()
if __name__ == "__main__":
    with Lab() as lab:
        networks, users = zip(*lab.try_out(where, workers=2).results())
    assert len(set(networks)) == 1 and networks[0] != os.readlink("/proc/self/ns/net")
    print(set(users) == {os.getuid()})
"""


@needs_network
def test_a_user_without_capabilities_closes_the_servers_by_a_user_namespace(tmp_path):
    (tmp_path / "program.py").write_text(ALONE)
    # root without capabilities is like any user (one lets it map itself), and reads its own home
    few = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"]
    command = [*(few if os.geteuid() == 0 else []), sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr
