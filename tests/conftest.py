"""Settings of the whole suite: nothing that a user has stored decides what the tests see."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import cloudpickle
import on_ranks
import pytest
from hypothesis import settings

from dlguide.exercises.frames import Stopped

# How long an example takes says nothing on a busy machine; a test has its time limit.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
CACHE = tempfile.mkdtemp(prefix="dlguide-test-cache-")
os.environ["DLGUIDE_CACHE"] = CACHE
# with it, a wrong answer would raise in tests that expect a hint
os.environ.pop("DLGUIDE_STRICT_EXERCISES", None)
# with it, ranks write their lines piece by piece and into each other's
os.environ.pop("PYTHONUNBUFFERED", None)

# `make test` runs files whose tests compute on ranks two at a time: more would stand in each
# other's way on two cores. Then it runs the others three at a time, since most of their time they
# wait for processes to start, and notebooks two at a time. What all these assert must hold on a
# machine that does other things as well. Last come the files that must have the machine to
# themselves: these.
ALONE = {
    "bench*": "they are measurements",
    "onednn*": "measures kernels",
    "roofline*": "measures the machine",
    "measure*": "looks at clocks and at the load of the cores",
    "overlap*": "measures what is hidden behind what",
    "throttle*": "holds a pace",
    "tun*": "searches by measuring",
    "trial*": "measures programs",
    "cluster": "looks for what is left over on the machine",
    "cluster_failures": "a failure must be told in time",
    "script": "looks for what is left over on the machine",
    "exercises_watching": "looks for what is left over in its own process",
    "doctor*": "looks for what is left over on the machine, and times lessons",
    "shared_memory": "looks at all shared memory of the machine",
    "tensorflow_server": "looks for what is left over on the machine",
}


# Files that take minutes on two cores begin first, so that none of them is left for the end, when
# the other process has nothing to do.
LONG = (
    "browser",
    "usecases_imagenet_train",
    "horovod_fit",
    "fit_resume",
    "collectives",
    "cli_usecase",
    "usecases_chest_xray",
    "usecases_video_training",
    "fit_parallel",
    "horovod_optimizer",
    "usecases_speedup",
    "horovod_collectives",
    "timeline",
    "pytorch_ddp",
    "transparent",
    "transparent_refusals",
    "nets_imagenet",
    "nets_memory",
)


def pytest_collection_modifyitems(items):
    """Put the long files first, and mark the tests of files in ALONE and those on ranks."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if any(fnmatch(name, pattern) for pattern in ALONE):
            item.add_marker(pytest.mark.alone)
        elif hasattr(item.module, "on_ranks"):
            item.add_marker(pytest.mark.ranks)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Fail the test, and end not the whole run, when a watch stops what it should not."""
    try:
        return (yield)
    except Stopped as stopped:
        pytest.fail(f"stopped: {stopped}")


@pytest.fixture(scope="session")
def shared_clusters():
    """Clusters that many files use, by their number of ranks, each started at its first use."""
    from dlguide.cluster import Cluster

    with ExitStack() as stack:
        yield cache(lambda ranks: stack.enter_context(Cluster(ranks=ranks, oversubscribe=True)))


@pytest.fixture(scope="module", params=[1, 2, 3])
def cluster_ranks(request):
    """Number of ranks of `cluster`; a file that wants others has its own."""
    return request.param


@pytest.fixture(scope="module")
def cluster(request, cluster_ranks, shared_clusters):
    """Running ranks, to which the functions of the test's own file can be sent."""
    cloudpickle.register_pickle_by_value(request.module)
    yield shared_clusters(cluster_ranks)
    cloudpickle.unregister_pickle_by_value(request.module)


def pytest_unconfigure(config):
    """End the ranks that tests shared, and remove the cache that the tests had to themselves."""
    on_ranks.end_kept()
    shutil.rmtree(Path(CACHE), ignore_errors=True)
