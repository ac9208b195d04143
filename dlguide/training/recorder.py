"""Recorder: gathers the Evidence of one rank, under Keras' `fit` or in a loop written by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.training.evidence import Call, Evidence, Metric, Seed, digest_of, ids_of

if TYPE_CHECKING:
    import keras

RULES = ("linear", "sqrt", "none")


class Recorder:
    """Watches one rank; every method may be left out, and then that is not looked at.

    It sends nothing and changes no result. Give `callback()` to `fit` and `watch(dataset)` in
    the place of the data set; in a loop written by hand call `weights`, `samples`, `collective`
    and the others where they happen.

    Args:
        rank: this rank (index).
        ranks: number of ranks (count).
        dataset: all training samples (shape (samples, ...)), or only their count; None when
            not known, and then nothing is said about samples that no rank saw.
        rate_of_one_rank: the learning rate that one rank would use; None when not known.
        rate_rule: how the rate should follow the ranks: "linear", "sqrt", "none"; empty for the
            optimizer's usual rule.
        folder: where every collective is noted before it starts, so that `audit.read` can tell
            also after a training that hung was ended; None for nowhere.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        dataset: Any = None,
        rate_of_one_rank: float | None = None,
        rate_rule: str = "",
        folder: str | os.PathLike | None = None,
    ) -> None:
        self.ranks = require_count(ranks, "ranks")
        self.rank = require_count(rank, "rank", least=0)
        require(rank < ranks, "rank", f"be below the {ranks} ranks", rank)
        self._told: dict[str, Any] = {}
        if dataset is not None:
            whole = np.ndim(dataset) > 0
            ids = ids_of(dataset) if whole else ()
            count = len(ids) if whole else require_count(dataset, "dataset")
            self._told |= {"samples": count, "distinct": len(set(ids)) if whole else count}
        if rate_of_one_rank is not None:
            rate = require_positive(rate_of_one_rank, "rate_of_one_rank")
            self._told["rate_of_one_rank"] = rate
        if rate_rule:
            self._told["rate_rule"] = require_known(rate_rule, RULES, "rate_rule")
        self._seen: list[list[int]] = []
        self._batches: list[list[int]] = []
        self._steps: list[int] = []
        self._seeds: dict[str, Seed] = {}
        self._metrics: dict[str, Metric] = {}
        self._checkpoints: list[str] = []
        self._calls: list[Call] = []
        self._step_s: list[float] = []
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(".json").unlink(missing_ok=True)
            self._file(".calls").write_text(json.dumps(self.ranks) + "\n")

    def epoch(self) -> None:
        """Begin an epoch; without it all samples count as one epoch."""
        self._seen.append([])
        self._batches.append([])

    def samples(self, images: Any) -> None:
        """Note the samples of one step, before they are changed at random.

        Args:
            images: shape (samples, ...).
        """
        if len(self._seen) < max(1, len(self._steps)):
            self.epoch()
        ids = ids_of(images)
        self._seen[-1] += ids
        self._batches[-1].append(len(ids))

    def weights(self, arrays: Iterable[Any], last: bool = False) -> None:
        """Note the trainable weights: after the broadcast, and at the end.

        Args:
            arrays: in an order that all ranks have.
            last: whether this is the end.
        """
        self._told["last_weights" if last else "first_weights"] = digest_of(arrays)

    def statistics(self, arrays: Iterable[Any]) -> None:
        """Note the moving means and variances of batch normalisation, at the end.

        Args:
            arrays: in an order that all ranks have.
        """
        self._told["statistics"] = digest_of(arrays)

    def rate(self, learning_rate: float, optimizer: str = "") -> None:
        """Note the learning rate in use; the highest one counts, which warmup leads up to.

        Args:
            learning_rate: as the optimizer has it.
            optimizer: its kind, such as "sgd" or "adam"; empty leaves it as noted before.
        """
        value = float(learning_rate)
        self._told["learning_rate"] = max(value, self._told.get("learning_rate", value))
        if optimizer:
            self._told["optimizer"] = optimizer.lower()

    def seed(self, name: str, value: int | str, differs: bool = True) -> None:
        """Note a seed.

        Args:
            name: what it is for: dropout, shuffle, augmentation.
            value: of this rank.
            differs: whether it should differ between ranks (dropout, augmentation) or agree (a
                shuffle that comes before the cut into shards).
        """
        plain = value if isinstance(value, str) else int(value)
        self._seeds[name] = Seed(name, plain, bool(differs))

    def metric(self, name: str, value: float, samples: int, averaged: bool | None = None) -> None:
        """Note a metric as this rank reports it; a later one of the same name replaces it.

        Args:
            name: of the metric.
            value: as reported.
            samples: of this rank that it is the mean of (count).
            averaged: over the ranks; None lets the values tell.
        """
        self._metrics[name] = Metric(name, float(value), int(samples), averaged)

    def throughput(self, images_per_s: float, step_s: Iterable[float]) -> None:
        """Note a throughput that is reported, and the steps behind it.

        Args:
            images_per_s: as reported, over all ranks.
            step_s: time of every step, the first one too (s).
        """
        self._told["images_per_s"] = require_positive(images_per_s, "images_per_s")
        self._step_s = [float(seconds) for seconds in step_s]

    def checkpoint(self, path: str | os.PathLike) -> None:
        """Note that this rank writes a checkpoint file.

        Args:
            path: of the file.
        """
        self._checkpoints.append(os.fspath(path))

    def collective(self, name: str, array: Any) -> None:
        """Note a collective just before it is called.

        Args:
            name: allreduce, broadcast, or what tells two calls apart, such as "allreduce w1".
            array: this rank's buffer, for its shape and dtype.
        """
        buffer = np.asarray(array)
        call = Call(name, tuple(int(size) for size in buffer.shape), buffer.dtype.name)
        self._calls.append(call)
        if self._folder is not None:
            with open(self._file(".calls"), "a") as file:
                file.write(json.dumps(asdict(call)) + "\n")

    def watch(self, dataset: Any) -> Any:
        """Note the samples of all batches that are taken from a data set.

        Args:
            dataset: `tf.data.Dataset`, or anything that can be iterated again and again, of
                batches: images, or a tuple of images and more.

        Returns:
            object: with the same batches, a `tf.data.Dataset` where one was given.
        """
        batches = _Watched(dataset, self)
        if not hasattr(dataset, "element_spec"):
            return batches
        import tensorflow as tf

        watched = tf.data.Dataset.from_generator(
            lambda: iter(batches), output_signature=dataset.element_spec
        )
        count = int(dataset.cardinality())
        return (
            watched.apply(tf.data.experimental.assert_cardinality(count)) if count > 0 else watched
        )

    def callback(self) -> keras.callbacks.Callback:
        """Make the Keras callback; put it last, behind the broadcast and the mean of metrics.

        It notes weights, batch normalisation, learning rate, steps, metrics of the last epoch,
        the seeds of random layers and the files that `model.save` and `save_weights` write.

        Returns:
            keras.callbacks.Callback: for one training.
        """
        from dlguide.training.keras_recorder import callback

        return callback(self)

    @property
    def seen_in_epoch(self) -> int:
        """Samples noted in the epoch that runs (count)."""
        return sum(self._batches[-1]) if self._batches else 0

    def begin_epoch(self) -> None:
        """Begin an epoch of `fit`, and forget samples that were taken to build the model."""
        done = len(self._steps)
        del self._seen[done:], self._batches[done:]
        self._steps.append(0)

    def step(self) -> None:
        """Count a step of `fit`."""
        self._steps[-1] += 1

    def evidence(self) -> Evidence:
        """Give what was noted so far.

        Returns:
            Evidence: of this rank.
        """
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
            step_s=tuple(self._step_s),
            **self._told,
        )

    def write(self) -> Path:
        """Write the evidence into the folder, for `audit.read`.

        Returns:
            Path: the file.

        Raises:
            ValueError: when the recorder was made without a folder.
        """
        require(self._folder is not None, "folder", "be given where the recorder is made", None)
        path = self._file(".json")
        path.write_text(self.evidence().to_json())
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
