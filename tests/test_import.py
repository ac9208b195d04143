"""`import dlguide` loads nothing heavy and changes nothing in the process."""

from __future__ import annotations

import json

from command_line import python

import dlguide

HEAVY = {
    *("tensorflow", "keras", "horovod", "mpi4py", "daal4py", "ipyparallel", "matplotlib"),
    *("onnx", "onnxruntime", "torch"),
}
# Horovod's interface for Keras is nothing without both.
NEEDS_HEAVY = {"horovod"}

SCRIPT = """
import json, sys
import dlguide
for name in {opened!r}:
    getattr(dlguide, name)
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


def load(opened=()):
    """Import the package in a new process; return the modules loaded."""
    return json.loads(python(SCRIPT.format(opened=tuple(opened)), timeout_s=60).stdout)


STATE = """
import atexit, gc, os, signal, sys, threading
def state():
    return [
        dict(os.environ), os.getcwd(), list(sys.path), sys.excepthook, gc.get_threshold(),
        gc.get_freeze_count(), atexit._ncallbacks(), threading.active_count(), os.umask(0o22),
        [signal.getsignal(each) for each in signal.valid_signals()], sys.getswitchinterval(),
    ]
before = state()
import dlguide
assert state() == before, (before, state())
atexit.register(lambda: print(gc.get_freeze_count()))
for name in {opened}:
    getattr(dlguide, name)
"""


def test_import_changes_nothing_in_the_process():
    code = STATE.format(opened=["cluster", "training", "machine"])
    done = python(code, timeout_s=60, fails=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_every_subpackage_but_horovod_is_imported_without_anything_heavy():
    subpackages = [name for name in dir(dlguide) if name[0] != "_" and name not in NEEDS_HEAVY]
    assert subpackages
    assert HEAVY.isdisjoint(load(subpackages))


def test_the_names_of_the_package_are_those_of_its_subpackages():
    from dlguide import machine, training
    from dlguide.cluster import Cluster, RankError

    assert (dlguide.Cluster, dlguide.RankError) == (Cluster, RankError)
    assert (dlguide.fit, dlguide.FitConfig) == (training.fit, training.FitConfig)
    assert (dlguide.describe_machine, dlguide.plan_threads) == (
        machine.describe,
        machine.threads.plan,
    )
    assert set(dlguide.__all__) <= set(dir(dlguide))
