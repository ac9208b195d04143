"""Compressed gradients under Horovod: the same arithmetic on TensorFlow's tensors, in graphs too.

All arrays of a step go together: one exchange for their messages, one for what is sent as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dlguide.errors import require
from dlguide.parallel import tensorflow_codecs


class Kept:
    """What one rank remembers from step to step, as TensorFlow's variables, and bytes sent."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, Hashable], tuple[Any, Any]] = {}
        self._sent: Any = None

    @property
    def variables(self) -> list[Any]:
        """The variables, in the order in which they were made."""
        return [kept for _variable, kept in self._of.values()]

    @property
    def sent(self) -> int:
        """Bytes handed over so far."""
        return 0 if self._sent is None else int(self._sent.numpy())

    def of(self, kind: str, variable: Any, first: Callable[[], Any]) -> Any:
        """Give what is kept for a variable of the model."""
        import tensorflow as tf

        from dlguide.horovod.reduction import variable_key

        key = kind, variable_key(variable)
        if key not in self._of:
            with tf.init_scope():
                made = tf.Variable(first(), trainable=False, name=f"compression_{kind}")
            self._of[key] = variable, made
        return self._of[key][1]

    def count(self, tensors: Sequence[Any]) -> None:
        """Count what is about to be sent."""
        import tensorflow as tf

        if self._sent is None:
            with tf.init_scope():
                self._sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        sizes = [tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors]
        self._sent.assign_add(tf.add_n(sizes))


def reduce_gradients(
    compressor: Any,
    kept: Kept,
    grads: list[Any],
    variables: list[Any],
    name: str,
    op: int,
    process_set: Any,
) -> list[Any]:
    """Combine gradients over the ranks; called by all of them, eagerly or while a graph is
    traced.
    """
    import tensorflow as tf

    import dlguide.horovod as hvd
    from dlguide.horovod.native import NAMES, members

    require(op in (hvd.Average, hvd.Sum), "op", "be Average or Sum", NAMES.get(op, op))
    ranks = len(members(process_set))
    results = list(grads)
    small = [
        i
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
        if not isinstance(grad, tf.IndexedSlices)
        and compressor.compresses(tuple(variable.shape), grad.dtype.as_numpy_dtype)
    ]
    whole = [i for i in range(len(grads)) if i not in small]
    if whole:
        kept.count(_dense([grads[i] for i in whole]))
        summed = hvd.grouped_allreduce(
            [grads[i] for i in whole], op=op, process_set=process_set, name=f"{name}.whole"
        )
        for i, total in zip(whole, summed, strict=True):
            results[i] = total
    if not small:
        return results
    mine = [tf.ensure_shape(grads[i], variables[i].shape) for i in small]
    errors: list[Any] = []
    if compressor.keeps_errors:
        for place, i in enumerate(small):
            tensor = mine[place]
            errors.append(
                kept.of("error", variables[i], lambda t=tensor: tf.zeros(t.shape, t.dtype))
            )
        mine = [tensor + error for tensor, error in zip(mine, errors, strict=True)]
    of = [variables[i] for i in small]
    totals, own = _exchange(compressor, kept, mine, of, name, ranks, process_set)
    for error, tensor, came in zip(errors, mine, own, strict=bool(errors)):
        left = tensor - came
        error.assign(tf.where(tf.math.is_finite(left), left, tf.zeros_like(left)))
    for i, total in zip(small, totals, strict=True):
        results[i] = total / tf.constant(ranks, total.dtype) if op == hvd.Average else total
    return results


def _dense(grads: list[Any]) -> list[Any]:
    """Give the tensors in which gradients travel that are not compressed."""
    import tensorflow as tf

    from dlguide.horovod.ops import REDUCED, transmitted

    parts = [
        part
        for grad in grads
        for part in ((grad.values, grad.indices) if isinstance(grad, tf.IndexedSlices) else (grad,))
    ]
    return [transmitted(part, REDUCED) for part in parts]


def _exchange(
    compressor: Any,
    kept: Kept,
    tensors: list[Any],
    variables: list[Any],
    name: str,
    ranks: int,
    process_set: Any,
) -> tuple[list[Any], list[Any]]:
    """Give the sums over ranks, and what came through of this rank's own tensors."""
    import tensorflow as tf

    import dlguide.horovod as hvd

    def summed(these: list[Any], what: str) -> list[Any]:
        kept.count(these)
        return hvd.grouped_allreduce(
            these, op=hvd.Sum, process_set=process_set, name=f"{name}.{what}"
        )

    if hasattr(compressor, "codec"):
        codec = compressor.codec
        messages = [tensorflow_codecs.encode(codec, tensor) for tensor in tensors]
        flat = [part for message in messages for part in message]
        kept.count(flat)
        gathered = hvd.grouped_allgather(flat, f"{name}.messages", process_set=process_set)
        split = iter([tf.split(part, ranks) for part in gathered])
        totals = []
        for tensor, message in zip(tensors, messages, strict=True):
            from_ranks = zip(*(next(split) for _ in message), strict=True)
            # One after the other in rank order: all ranks must round alike.
            total = tf.zeros_like(tensor)
            for one in from_ranks:
                total += tensorflow_codecs.decode(codec, one, tensor.shape, tensor.dtype)
            totals.append(total)
        own = [
            tensorflow_codecs.decode(codec, message, tensor.shape, tensor.dtype)
            for tensor, message in zip(tensors, messages, strict=True)
        ]
        return totals, own if compressor.keeps_errors else []
    if hasattr(compressor, "rank"):
        return _power_sgd(compressor, kept, tensors, variables, summed)
    halves = summed([tf.cast(tensor, tf.float16) for tensor in tensors], "fp16")
    return [tf.cast(h, t.dtype) for h, t in zip(halves, tensors, strict=True)], []


def _power_sgd(
    compressor: Any,
    kept: Kept,
    tensors: list[Any],
    variables: list[Any],
    summed: Callable[[list[Any], str], list[Any]],
) -> tuple[list[Any], list[Any]]:
    import tensorflow as tf

    firsts = [compressor.start(tuple(t.shape), t.dtype.as_numpy_dtype) for t in tensors]
    starts = [
        kept.of("start", variable, lambda f=first: f)
        for variable, first in zip(variables, firsts, strict=True)
    ]
    matrices = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in tensors]
    p = summed([m @ q for m, q in zip(matrices, starts, strict=True)], "p")
    p = [tf.linalg.qr(each)[0] for each in p]
    own = [tf.matmul(m, each, transpose_a=True) for m, each in zip(matrices, p, strict=True)]
    total = summed(own, "q")
    for start, q, first in zip(starts, total, firsts, strict=True):
        usable = tf.reduce_all(tf.math.is_finite(q)) & tf.reduce_any(q != 0)
        start.assign(tf.where(usable, q, first))

    def product(q: list[Any]) -> list[Any]:
        return [
            tf.reshape(tf.matmul(left, right, transpose_b=True), tensor.shape)
            for left, right, tensor in zip(p, q, tensors, strict=True)
        ]

    return product(total), product(own) if compressor.keeps_errors else []
