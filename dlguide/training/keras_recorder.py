"""The Keras callback of a Recorder, made where Keras is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

_STATISTICS = ("moving_mean", "moving_variance")
_SAVING = ("save", "save_weights")


def callback(recorder: Any) -> keras.callbacks.Callback:
    """Make a callback that tells a recorder what `fit` does."""
    import keras

    class RecorderCallback(keras.callbacks.Callback):
        """Tells the recorder; sends nothing."""

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
            for name, value in (logs or {}).items():
                if name != "learning_rate":
                    recorder.metric(name, float(value), recorder.seen_in_epoch)

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


def _listen(model: keras.Model, name: str, recorder: Any) -> None:
    plain = getattr(model, name)

    def told(filepath: Any, *args: Any, **more: Any) -> Any:
        recorder.checkpoint(str(filepath))
        return plain(filepath, *args, **more)

    # Past Keras' own __setattr__, which would look for variables in it.
    object.__setattr__(model, name, told)
