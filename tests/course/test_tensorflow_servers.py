"""TensorFlow's own servers: every step is an update, and nothing is left running.

Tests dlcourse.tensorflow_strategies.
"""

from __future__ import annotations

import psutil
import pytest

from dlcourse import tensorflow_strategies


def left():
    """Processes that this one has started and not ended."""
    return [
        each.pid
        for each in psutil.Process().children(recursive=True)
        if "forkserver" in " ".join(each.cmdline())
    ]


def test_every_step_is_an_update_and_the_net_learns():
    trained = tensorflow_strategies.train_on_servers(workers=2, servers=2, steps=120)
    assert trained.updates == trained.steps == 120
    assert set(trained.places.values()) == {"job:ps:0", "job:ps:1"}
    assert trained.accuracy > 0.6  # 0.1 by guessing
    assert not left()


def test_what_a_failed_process_said_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path / "gone"))
    with pytest.raises(RuntimeError, match=r"chief refused\.[^!]*gone does not exist"):
        tensorflow_strategies.train_on_servers(workers=1, servers=1, steps=2)
    assert not left()
