"""Gradient tapes that return the gradients of all ranks combined, for your own training loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.native import Average, Compression, ProcessSet, global_process_set
from dlguide.horovod.optimizer import trainable_of
from dlguide.horovod.reduction import GradientReducer, refuse_xla, variable_key


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Make a tape return gradients that are averaged over the ranks.

    The tape itself becomes distributed and is returned, so that it may be wrapped before or after
    it has recorded. Use it with a plain optimizer, or `DistributedOptimizer` with a plain tape,
    not both. All arguments not listed here are those of `DistributedOptimizer`.

    Args:
        op: Average, Sum, Min, Max, Product or Adasum.
        scale_local_gradients: divide the gradients of local sources by p.

    Returns:
        tf.GradientTape: `gradtape`.

    Raises:
        TypeError: when it is no tape.
        ValueError: when an argument is out of range, or the tape is distributed already.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"`gradtape` must be a tf.GradientTape, got {type(gradtape).__name__}.")
    fresh = not isinstance(gradtape, _DistributedTape)
    require(fresh, "gradtape", "be one that is not distributed yet", gradtape)
    reducer = GradientReducer(
        "DistributedGradientTape",
        groups=groups,
        num_groups=num_groups,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    base = type(gradtape)
    gradtape.__class__ = type(base.__name__, (_DistributedTape, base), {})
    gradtape._reducer = reducer
    return gradtape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    *args: Any,
    local_layers: keras.Layer | Sequence[keras.Layer] | None = None,
    **options: Any,
) -> tf.GradientTape:
    """Make a tape return averaged gradients for all layers but the local ones.

    Args:
        local_layers: one built layer, or several, whose gradients stay on their rank.
        options: those of `DistributedGradientTape`.

    Returns:
        tf.GradientTape: `gradtape`.

    Raises:
        ValueError: when `local_layers` are no layers.
    """
    variables = trainable_of(local_layers)
    tape = DistributedGradientTape(gradtape, *args, **options)
    for variable in variables:
        tape.register_local_source(variable)
    return tape


class _DistributedTape:
    """The first base of a distributed tape's class."""

    _reducer: GradientReducer

    def register_local_source(self, source: Any) -> None:
        """Keep the gradients with respect to a variable on their rank."""
        self._reducer.local.add(variable_key(source))

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **settings: Any,
    ) -> Any:
        """Return the gradients of all ranks combined, in the structure of `sources`."""
        grads = super().gradient(target, sources, output_gradients, **settings)
        refuse_xla()
        variables = tf.nest.flatten(sources)
        reduced = self._reducer.reduce(tf.nest.flatten(grads), variables)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list, list]:
        """Return pairs (variable, gradient), those of local sources first, then the others."""
        grads = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(grads), strict=True))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        other = [pair for pair in pairs if not self._reducer.is_local(pair[0])]
        return local, other
