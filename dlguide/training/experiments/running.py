"""Run the trainings of an experiment: here, on the ranks of a cluster, and on from where it was."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dlguide import models as known_nets
from dlguide.data import datasets
from dlguide.errors import require, require_known
from dlguide.files import require_writable
from dlguide.training.experiments import record
from dlguide.training.experiments.one_run import check, digest, load, train
from dlguide.training.experiments.record import Result
from dlguide.training.experiments.setting import Setting

_WORK = """
import sys, cloudpickle
with open(sys.argv[1], "rb") as file:
    function, arguments = cloudpickle.load(file)
function(*arguments)
"""


class Ranks(Protocol):
    """What is needed of a `dlguide.cluster.Cluster`."""

    ranks: int
    plan: Any

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function on all ranks."""


@dataclass(frozen=True)
class Progress:
    """How far an experiment is.

    done and total (trainings of this call, those on record left out, count), remaining_s (by
    the time and the samples of those that are done, s), result (the one that just ended).
    """

    done: int
    total: int
    remaining_s: float
    result: Result


def tell(progress: Progress) -> None:
    """Write a line of progress, at most ten in one call of `run`.

    Args:
        progress: after one more training.
    """
    done, total = progress.done, progress.total
    if 10 * done // total == 10 * (done - 1) // total:
        return
    setting, accuracy = progress.result.setting, progress.result.accuracy
    came = "diverged" if accuracy is None else f"{accuracy:.2%}"
    left = f", about {progress.remaining_s:.0f} s to go" if done < total else ""
    name = setting.name or setting.net
    line = f"{done} of {total}: {name}, seed {setting.seed}: {came}{left}"
    print(line, file=sys.stdout, flush=True)


def run(
    settings: Sequence[Setting],
    folder: str | os.PathLike | None = None,
    cluster: Ranks | None = None,
    progress: Callable[[Progress], None] | None = tell,
    nets: Mapping[str, Callable[[], Any]] | None = None,
    data: Mapping[str, Any] | None = None,
) -> list[Result]:
    """Make the trainings of an experiment, each recorded as it ends.

    What is on record is not trained again, so that an experiment that was interrupted goes on
    where it was; it loses the training that ran. A training whose loss stops being a number is
    recorded as such. Two settings of one training make one training.

    With a cluster of p ranks, trainings of one rank are shared out among them, each rank taking
    the next one as soon as it is free, and those of p ranks are made by all together. Trainings
    that run beside each other share memory and caches: each is slower than it would be alone.
    Without a cluster all are made in this process; those that ask for a number of threads in a
    process of their own with so many.

    A record holds times of the machine that made it and knows nothing of a later version of the
    package: for times of this machine, take a new folder or None.

    Args:
        settings: from `one_factor` or `each_seed`.
        folder: of the records, one file a training; None keeps none.
        cluster: ranks that train; None for this process.
        progress: called after each training, on the rank that made it; None for silence.
        nets: name -> function that builds a net of one's own; change the name when the net
            changes.
        data: name -> Dataset of one's own, or a function that gives it.

    Returns:
        list: one Result for each setting, in their order.

    Raises:
        ValueError: when a training is impossible, before any is made.
        RecordError: when a record is damaged, before any training is made.
    """
    settings, nets, data = list(settings), dict(nets or {}), dict(data or {})
    require(bool(settings), "settings", "hold at least one Setting", settings)
    for setting in settings:
        _check(setting, cluster, nets, data)
    taken = {_data_of(one): one for one in settings}
    loaded = {data_of: load(one, data) for data_of, one in taken.items()}
    for setting in settings:
        check(setting, nets, loaded[_data_of(setting)])
    digests = {data_of: digest(one, data) for data_of, one in taken.items()}
    keys = [one.key(digests[_data_of(one)]) for one in settings]
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="dlguide-experiments-") as kept:
            return _run(settings, keys, Path(kept), cluster, progress, nets, data)
    require_writable(folder, "folder")
    return _run(settings, keys, Path(folder), cluster, progress, nets, data)


def _data_of(setting: Setting) -> tuple[str, int | None, int | None]:
    return setting.data, setting.samples, setting.test_samples


def _check(setting: Setting, cluster: Ranks | None, nets: Mapping, data: Mapping) -> None:
    require(isinstance(setting, Setting), "settings", "hold Settings", setting)
    if setting.net not in nets:
        require_known(setting.net, [*known_nets.names("digits", "classifier"), *nets], "net")
    if setting.data not in data:
        require_known(setting.data, [*datasets.names(), *data], "data")
    ranks = 1 if cluster is None else cluster.ranks
    must = f"be 1 or the {ranks} of the cluster" if ranks > 1 else "be 1 without a cluster"
    then = f"Give `cluster=Cluster(ranks={setting.ranks})`, or let one rank play `workers`."
    require(setting.ranks in (1, ranks), "ranks", must, setting.ranks, then)
    if cluster is not None and setting.threads is not None:
        there = cluster.plan.threads
        must = f"be None or the {there} of the cluster's ranks"
        then = "Start a cluster with another plan, or run it without one."
        require(setting.threads == there, "threads", must, setting.threads, then)


def _run(
    settings: list[Setting],
    keys: list[str],
    folder: Path,
    cluster: Ranks | None,
    progress: Callable[[Progress], None] | None,
    nets: Mapping,
    data: Mapping,
) -> list[Result]:
    paths = {key: folder / f"{key}.json" for key in keys}
    asked = dict(zip(reversed(keys), reversed(settings), strict=True))
    asked = {key: asked[key] for key in dict.fromkeys(keys)}
    # all are read first: a damaged record is told before hours are spent on the others
    todo = {key: one for key, one in asked.items() if not _recorded(paths[key], one)}
    with tempfile.TemporaryDirectory(prefix="dlguide-experiments-") as claims:
        share = (todo, folder, Path(claims), progress, nets, data, time.time())
        alone = {key: one for key, one in todo.items() if one.ranks == 1}
        if cluster is None:
            for threads in dict.fromkeys(one.threads for one in alone.values()):
                mine = [key for key, one in alone.items() if one.threads == threads]
                _in_process(threads, Path(claims), (mine, *share))
        else:
            if alone:
                cluster.run(_work, list(alone), *share)
            for key, one in todo.items():
                if one.ranks > 1:
                    came = cluster.run(train, one, nets, data, True, progress is None)
                    _done(key, record.result_of(one, came), share)
    return [record.read(paths[key], one) for key, one in zip(keys, settings, strict=True)]


def _recorded(path: Path, setting: Setting) -> bool:
    return path.exists() and bool(record.read(path, setting).setting)


def _in_process(threads: int | None, claims: Path, arguments: tuple) -> None:
    """Work here, or with a number of threads in a new process: TensorFlow's are fixed for good."""
    if threads is None:
        _work(*arguments)
        return
    import cloudpickle

    payload = claims / "payload"
    payload.write_bytes(cloudpickle.dumps((_work, arguments)))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    env = os.environ | dict.fromkeys(names, str(threads)) | {"TF_NUM_INTEROP_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", _WORK, str(payload)], env=env, check=False)
    if ended.returncode:
        raise RuntimeError(
            f"The process of the trainings with {threads} threads ended with status "
            f"{ended.returncode}; its last words stand above. What had ended is on record."
        )


def _work(mine: Sequence[str], *share: Any) -> None:
    """Make trainings until all are taken; ranks that do so at once share them out."""
    todo, _folder, claims, progress, nets, data, _started = share
    for key in mine:
        try:
            (claims / key).touch(exist_ok=False)
        except FileExistsError:
            continue
        came = train(todo[key], nets, data, False, progress is None)
        _done(key, record.result_of(todo[key], [came]), share)


def _done(key: str, result: Result, share: tuple) -> None:
    """Record a training that has ended, and tell how far all are."""
    todo, folder, claims, progress, _nets, _data, started_unix_s = share
    record.write(result, folder / f"{key}.json")
    (claims / f"{key}.done").touch()
    if progress is None:
        return
    done = [path.stem for path in claims.glob("*.done")]
    made = sum(_size(todo[one]) for one in done)
    left = sum(map(_size, todo.values())) - made
    remaining_s = (time.time() - started_unix_s) * left / made
    progress(Progress(len(done), len(todo), remaining_s, result))


def _size(setting: Setting) -> int:
    """Samples that a training takes, by which times are compared; of all data, MNIST's count."""
    return setting.epochs * (setting.samples or 60_000)
