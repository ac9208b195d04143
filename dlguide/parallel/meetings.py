"""When ranks that train alone meet: a Keras callback, and a hook for loops of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require_count
from dlguide.parallel.local import Averaging

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


class Meetings:
    """Call a scheme every so many steps on a model's variables, and once more at the end.

    Trainable variables follow the scheme; what batch normalisation counts is averaged.
    """

    def __init__(self, scheme: Averaging, comm: Comm, every_steps: int, model: keras.Model) -> None:
        self.scheme, self.comm, self.model = scheme, comm, model
        self.every_steps = require_count(every_steps, "every_steps")
        self.step = 0
        self.counted = Averaging()
        self.met_at = 0

    @property
    def sent(self) -> int:
        """Bytes that this rank has handed to others, batch normalisation's included."""
        return self.scheme.sent + self.counted.sent

    def begin(self) -> None:
        """Start all ranks from the weights of rank 0; every rank must call."""
        for variable in self.model.weights:
            variable.assign(self.comm.bcast(np.array(variable)))
        if hasattr(self.scheme, "begin"):
            self.scheme.begin([np.array(v) for v in self.model.trainable_variables])

    def after_step(self) -> None:
        """Count a step, and meet when it is time."""
        self.step += 1
        if self.step % self.every_steps == 0:
            self._meet()

    def finish(self) -> None:
        """Meet a last time, and leave the result of the scheme, equal on all ranks."""
        if self.met_at == self.step:  # met just now; but others may have steps to go
            arrays = [np.array(v) for v in self.model.trainable_variables]
            self.scheme.agree(arrays, self.comm, self.step)
        else:
            self._meet()
        if hasattr(self.scheme, "finish"):
            self._on_arrays(self.model.trainable_variables, self.scheme.finish)

    def _meet(self) -> None:
        comm, step = self.comm, self.step
        self.met_at = step
        trained = self.model.trainable_variables
        self._on_arrays(trained, lambda arrays: self.scheme.meet(arrays, comm, step))
        floats = [v for v in self.model.non_trainable_weights if "float" in str(v.dtype)]
        if floats:
            self._on_arrays(floats, lambda arrays: self.counted.meet(arrays, comm, step))

    @staticmethod
    def _on_arrays(variables: Sequence[Any], change: Callable[[list[np.ndarray]], None]) -> None:
        arrays = [np.array(variable) for variable in variables]
        change(arrays)
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


def callback(scheme: Averaging, comm: Comm, every_steps: int) -> keras.callbacks.Callback:
    """Make a callback for `model.fit` with a plain optimizer on every rank.

    All ranks must train as many batches, with one shard each; else they are told at the next
    meeting. No Horovod is needed.
    """
    import keras

    require_count(every_steps, "every_steps")

    class Meet(keras.callbacks.Callback):
        meetings: Meetings

        def on_train_begin(self, logs: dict | None = None) -> None:
            self.meetings = Meetings(scheme, comm, every_steps, self.model)
            self.meetings.begin()

        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            self.meetings.after_step()

        def on_train_end(self, logs: dict | None = None) -> None:
            self.meetings.finish()

    return Meet()


def every_steps(step: Callable[..., Any], meetings: Meetings) -> Callable[..., Any]:
    """Make a step of training that is followed by a meeting when it is time."""

    def step_and_meet(*arguments: Any) -> Any:
        result = step(*arguments)
        meetings.after_step()
        return result

    return step_and_meet
