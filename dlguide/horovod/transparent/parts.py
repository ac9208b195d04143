"""Each rank's part of every batch, with what is needed to check and to weigh it.

The split stands at the end of Keras' own input pipeline, whatever it began with: all ranks draw
the same batches, and each keeps its own rows. The batch, the order and the number of steps so
stay the script's; the price is that every rank reads all the data.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

OWN, TOTAL, PRINT = range(3)  # the places in what travels beside the data


def bounds(total: Any, rank: int, ranks: int) -> tuple[Any, Any]:
    """Return the first row of a rank and the first of the next one.

    >>> [bounds(10, rank, 4) for rank in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return total * rank // ranks, total * (rank + 1) // ranks


def shared(dataset: tf.data.Dataset, rank: int, ranks: int) -> tf.data.Dataset:
    """Return a data set of this rank's parts: elements (sizes, part).

    `sizes` holds own rows, all rows and a fingerprint of the whole batch (int64, shape (3,)). A
    rank without rows gets the batch's first one and 0 own rows, so that it can take part.
    """

    @tf.autograph.experimental.do_not_convert
    def take(*batch: Any) -> Any:
        batch = (
            batch[0] if len(batch) == 1 and not isinstance(dataset.element_spec, tuple) else batch
        )
        leaves = [leaf for leaf in tf.nest.flatten(batch) if _has_rows(leaf)]
        if not leaves:
            raise ValueError("its data hold no batches: nothing in an element has rows")
        total = _rows(leaves[0])
        even = [
            tf.debugging.assert_equal(
                _rows(leaf), total, "Every array of a batch must have as many rows as the others."
            )
            for leaf in leaves[1:]
        ]
        with tf.control_dependencies([each for each in even if each is not None]):
            first, end = bounds(total, rank, ranks)
            own = end - first
        first, end = tf.minimum(first, total - 1), tf.maximum(end, tf.minimum(first, total - 1) + 1)
        print_ = tf.add_n([_fingerprint(leaf) for leaf in leaves])
        part = tf.nest.map_structure(lambda leaf: _slice(leaf, first, end, ranks), batch)
        return tf.stack([own, total, print_]), part

    return dataset.map(take).prefetch(1)


def _has_rows(leaf: Any) -> bool:
    kinds = tf.Tensor | tf.RaggedTensor | tf.SparseTensor
    return isinstance(leaf, kinds) and leaf.shape.rank != 0


def _rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, tf.int64)[0]


def _slice(leaf: Any, first: tf.Tensor, end: tf.Tensor, ranks: int) -> Any:
    """Return rows of a leaf; what has no rows goes to every rank."""
    if not _has_rows(leaf):
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        shape = leaf.dense_shape
        start = tf.concat([[first], tf.zeros_like(shape[1:])], 0)
        return tf.sparse.slice(leaf, start, tf.concat([[end - first], shape[1:]], 0))
    rows = leaf[first:end]
    static = leaf.shape[0] if leaf.shape.rank else None
    if static is not None and static % ranks == 0 and isinstance(rows, tf.Tensor):
        rows = tf.ensure_shape(rows, [static // ranks, *rows.shape[1:]])
    return rows


def _fingerprint(leaf: Any) -> tf.Tensor:
    """Return 64 bits that depend on every value of a leaf, in their order."""
    if isinstance(leaf, tf.RaggedTensor):
        return _fingerprint(leaf.flat_values) + 3 * _fingerprint(leaf.nested_row_splits[0])
    if isinstance(leaf, tf.SparseTensor):
        return _fingerprint(leaf.values) + 3 * _fingerprint(leaf.indices)
    if leaf.dtype == tf.string:
        flat = tf.strings.to_hash_bucket_fast(tf.reshape(leaf, [-1]), 2**62)
    elif leaf.dtype == tf.bool:
        flat = tf.cast(tf.reshape(leaf, [-1]), tf.uint8)
    else:
        flat = tf.reshape(leaf, [-1])
    return tf.bitcast(tf.fingerprint(flat[None]), tf.int64)[0]
