"""Compressed gradients with error feedback, for NumPy and mpi4py and for Keras and Horovod.

    compressor = compression.top_k(0.01)
    mean = compressor.allreduce(gradient, comm)                                # NumPy and mpi4py
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compressor)    # Keras and Horovod

With e the error that a rank remembers, what it sends of its gradient g and the new error are

    sent = decode(encode(g + e)),    e <- g + e - sent

so that nothing is lost, only delayed: everything sent plus the last error is the sum of all
gradients. `sent` counts the bytes that this rank has passed to collectives, `nbytes` predicts them.

A codec encodes an array as a message of few bytes, `payload` of them, and decodes it, with losses.
`encode_tensor` makes the same message by operations of TensorFlow, so that no gradient leaves its
device. An array with values that are not finite comes out of every codec with at least one such
value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import collectives
from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require, require_count, require_known, require_positive

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# Biases: compressing them saves nothing that could be measured, and costs accuracy.
SMALL = 256
DTYPES = ("float32", "float64")
# The sum over ranks and, where errors are kept, this rank's own array as it was sent; or lists.
_Sums = tuple[Any, Any]
# Passes tensors to Horovod under a name; returns of each the sum, or the list of all ranks'.
_Exchange = Callable[[list[Any], str], list[Any]]


class Compressor:
    """Averages arrays over ranks and sends fewer bytes than the arrays have.

    Arrays with fewer values than `small`, and those that would not become smaller, are sent as
    they are. Make one for each training on each rank: it remembers that training's errors.
    """

    keeps_errors = False
    gathers = False  # each rank receives the messages of all others, instead of their sum

    def __init__(self, name: str, small: int = SMALL) -> None:
        self.name = name
        self.small = require_count(small, "small", least=0)
        self.errors: dict[Hashable, np.ndarray] = {}
        self._sent = 0
        self._states: dict[tuple[str, Hashable], Any] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def sent(self) -> int:
        """Bytes that this rank has passed to collectives so far."""
        counted = self._states.get(("sent", None))
        return self._sent + (0 if counted is None else int(counted))

    @property
    def variables(self) -> list[Any]:
        """What is remembered under Horovod, as TensorFlow variables, for a checkpoint of your own.

        They exist after the first step, in the order of the gradients; each rank has its own.
        """
        return [state for (kind, _), state in self._states.items() if kind != "sent"]

    def compresses(self, shape: Sequence[int], dtype: Any = "float32") -> bool:
        """Return whether an array is sent compressed."""
        size, dtype = math.prod(shape), np.dtype(dtype)
        if dtype.name not in DTYPES or size < max(1, self.small):
            return False
        return self.payload(tuple(shape), dtype.itemsize) < size * dtype.itemsize

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Return the bytes of an array that is sent compressed."""
        return math.prod(shape) * itemsize

    def nbytes(self, shape: Sequence[int], ranks: int, dtype: Any = "float32") -> int:
        """Predict the bytes that one rank passes to collectives to average one array."""
        if require_count(ranks, "ranks") == 1:
            return 0
        itemsize = np.dtype(dtype).itemsize
        if self.compresses(shape, dtype):
            return self.payload(tuple(shape), itemsize)
        return math.prod(shape) * itemsize

    def step_nbytes(self, arrays: Iterable[Any], ranks: int) -> int:
        """Predict the bytes that one rank passes to collectives in one step."""
        return sum(self.nbytes(a.shape, ranks, np.dtype(str(a.dtype))) for a in arrays)

    def allreduce(
        self, array: np.ndarray, comm: Comm, key: Hashable = "gradient", check: bool = True
    ) -> np.ndarray:
        """Return the mean of the ranks' arrays after compression, the same bits on all ranks.

        Every rank must call, for the same keys in the same order. A single rank compresses too,
        but sends nothing.

        Args:
            array: float32 or float64.
            key: the array's name, under which its error is remembered.
            check: compare the arguments of all ranks first, for 16 bytes.

        Raises:
            ValueError: on all ranks alike, when arrays or compressors differ.
        """
        if check:
            mine = {"compression": self.name, "small": self.small, "key": str(key)}
            require_equal_buffers(comm, array, **mine)
        require_known(array.dtype.name, DTYPES, "array.dtype")
        if not self.compresses(array.shape, array.dtype):
            return np.asarray(self._summed(array.copy(), comm) / array.dtype.type(comm.size))
        error = self.errors.get(key)
        if error is not None:
            same = error.shape == array.shape and error.dtype == array.dtype
            then = "Use another `key` for another array."
            got = f"{array.shape} of {array.dtype}"
            require(same, "array", f"stay {error.shape} of {error.dtype}", got, then)
            array = np.asarray(array + error)
        total, own = self._exchange(array, comm, key)
        if self.keeps_errors:
            left = np.asarray(array - own)
            finite = np.isfinite(left)
            # values that are not finite are sent, and must not stay in the error
            self.errors[key] = left if finite.all() else np.where(finite, left, 0)
        return np.asarray(total / total.dtype.type(comm.size))

    def reduce_gradients(
        self, grads: list[Any], variables: list[Any], name: str, op: int, process_set: Any
    ) -> list[Any]:
        """Sum or average gradients over ranks by Horovod; all arrays of a step travel together."""
        import tensorflow as tf

        import dlguide.horovod as hvd
        from dlguide.horovod.native import NAMES, members
        from dlguide.horovod.reduction import variable_key

        require(op in (hvd.Average, hvd.Sum), "op", "be Average or Sum", NAMES.get(op, op))
        ranks, results = len(members(process_set)), list(grads)
        small = [
            i
            for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
            if not isinstance(grad, tf.IndexedSlices)
            and self.compresses(tuple(variable.shape), grad.dtype.as_numpy_dtype)
        ]
        whole = [i for i in range(len(grads)) if i not in small]

        def reduced(tensors: list[Any], group: str, op: int = hvd.Sum) -> list[Any]:
            self._count([part for tensor in tensors for part in _parts(tensor)])
            group = f"{name}.{group}"
            return hvd.grouped_allreduce(tensors, op=op, process_set=process_set, name=group)

        def gathered(tensors: list[Any], group: str) -> list[Any]:
            self._count(tensors)
            joined = hvd.grouped_allgather(tensors, f"{name}.{group}", process_set=process_set)
            return [tf.split(each, ranks) for each in joined]

        if whole:
            totals = reduced([grads[i] for i in whole], "whole", op)
            for i, total in zip(whole, totals, strict=True):
                results[i] = total
        if not small:
            return results
        tensors = [tf.ensure_shape(grads[i], variables[i].shape) for i in small]
        keys = [variable_key(variables[i]) for i in small]
        errors: list[Any] = []
        if self.keeps_errors:
            zeros = [np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype) for tensor in tensors]
            errors = [self._state("error", *each) for each in zip(keys, zeros, strict=True)]
            tensors = [tensor + error for tensor, error in zip(tensors, errors, strict=True)]
        totals, own = self._sum_tensors(tensors, keys, gathered if self.gathers else reduced)
        for i, error in enumerate(errors):
            left = tensors[i] - own[i]
            error.assign(tf.where(tf.math.is_finite(left), left, tf.zeros_like(left)))
        for i, total in zip(small, totals, strict=True):
            results[i] = total / tf.cast(ranks, total.dtype) if op == hvd.Average else total
        return results

    def _summed(self, array: np.ndarray, comm: Comm) -> np.ndarray:
        """Count an array and sum it over ranks, in place."""
        self._sent += array.nbytes * (comm.size > 1)
        with np.errstate(over="ignore"):
            return collectives.allreduce(array, comm, check=False)

    def _exchange(self, array: np.ndarray, comm: Comm, key: Hashable) -> _Sums:
        raise NotImplementedError

    def _sum_tensors(self, tensors: list[Any], keys: list[Any], exchange: _Exchange) -> _Sums:
        raise NotImplementedError

    def _state(self, kind: str, key: Hashable, first: Any) -> Any:
        """Return what is remembered from step to step as a variable, which begins as `first`."""
        import tensorflow as tf

        if (kind, key) not in self._states:
            with tf.init_scope():  # also where a graph is traced
                made = tf.Variable(first, trainable=False, name=f"compression_{kind}")
            self._states[kind, key] = made
        return self._states[kind, key]

    def _count(self, tensors: list[Any]) -> None:
        """Count tensors that are about to be sent."""
        import tensorflow as tf

        sizes = [tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors]
        self._state("sent", None, np.int64(0)).assign_add(tf.add_n(sizes))


class Float16(Compressor):
    """Casts to 16 bits and sums in 16 bits, as `hvd.Compression.fp16` does: 2 n bytes."""

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return 2 * math.prod(shape)

    def _exchange(self, array: np.ndarray, comm: Comm, key: Hashable) -> _Sums:
        with np.errstate(over="ignore"):  # infinity is the result, and must be visible
            half = array.astype(np.float16)
        return self._summed(half, comm).astype(array.dtype), None

    def _sum_tensors(self, tensors: list[Any], keys: list[Any], exchange: _Exchange) -> _Sums:
        import tensorflow as tf

        halves = exchange([tf.cast(tensor, tf.float16) for tensor in tensors], "halves")
        return [tf.cast(half, tensors[i].dtype) for i, half in enumerate(halves)], []


class Gathered(Compressor):
    """Sends each rank's message to all others; every rank decodes all and sums in rank order."""

    gathers = True

    def __init__(
        self,
        name: str,
        codec: TopK | Threshold | OneBit | BFloat16,
        small: int = SMALL,
        remember: bool = True,
    ) -> None:
        super().__init__(name, small)
        self.codec, self.keeps_errors = codec, remember

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return self.codec.payload(shape, itemsize)

    def _exchange(self, array: np.ndarray, comm: Comm, key: Hashable) -> _Sums:
        message = self.codec.encode(array)
        messages = np.empty((comm.size, message.size), np.uint8)
        comm.Allgather(message, messages)
        self._sent += message.nbytes * (comm.size > 1)
        total, own = np.zeros_like(array), None
        for rank, each in enumerate(messages):
            came = self.codec.decode(each, array.shape, array.dtype)
            total += came
            if rank == comm.rank:
                own = came
        return total, own

    def _sum_tensors(self, tensors: list[Any], keys: list[Any], exchange: _Exchange) -> _Sums:
        messages = [self.codec.encode_tensor(tensor) for tensor in tensors]
        totals, own = [], []
        for i, everyone in enumerate(exchange(messages, "messages")):
            like = tuple(tensors[i].shape), tensors[i].dtype
            # in rank order: all ranks must round alike
            totals.append(sum(self.codec.decode_tensor(message, *like) for message in everyone))
            if self.keeps_errors:
                own.append(self.codec.decode_tensor(messages[i], *like))
        return totals, own


class PowerSGD(Compressor):
    """Sends an array, as a matrix M, as the product of two thin ones: r (rows + columns) values.

        P = orthogonalised sum of M Q,    Q <- sum of M^T P,    sum of M = about P Q^T

    One step of power iteration, which starts from the Q of the last step (warm start). Both
    sums are allreduces, so the bytes do not grow with the ranks. The columns are the outputs of
    the layer; arrays with fewer than two dimensions are sent as they are.

    Source:
        Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS (2019), algorithms 1 and 2.
    """

    def __init__(self, name: str, rank: int, small: int = SMALL, remember: bool = True) -> None:
        super().__init__(name, small)
        self.rank, self.keeps_errors = require_count(rank, "rank"), remember
        self.starts: dict[Hashable, np.ndarray] = {}

    def compresses(self, shape: Sequence[int], dtype: Any = "float32") -> bool:
        return len(shape) > 1 and super().compresses(shape, dtype)

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return (math.prod(shape[:-1]) + shape[-1]) * self.rank * itemsize

    def _exchange(self, array: np.ndarray, comm: Comm, key: Hashable) -> _Sums:
        matrix = array.reshape(-1, array.shape[-1])
        q = self.starts.get(key)
        if q is None:
            q = self._first(array.shape, array.dtype)
        p, _ = np.linalg.qr(self._summed(matrix @ q, comm))
        q = matrix.T @ p
        own = (p @ q.T).reshape(array.shape) if self.keeps_errors else None
        q = self._summed(q, comm)
        # power iteration would not recover from zeros or from values that are not finite
        usable = np.isfinite(q).all() and q.any()
        self.starts[key] = q if usable else self._first(array.shape, array.dtype)
        return (p @ q.T).reshape(array.shape), own

    def _sum_tensors(self, tensors: list[Any], keys: list[Any], exchange: _Exchange) -> _Sums:
        import tensorflow as tf

        firsts = [self._first(tuple(t.shape), t.dtype.as_numpy_dtype) for t in tensors]
        starts = [self._state("start", *each) for each in zip(keys, firsts, strict=True)]
        matrices = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in tensors]
        p = exchange([m @ q for m, q in zip(matrices, starts, strict=True)], "p")
        p = [tf.linalg.qr(each).q for each in p]
        own = [tf.matmul(m, each, transpose_a=True) for m, each in zip(matrices, p, strict=True)]
        total = exchange(own, "q")
        for start, q, first in zip(starts, total, firsts, strict=True):
            usable = tf.reduce_all(tf.math.is_finite(q)) & tf.reduce_any(q != 0)
            start.assign(tf.where(usable, q, first))

        def products(q: list[Any]) -> list[Any]:
            pairs = [tf.matmul(*each, transpose_b=True) for each in zip(p, q, strict=True)]
            return [tf.reshape(pairs[i], tensor.shape) for i, tensor in enumerate(tensors)]

        return products(total), products(own) if self.keeps_errors else []

    def _first(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Draw the first Q for an array, the same on all ranks."""
        random = np.random.default_rng([0, *shape])
        return random.normal(size=(shape[-1], self.rank)).astype(dtype)


@dataclass(frozen=True)
class TopK:
    """Send the largest values and their indices: k (4 + itemsize) bytes, k at least 1.

    Source:
        Aji and Heafield, EMNLP (2017); Lin et al., Deep Gradient Compression, ICLR (2018).
    """

    fraction: float = 0.01

    def __post_init__(self) -> None:
        right = require_positive(self.fraction, "fraction") <= 1
        require(right, "fraction", "be above 0 and at most 1", self.fraction)

    def count(self, size: int) -> int:
        """Return k for an array of `size` values."""
        return min(size, max(1, round(self.fraction * size)))

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return self.count(math.prod(shape)) * (4 + itemsize)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the k largest values, then their indices, as bytes."""
        flat = array.reshape(-1)
        places = _largest(flat, self.count(flat.size))
        return _joined(flat[places], places.astype(np.int32))

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Put the values back at their indices, 0 elsewhere."""
        array = np.zeros(math.prod(shape), dtype)
        at = self.count(array.size) * array.itemsize
        array[message[at:].view(np.int32)] = message[:at].view(dtype)
        return array.reshape(shape)

    def encode_tensor(self, tensor: Any) -> Any:
        import tensorflow as tf

        flat = tf.reshape(tensor, [-1])
        infinite = tf.constant(math.inf, flat.dtype)
        sizes = tf.where(tf.math.is_nan(flat), infinite, tf.abs(flat))
        places = tf.sort(tf.math.top_k(sizes, self.count(flat.shape[0])).indices)
        return _as_bytes(tf.gather(flat, places), places)

    def decode_tensor(self, message: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        import tensorflow as tf

        at = self.count(math.prod(shape)) * dtype.size
        places, values = _from_bytes(message[at:], tf.int32), _from_bytes(message[:at], dtype)
        flat = tf.scatter_nd(places[:, None], values, [math.prod(shape)])
        return tf.reshape(flat, shape)


@dataclass(frozen=True)
class Threshold:
    """Send +threshold, 0 or -threshold for each value, in 2 bits; the fourth code: not finite.

    Strom's original sent 4 bytes for each value beyond the threshold and none for the others: fewer
    bytes than this while less than 1 in 16 is beyond it.

    Source:
        Strom, Interspeech (2015); the 2-bit compression of MXNet's kvstore.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        require_positive(self.threshold, "threshold")

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return -(-math.prod(shape) // 4)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the codes, four in a byte, the first in the highest bits."""
        flat = array.reshape(-1)
        codes = np.zeros(4 * self.payload(array.shape, 0), np.uint8)
        here = codes[: flat.size]
        here[flat >= self.threshold], here[flat <= -self.threshold] = 1, 2
        here[~np.isfinite(flat)] = 3
        return codes.reshape(-1, 4) @ np.array([64, 16, 4, 1], np.uint8)

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return one of the three values (or NaN) for each code."""
        codes = (message[:, None] >> np.array([6, 4, 2, 0], np.uint8)) & 3
        values = np.array([0, self.threshold, -self.threshold, np.nan], dtype)
        return values[codes.reshape(-1)[: math.prod(shape)]].reshape(shape)

    def encode_tensor(self, tensor: Any) -> Any:
        import tensorflow as tf

        flat, limit = tf.reshape(tensor, [-1]), tf.constant(self.threshold, tensor.dtype)
        codes = tf.where(flat >= limit, 1.0, tf.where(flat <= -limit, 2.0, 0.0))
        return _packed(tf.where(tf.math.is_finite(flat), codes, 3.0), 2)

    def decode_tensor(self, message: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        import tensorflow as tf

        values = tf.constant([0, self.threshold, -self.threshold, math.nan], dtype)
        return tf.gather(values, tf.cast(_unpacked(message, 2, shape), tf.int32))


@dataclass(frozen=True)
class OneBit:
    """Send the sign of each value, and for each column the mean of the values with that sign.

    A column belongs to one output of a layer, an index of the last dimension; an array of one
    dimension is one column. n / 8 bytes, rounded up, and 2 values per column.

    Source:
        Seide et al., 1-Bit SGD, Interspeech (2014), section 3; CNTK's `DataParallelSGD`.
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return -(-math.prod(shape) // 8) + 2 * _columns(shape) * itemsize

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the means of the negative and of the other values by column, then the signs."""
        matrix = array.reshape(-1, _columns(array.shape))
        positive = matrix >= 0
        means = [
            np.where(chosen, matrix, 0).sum(0, dtype=array.dtype)
            / np.maximum(chosen.sum(0), 1).astype(array.dtype)
            for chosen in (~positive, positive)
        ]
        return _joined(np.stack(means), np.packbits(positive))

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return for each sign the mean of its column."""
        width, size = _columns(shape), math.prod(shape)
        at = 2 * width * np.dtype(dtype).itemsize
        low, high = message[:at].view(dtype).reshape(2, width)
        positive = np.unpackbits(message[at:], count=size).reshape(-1, width)
        return np.where(positive, high, low).reshape(shape)

    def encode_tensor(self, tensor: Any) -> Any:
        import tensorflow as tf

        matrix = tf.reshape(tensor, [-1, _columns(tuple(tensor.shape))])
        positive, means = matrix >= 0, []
        for chosen in (~positive, positive):
            count = tf.math.count_nonzero(chosen, 0, dtype=matrix.dtype)
            total = tf.reduce_sum(tf.where(chosen, matrix, tf.zeros_like(matrix)), 0)
            means.append(total / tf.maximum(count, tf.ones_like(count)))
        signs = tf.cast(tf.reshape(positive, [-1]), tf.float32)
        return _as_bytes(*means, _packed(signs, 1))

    def decode_tensor(self, message: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        import tensorflow as tf

        at = 2 * _columns(shape) * dtype.size
        low, high = tf.split(_from_bytes(message[:at], dtype), 2)
        matrix = math.prod(shape) // _columns(shape), _columns(shape)
        return tf.reshape(tf.where(_unpacked(message[at:], 1, matrix) == 1, high, low), shape)


@dataclass(frozen=True)
class BFloat16:
    """Send each value in 16 bits with the exponent of float32: 2 n bytes.

    Neither MPI nor Horovod 0.28 adds bfloat16: messages are gathered and added in full precision.
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return 2 * math.prod(shape)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Round to the nearest bfloat16."""
        import ml_dtypes

        return array.reshape(-1).astype(ml_dtypes.bfloat16).view(np.uint8)

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Widen to the dtype of the array."""
        import ml_dtypes

        return message.view(ml_dtypes.bfloat16).astype(dtype).reshape(shape)

    def encode_tensor(self, tensor: Any) -> Any:
        import tensorflow as tf

        return _as_bytes(tf.cast(tensor, tf.bfloat16))

    def decode_tensor(self, message: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        import tensorflow as tf

        return tf.reshape(tf.cast(_from_bytes(message, tf.bfloat16), dtype), shape)


def _columns(shape: tuple[int, ...]) -> int:
    """Return the number of columns of an array as a matrix, one for each output of a layer."""
    return shape[-1] if len(shape) > 1 else 1


def _largest(flat: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the largest magnitudes; among equals those with lower indices."""
    sizes = np.abs(flat)
    sizes[np.isnan(sizes)] = np.inf
    least = np.partition(sizes, flat.size - count)[flat.size - count]
    above = np.flatnonzero(sizes > least)
    equal = np.flatnonzero(sizes == least)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _joined(*arrays: np.ndarray) -> np.ndarray:
    """Join arrays to one message of bytes."""
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])


def _as_bytes(*tensors: Any) -> Any:
    """Join tensors to one message of bytes."""
    import tensorflow as tf

    return tf.concat([tf.reshape(tf.bitcast(each, tf.uint8), [-1]) for each in tensors], 0)


def _from_bytes(message: Any, dtype: Any) -> Any:
    import tensorflow as tf

    return tf.bitcast(tf.reshape(message, [-1, dtype.size]), dtype)


def _packed(codes: Any, bits: int) -> Any:
    """Write codes of so many bits, given as float32, into bytes, the first in the highest bits."""
    import tensorflow as tf

    codes = tf.pad(codes, [[0, -codes.shape[0] % (8 // bits)]])
    weights = tf.constant([2.0 ** (8 - bits - at) for at in range(0, 8, bits)])
    return tf.cast(tf.linalg.matvec(tf.reshape(codes, [-1, 8 // bits]), weights), tf.uint8)


def _unpacked(message: Any, bits: int, shape: tuple[int, ...]) -> Any:
    import tensorflow as tf

    places = tf.constant([8 - bits - at for at in range(0, 8, bits)], tf.uint8)
    codes = tf.bitwise.right_shift(message[:, None], places) & tf.constant(2**bits - 1, tf.uint8)
    return tf.reshape(tf.reshape(codes, [-1])[: math.prod(shape)], shape)


def none() -> Compressor:
    """Send arrays as they are, and count the bytes."""
    return Compressor("none")


def fp16(small: int = SMALL) -> Compressor:
    """Send 16-bit values with 5 bits of exponent, summed in 16 bits: 2 bytes each."""
    return Float16("fp16", small)


def bf16(small: int = SMALL) -> Compressor:
    """Send 16-bit values with the 8 bits of exponent of float32: 2 bytes each."""
    return Gathered("bf16", BFloat16(), small, remember=False)


def top_k(fraction: float = 0.01, error_feedback: bool = True, small: int = SMALL) -> Compressor:
    """Send the largest values and their indices: k (4 + 4) bytes in float32.

    >>> top_k(0.01).nbytes((1024, 128), ranks=2)
    10488
    """
    return Gathered(f"top_k({fraction:g})", TopK(fraction), small, error_feedback)


def threshold(
    threshold: float = 0.5, error_feedback: bool = True, small: int = SMALL
) -> Compressor:
    """Send +threshold, 0 or -threshold for each value, in 2 bits as MXNet does.

    The threshold is in the units of the gradient: one far above its values sends nothing for a
    long time, one far below them sends too little in each step.
    """
    return Gathered(f"threshold({threshold:g})", Threshold(threshold), small, error_feedback)


def one_bit(error_feedback: bool = True, small: int = SMALL) -> Compressor:
    """Send the sign of each value and two means per column, as CNTK does: n / 8 bytes and these.

    >>> one_bit().nbytes((1024, 128), ranks=2)
    17408
    """
    return Gathered("one_bit", OneBit(), small, error_feedback)


def power_sgd(rank: int = 4, error_feedback: bool = True, small: int = SMALL) -> Compressor:
    """Send matrices as the product of two thin ones: r (rows + columns) values.

    >>> power_sgd(4).nbytes((1024, 128), ranks=2)
    18432
    """
    return PowerSGD(f"power_sgd({rank})", rank, small, error_feedback)


_MAKERS = (none, fp16, bf16, top_k, threshold, one_bit, power_sgd)
NAMED = {make.__name__: make for make in _MAKERS}


def named(compression: str | Compressor) -> Compressor:
    """Return a compressor by its name, with default settings; a compressor is returned as it is.

    Raises:
        ValueError: when it is neither a key of `NAMED` nor a compressor.
    """
    if isinstance(compression, Compressor):
        return compression
    then = "Make one with `dlguide.parallel.compression`."
    must = "be a name or a compressor"
    require(isinstance(compression, str), "compression", must, compression, then)
    return NAMED[require_known(compression, NAMED, "compression")]()


def _parts(grad: Any) -> list[Any]:
    """Return what Horovod transmits of a gradient: the rows and indices of a sparse one."""
    from dlguide.horovod.ops import REDUCED, transmitted

    parts = [grad.values, grad.indices] if hasattr(grad, "indices") else [grad]
    return [transmitted(part, REDUCED) for part in parts]
