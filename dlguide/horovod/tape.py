"""Gradient tapes that return the gradients of all ranks combined, for loops of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.native import Average, Compression, ProcessSet, global_process_set
from dlguide.horovod.reduction import Reduction, reduction, refuse_xla, variable_key


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
    not both.

    Args:
        gradtape: the tape.
        device_dense: device for the exchange of tensors; empty leaves it to TensorFlow.
        device_sparse: device for the exchange of `tf.IndexedSlices`.
        compression: `Compression.none`, `Compression.fp16`, or a compressor made for this training
            by `dlguide.parallel.compression`.
        sparse_as_dense: turn sparse gradients into dense ones first.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: divide by it before the sum, and by p / factor after.
        num_groups: the old form of `groups`.
        groups: as in `DistributedOptimizer`.
        process_set: the ranks that take part.
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
    settings = reduction(
        "DistributedGradientTape",
        name=None,
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
    gradtape._reduction, gradtape._local_sources = settings, set()
    return gradtape


def PartialDistributedGradientTape(
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
    local_layers: keras.Layer | Sequence[keras.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Make a tape return averaged gradients for all layers but the local ones.

    Args:
        gradtape: the tape.
        device_dense: see `DistributedGradientTape`, as for all that are not named here.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        op: see there.
        gradient_predivide_factor: see there.
        num_groups: see there.
        groups: see there.
        process_set: see there.
        local_layers: one built layer, or several, whose gradients stay on their rank.
        scale_local_gradients: divide the gradients of local layers by p.

    Returns:
        tf.GradientTape: `gradtape`.

    Raises:
        ValueError: when `local_layers` are no layers.
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or [])
    are_layers = all(isinstance(layer, keras.Layer) for layer in layers)
    require(are_layers, "local_layers", "be Keras layers", local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


class _DistributedTape:
    """What is put in front of a tape's class."""

    _reduction: Reduction
    _local_sources: set

    def register_local_source(self, source: Any) -> None:
        """Keep the gradients with respect to a variable on their rank."""
        self._local_sources.add(variable_key(source))

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
        reduced = self._reduction.reduce(
            tf.nest.flatten(grads), variables, frozenset(self._local_sources)
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list, list]:
        """Return pairs (variable, gradient), those of local sources apart."""
        grads = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(grads), strict=True))
        local = [pair for pair in pairs if variable_key(pair[0]) in self._local_sources]
        other = [pair for pair in pairs if variable_key(pair[0]) not in self._local_sources]
        return local, other
