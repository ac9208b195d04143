"""What a rank records of its training, and how the records of all ranks come together."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlguide.errors import require, require_count, require_positive
from dlguide.measure import digest_of

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


class Seed(NamedTuple):
    """A seed of one rank: name, value, and whether it should differ between ranks."""

    name: str
    value: int | str
    differs: bool


class Metric(NamedTuple):
    """A metric as one rank reports it: the mean over so many of its samples."""

    name: str
    value: float
    samples: int


class Call(NamedTuple):
    """A collective as one rank called it: name, shape and dtype of its array."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Evidence:
    """What one rank of a training did; what was not recorded is empty or None.

    Who: rank (index), ranks (count).
    Weights: first_weights (digest of the trainable weights after the broadcast), last_weights
    (the same at the end), statistics (digest of the moving means and variances of batch
    normalisation at the end).
    Data: seen (for each epoch the samples' ids in order, see `ids_of`), batches (for each epoch
    the samples of each step, count), steps (for each epoch, count), samples (of the data
    set, over all ranks, count), distinct (different ones among them, count).
    Rate: learning_rate (the highest of any epoch, as used), rate_of_one_rank (what it would be
    on one rank), optimizer (its kind, such as "sgd").
    And: seeds, metrics, checkpoints (files that this rank wrote), calls (collectives in order).
    """

    rank: int
    ranks: int
    first_weights: str = ""
    last_weights: str = ""
    statistics: str = ""
    seen: tuple[tuple[int, ...], ...] = ()
    batches: tuple[tuple[int, ...], ...] = ()
    steps: tuple[int, ...] = ()
    samples: int | None = None
    distinct: int | None = None
    learning_rate: float | None = None
    rate_of_one_rank: float | None = None
    optimizer: str = ""
    seeds: tuple[Seed, ...] = ()
    metrics: tuple[Metric, ...] = ()
    checkpoints: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()


def ids_of(images: Any) -> tuple[int, ...]:
    """Name samples by their contents, the CRC-32 of each one's bytes, so that any pipeline can be
    watched. Two different samples share an id by chance once in 4 294 967 296 pairs.

    >>> hex(ids_of(np.frombuffer(b"123456789", np.uint8)[None])[0])
    '0xcbf43926'
    """
    array = np.asarray(images)
    require(array.ndim > 0, "images", "be an array of samples", images if array.ndim == 0 else "")
    return tuple(zlib.crc32(np.ascontiguousarray(sample).tobytes()) for sample in array)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _from_json(text: str) -> Evidence:
    values = {name: _tuples(value) for name, value in json.loads(text).items()}
    for name, kind in (("seeds", Seed), ("metrics", Metric), ("calls", Call)):
        values[name] = tuple(kind(*one) for one in values[name])
    return Evidence(**values)


class Recorder:
    """Records one rank; every method may be left out, and then that is not checked.

    It sends nothing and changes no result. Give `callback()` to Keras' `fit` and `watch(dataset)`
    instead of the data set; in a loop written by hand call `weights`, `samples`, `collective` and
    the others where they happen.

    Args:
        rank: this rank (index).
        ranks: number of ranks (count).
        dataset: all training samples (shape (samples, ...)), or only their count; None if
            unknown, and then samples that no rank saw are not reported.
        rate_of_one_rank: the learning rate that one rank would use; None if unknown.
        folder: where every collective is noted before it starts, for `audit.read` after a
            training that hung was ended; None for nowhere.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        dataset: Any = None,
        rate_of_one_rank: float | None = None,
        folder: str | os.PathLike | None = None,
    ) -> None:
        self.ranks = require_count(ranks, "ranks")
        self.rank = require_count(rank, "rank", least=0)
        require(rank < ranks, "rank", f"be below the {ranks} ranks", rank)
        self._known: dict[str, Any] = {}
        if dataset is not None:
            whole = np.ndim(dataset) > 0
            ids = ids_of(dataset) if whole else ()
            count = len(ids) if whole else require_count(dataset, "dataset")
            self._known |= {"samples": count, "distinct": len(set(ids)) if whole else count}
        if rate_of_one_rank is not None:
            rate = require_positive(rate_of_one_rank, "rate_of_one_rank")
            self._known["rate_of_one_rank"] = rate
        self._seen: list[list[int]] = []
        self._batches: list[list[int]] = []
        self._steps: list[int] = []
        self._seeds: dict[str, Seed] = {}
        self._metrics: dict[str, Metric] = {}
        self._checkpoints: list[str] = []
        self._calls: list[Call] = []
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(".json").unlink(missing_ok=True)
            self._file(".calls").write_text(json.dumps(self.ranks) + "\n")

    def epoch(self) -> None:
        """Begin an epoch; without it all samples count as one."""
        self._seen.append([])
        self._batches.append([])

    def samples(self, images: Any) -> None:
        """Note the samples of one step (shape (samples, ...)), before they change at random."""
        if len(self._seen) < max(1, len(self._steps)):
            self.epoch()
        ids = ids_of(images)
        self._seen[-1] += ids
        self._batches[-1].append(len(ids))

    def weights(self, arrays: Iterable[Any], last: bool = False) -> None:
        """Note all trainable weights, in one order on all ranks, after the broadcast or `last`."""
        self._known["last_weights" if last else "first_weights"] = digest_of(arrays)

    def statistics(self, arrays: Iterable[Any]) -> None:
        """Note the moving means and variances of batch normalisation, at the end."""
        found = list(arrays)
        if found:
            self._known["statistics"] = digest_of(found)

    def rate(self, learning_rate: float, optimizer: str = "") -> None:
        """Note the learning rate in use; the highest one counts, which warmup leads up to.

        `optimizer` is its kind, such as "sgd" or "adam"; empty leaves it as noted before.
        """
        value = float(learning_rate)
        self._known["learning_rate"] = max(value, self._known.get("learning_rate", value))
        if optimizer:
            self._known["optimizer"] = optimizer.lower()

    def seed(self, name: str, value: int | str, differs: bool = True) -> None:
        """Note a seed.

        Args:
            name: what it is for: dropout, shuffle, augmentation.
            value: of this rank.
            differs: between ranks (dropout, augmentation), or should agree (a shuffle that comes
                before the cut into shards).
        """
        plain = value if isinstance(value, str) else int(value)
        self._seeds[name] = Seed(name, plain, bool(differs))

    def metric(self, name: str, value: float, samples: int) -> None:
        """Note a metric that this rank reports, the mean over so many samples; the last counts."""
        self._metrics[name] = Metric(name, float(value), int(samples))

    def checkpoint(self, path: str | os.PathLike) -> None:
        """Note that this rank writes a checkpoint file."""
        self._checkpoints.append(os.fspath(path))

    def collective(self, name: str, array: Any) -> None:
        """Note a collective just before it is called.

        Args:
            name: allreduce, broadcast, or what distinguishes two calls, such as "allreduce w1".
            array: this rank's buffer, for its shape and dtype.
        """
        buffer = np.asarray(array)
        call = Call(name, tuple(int(size) for size in buffer.shape), buffer.dtype.name)
        self._calls.append(call)
        if self._folder is not None:
            with open(self._file(".calls"), "a") as file:
                file.write(json.dumps(call) + "\n")

    def watch(self, dataset: Any) -> Any:
        """Return a data set with the same batches, whose samples are noted when they are taken.

        Args:
            dataset: `tf.data.Dataset`, or anything that can be iterated again and again, of
                batches: images, or a tuple of images and more.
        """
        batches = _Watched(dataset, self)
        if not hasattr(dataset, "element_spec"):
            return batches
        import tensorflow as tf

        watched = tf.data.Dataset.from_generator(
            lambda: iter(batches), output_signature=dataset.element_spec
        )
        count = int(dataset.cardinality())
        known = tf.data.experimental.assert_cardinality(count)
        return watched.apply(known) if count > 0 else watched

    def callback(self) -> keras.callbacks.Callback:
        """Return the Keras callback of one training; put it last, behind the mean of metrics.

        It notes weights, batch normalisation, learning rate, steps, metrics of the last epoch,
        the seeds of random layers and the files that `model.save` and `save_weights` write.
        """
        return _callback(self)

    def begin_epoch(self) -> None:
        """Begin an epoch of `fit`, and forget samples that were taken to build the model."""
        done = len(self._steps)
        del self._seen[done:], self._batches[done:]
        self._steps.append(0)

    def step(self) -> None:
        """Count a step of `fit`."""
        self._steps[-1] += 1

    def evidence(self) -> Evidence:
        """Return what was noted so far on this rank."""
        return Evidence(
            rank=self.rank,
            ranks=self.ranks,
            seen=tuple(map(tuple, self._seen)),
            batches=tuple(map(tuple, self._batches)),
            steps=tuple(self._steps) or tuple(map(len, self._batches)),
            seeds=tuple(self._seeds.values()),
            metrics=tuple(self._metrics.values()),
            checkpoints=tuple(self._checkpoints),
            calls=tuple(self._calls),
            **self._known,
        )

    def write(self) -> Path:
        """Write the evidence into the recorder's folder, for `audit.read`."""
        require(self._folder is not None, "folder", "be given where the recorder is made", None)
        path = self._file(".json")
        path.write_text(json.dumps(asdict(self.evidence())))
        return path

    def _file(self, ending: str) -> Path:
        return self._folder / f"rank{self.rank}{ending}"


class _Watched:
    def __init__(self, batches: Iterable[Any], recorder: Recorder) -> None:
        self._batches, self._recorder = batches, recorder

    def __iter__(self) -> Iterator[Any]:
        self._recorder.epoch()
        for batch in self._batches:
            self._recorder.samples(batch[0] if isinstance(batch, tuple | list) else batch)
            yield batch

    def __len__(self) -> int:
        return len(self._batches)


_STATISTICS = ("moving_mean", "moving_variance")
_SAVING = ("save", "save_weights")


def _callback(recorder: Recorder) -> keras.callbacks.Callback:
    import keras

    class RecorderCallback(keras.callbacks.Callback):
        """Notes what Keras' `fit` does; sends nothing."""

        first = True

        def on_train_begin(self, logs: dict | None = None) -> None:
            for name in _SAVING:
                _listen(self.model, name, recorder)

        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            recorder.begin_epoch()

        def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
            # An unbuilt model is broadcast after its first batch.
            if self.first and self.model.built:
                self._start()

        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            if self.first:
                self._start()
            recorder.step()
            self._rate()

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            samples = sum(recorder._batches[-1]) if recorder._batches else 0
            for name, value in (logs or {}).items():
                if name != "learning_rate":
                    recorder.metric(name, float(value), samples)

        def on_train_end(self, logs: dict | None = None) -> None:
            model = self.model
            for name in _SAVING:
                object.__delattr__(model, name)
            recorder.weights((np.asarray(v) for v in model.trainable_variables), last=True)
            recorder.statistics(
                np.asarray(v)
                for v in model.non_trainable_variables
                if v.path.rpartition("/")[2] in _STATISTICS
            )

        def _start(self) -> None:
            self.first = False
            recorder.weights(np.asarray(v) for v in self.model.trainable_variables)
            # Keras names a generator's variable without its layer; the innermost layer comes last.
            owners = {
                id(variable): layer.name
                for layer in self.model._flatten_layers()
                for variable in layer.variables
            }
            for variable in self.model.variables:
                if variable.path.endswith("seed_generator_state"):
                    state = ":".join(str(int(one)) for one in np.asarray(variable))
                    recorder.seed(owners[id(variable)], state)
            self._rate()

        def _rate(self) -> None:
            optimizer = self.model.optimizer
            recorder.rate(float(optimizer.learning_rate), _kind(optimizer))

    return RecorderCallback()


def _kind(optimizer: Any) -> str:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    kinds = [kind for kind in type(inner).__mro__ if kind.__module__.startswith("keras.")]
    return (kinds or [type(inner)])[0].__name__.lower()


def _listen(model: keras.Model, name: str, recorder: Recorder) -> None:
    plain = getattr(model, name)

    def noted(filepath: Any, *args: Any, **more: Any) -> Any:
        recorder.checkpoint(str(filepath))
        return plain(filepath, *args, **more)

    # Past Keras' own __setattr__, which would look for variables in it.
    object.__setattr__(model, name, noted)


def gather(recorder: Recorder, comm: Comm) -> tuple[Evidence, ...]:
    """Return the evidence of all ranks, in rank order, on all ranks; collective.

    Moves the ids of the samples seen from every rank to every other.

    Raises:
        ValueError: on all ranks alike, if a recorder was made for another rank.
    """
    return tuple(require_whole(comm.allgather(recorder.evidence())))


def read(folder: str | os.PathLike) -> tuple[Evidence, ...]:
    """Return what recorders with a `folder` wrote there, also on ranks that were killed.

    A rank that did not reach `Recorder.write` gives its collectives only.

    Returns:
        tuple: one Evidence for each rank, in rank order.

    Raises:
        ValueError: if a rank wrote nothing there.
    """
    everyone = []
    for path in Path(folder).glob("rank*.calls"):
        whole = path.with_suffix(".json")
        if whole.exists():
            everyone.append(_from_json(whole.read_text()))
            continue
        # A rank that was killed while it wrote leaves half a line.
        lines = path.read_text().rpartition("\n")[0].split("\n")
        calls = tuple(Call(*_tuples(json.loads(line))) for line in lines[1:])
        rank = int(path.stem.removeprefix("rank"))
        everyone.append(Evidence(rank, int(lines[0]), calls=calls))
    return tuple(require_whole(everyone))


def require_whole(everyone: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence of each rank of one training, in rank order, or refuse it."""
    ordered = sorted(everyone, key=lambda one: one.rank)
    require(bool(ordered), "everyone", "hold the evidence of every rank", ())
    found, ranks = [one.rank for one in ordered], sorted({one.ranks for one in ordered})
    require(
        len(ranks) == 1 and found == list(range(ranks[0])),
        "everyone",
        f"hold each of the {' or '.join(map(str, ranks))} ranks of one training once",
        found,
        "Record on every rank, with its own rank and the same number of ranks.",
    )
    return ordered
