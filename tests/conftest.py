"""Settings of the whole suite: explicit markers, listed skips, no setting of the user's own."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from functools import wraps
from pathlib import Path

import cloudpickle
import on_ranks
import pytest
from hypothesis import settings
from lanes import long

from dlguide.cluster import Cluster

# Whether an example is slow depends on what else the machine does; every test has a time limit.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
CACHE = tempfile.mkdtemp(prefix="dlguide-test-cache-")
os.environ["DLGUIDE_CACHE"] = CACHE
# with it, a wrong answer would raise in tests that expect a hint
os.environ.pop("DLCOURSE_STRICT", None)
# with it, ranks write their lines piece by piece and into each other's
os.environ.pop("PYTHONUNBUFFERED", None)

# A test that starts ranks needs one of these markers, because `make test` decides by them how many
# tests run at a time on two cores.
STARTS_RANKS = ("ranks", "alone", "notebook")

# Why a test may be skipped: a pattern of its reason, and why that is right. Any other skip fails.
ALLOWED_SKIPS = {
    r"there is no Chromium: apt-get install chromium": "needs the system's package; CI has it",
    r"PyTorch is an optional part: `make pytorch`": "an optional dependency; CI has it",
    r"torch is not installed: `make pytorch`": "an optional dependency; CI has it",
    r"Horovod has no PyTorch: `make horovod-pytorch`": "an optional part of the environment",
    r"(Open|Intel) MPI is not installed: `make mpis`": "an optional part of the environment",
    r"no Slurm here .*": "needs the system's package; CI has it",
    r"a Slurm for the tests can be started by root only": "its daemons need root; CI has it",
    r"this system allows no network namespace": "decided by the administrator of a container",
    r"this system allows no user namespace, .*": "decided by the administrator",
    r"this TensorFlow has no oneDNN": "TensorFlow is built without it on other processors",
    r"this system does not tell what is in its page cache": "not every kernel answers",
    r"a file system in memory keeps all": "a temporary folder may be on such a file system",
    r"the file system refuses such names itself: .*": "then no such name can reach the library",
    r"no notebook has a run in .*": "the deck's tests read the runs that `make test` leaves",
}


HOROVOD_RUNS = """(
    "horovod.tensorflow" in __import__("sys").modules
    and __import__("horovod.tensorflow").tensorflow.is_initialized()
)"""
CURRENT = pytest.StashKey[pytest.Item | None]()


def pytest_configure(config):
    """Let no test start ranks without saying so."""
    config.stash[CURRENT] = None
    start = Cluster.start

    @wraps(start)
    def checked_start(cluster):
        item = config.stash[CURRENT]
        if item is not None and not any(map(item.get_closest_marker, STARTS_RANKS)):
            pytest.fail(
                f"{item.nodeid} starts a Cluster and has none of the markers "
                f"{', '.join(STARTS_RANKS)}: add `pytestmark = pytest.mark.ranks` to its file."
            )
        return start(cluster)

    Cluster.start = checked_start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Remember which test runs."""
    item.config.stash[CURRENT] = item
    try:
        return (yield)
    finally:
        item.config.stash[CURRENT] = None


def skips(config):
    """(test, reason, why the reason is allowed or None) for every skipped test."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for report in reporter.stats.get("skipped", []) if reporter else []:
        if hasattr(report, "wasxfail"):
            continue
        *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
        reason = str(reason).removeprefix("Skipped: ")
        matches = (why for text, why in ALLOWED_SKIPS.items() if re.fullmatch(text, reason))
        yield report.nodeid, reason, next(matches, None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fail where a test was skipped for a reason that is not listed."""
    unlisted = any(why is None for *_, why in skips(session.config))
    if unlisted and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Print every skipped test with its reason."""
    found = sorted({each[:2]: each for each in skips(config)}.values(), key=lambda each: each[:2])
    if found:
        terminalreporter.section("skipped tests")
    for test, reason, why in found:
        allowed = f"allowed: {why}" if why else "NOT LISTED in ALLOWED_SKIPS of tests/conftest.py"
        terminalreporter.line(f"{test}: {reason} ({allowed})", red=not why)


@pytest.fixture(scope="session")
def kept_clusters():
    """Clusters that stay between files, by their number of ranks."""
    clusters: dict[int, Cluster] = {}
    yield clusters
    for each in clusters.values():
        each.stop()


@pytest.fixture(scope="module")
def shared_clusters(kept_clusters):
    """Give the cluster with a number of ranks, started at its first use.

    Where a file has left Horovod running, the cluster is stopped: its thread on each rank would
    take a part of a core from all files that follow.
    """

    def of(ranks):
        if ranks not in kept_clusters:
            kept_clusters[ranks] = Cluster(ranks=ranks, oversubscribe=True)
        return kept_clusters[ranks]

    yield of
    for each in kept_clusters.values():
        if each.client is not None and any(each.run(eval, HOROVOD_RUNS)):
            each.stop()


@pytest.fixture(scope="module", params=[2, 3, *long(1)])
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
