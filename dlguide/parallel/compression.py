"""Compressed gradients with error feedback, for NumPy and mpi4py and for Keras and Horovod.

    compressor = compression.top_k(0.01)
    mean = compressor.allreduce(gradient, comm)                                # NumPy and mpi4py
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compressor)    # Keras and Horovod

With e the error that a rank remembers, what it sends of its gradient g and the new error are

    sent = decode(encode(g + e)),    e <- g + e - sent

so that nothing is lost, only delayed: everything sent plus the last error is the sum of all
gradients. `sent` counts the bytes that this rank has passed to collectives, `nbytes` predicts them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import collectives
from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require, require_count, require_known
from dlguide.parallel.codecs import BFloat16, Codec, OneBit, Threshold, TopK

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# Biases: compressing them saves nothing that could be measured, and costs accuracy.
SMALL = 256
DTYPES = ("float32", "float64")


class Compressor:
    """Averages arrays over ranks and sends fewer bytes than the arrays have.

    Arrays with fewer values than `small`, and those that would not become smaller, are sent as
    they are. Make one for each training on each rank: it remembers that training's errors.
    """

    # Whether each rank receives the messages of all others, instead of their sum.
    gathers, keeps_errors = False, False

    def __init__(self, name: str, small: int = SMALL) -> None:
        self.name = name
        self.small = require_count(small, "small", least=0)
        self.errors: dict[Hashable, np.ndarray] = {}
        self._sent = 0
        self._state = _TensorState()

    def __repr__(self) -> str:
        return self.name

    @property
    def sent(self) -> int:
        """Bytes that this rank has passed to collectives so far."""
        return self._sent + self._state.sent

    @property
    def variables(self) -> list[Any]:
        """The state under Horovod, as TensorFlow variables, for a checkpoint."""
        return self._state.variables

    def compresses(self, shape: Sequence[int], dtype: Any = "float32") -> bool:
        """Return whether an array is sent compressed."""
        size, name = math.prod(shape), np.dtype(dtype).name
        if name not in DTYPES or size < max(1, self.small):
            return False
        itemsize = np.dtype(dtype).itemsize
        return self.payload(tuple(shape), itemsize) < size * itemsize

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

    def traffic(self, shape: Sequence[int], ranks: int, dtype: Any = "float32") -> float:
        """Predict the bytes that leave one rank on its link when the collectives are rings.

            summed on the way: 2 (p - 1)/p n,    gathered: (p - 1) n,    n from `nbytes`

        Gathered messages grow with the ranks: a message must be more than p / 2 times smaller
        than the array to pay.
        """
        n = self.nbytes(shape, ranks, dtype)
        gathered = self.gathers and self.compresses(shape, dtype)
        return float((ranks - 1) * n) if gathered else collectives.ring_share(ranks) * n

    def allreduce(
        self, array: np.ndarray, comm: Comm, key: Hashable = "gradient", check: bool = True
    ) -> np.ndarray:
        """Return the mean of the ranks' arrays after compression, the same bits on all ranks.

        Every rank must call, for the same keys in the same order. A single rank compresses too,
        but sends nothing.

        Args:
            array: float32 or float64.
            comm: an mpi4py communicator.
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
            return np.asarray(self._sum(array.copy(), comm) / array.dtype.type(comm.size))
        error = self.errors.get(key)
        if error is not None:
            same = error.shape == array.shape and error.dtype == array.dtype
            then = "Use another `key` for another array."
            got = f"{array.shape} of {array.dtype}"
            require(same, "array", f"stay {error.shape} of {error.dtype}", got, then)
            array = np.asarray(array + error)
        total, own = self._exchange(array, comm, key)
        if self.keeps_errors:
            # values that are not finite are sent, and must not stay in the error
            left = np.asarray(array - own)
            self.errors[key] = np.where(np.isfinite(left), left, 0)
        return np.asarray(total / total.dtype.type(comm.size))

    def reduce_gradients(
        self, grads: list[Any], variables: list[Any], name: str, op: int, process_set: Any
    ) -> list[Any]:
        """Sum or average gradients over ranks by Horovod, eagerly or while a graph is traced.

        All arrays of a step travel together: one exchange for compressed messages, one for those
        that are sent as they are.
        """
        import tensorflow as tf

        import dlguide.horovod as hvd
        from dlguide.horovod.native import NAMES, members

        require(op in (hvd.Average, hvd.Sum), "op", "be Average or Sum", NAMES.get(op, op))
        exchange = _TensorExchange(self._state, name, process_set, len(members(process_set)))
        results = list(grads)
        small = [
            i
            for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
            if not isinstance(grad, tf.IndexedSlices)
            and self.compresses(tuple(variable.shape), grad.dtype.as_numpy_dtype)
        ]
        whole = [i for i in range(len(grads)) if i not in small]
        if whole:
            for i, total in zip(whole, exchange.whole([grads[i] for i in whole], op), strict=True):
                results[i] = total
        if not small:
            return results
        own_variables = [variables[i] for i in small]
        tensors = [tf.ensure_shape(grads[i], variables[i].shape) for i in small]
        errors: list[Any] = []
        if self.keeps_errors:
            errors = [
                self._state.of("error", variable, lambda t=tensor: tf.zeros(t.shape, t.dtype))
                for variable, tensor in zip(own_variables, tensors, strict=True)
            ]
            tensors = [tensor + error for tensor, error in zip(tensors, errors, strict=True)]
        totals, own = self._exchange_tensors(tensors, own_variables, exchange)
        for error, tensor, came in zip(errors, tensors, own, strict=bool(errors)):
            left = tensor - came
            error.assign(tf.where(tf.math.is_finite(left), left, tf.zeros_like(left)))
        for i, total in zip(small, totals, strict=True):
            count = tf.constant(exchange.ranks, total.dtype)
            results[i] = total / count if op == hvd.Average else total
        return results

    def _sum(self, array: np.ndarray, comm: Comm) -> np.ndarray:
        """Sum over ranks, in place, and count the bytes."""
        self._sent += array.nbytes if comm.size > 1 else 0
        return collectives.allreduce(array, comm, check=False)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum over ranks, and this rank's own array after compression."""
        return self._sum(array.copy(), comm), array

    def _exchange_tensors(
        self, tensors: list[Any], variables: list[Any], exchange: _TensorExchange
    ) -> tuple[list[Any], list[Any]]:
        """Do the same for tensors; the second list may be empty where no errors are kept."""
        return exchange.sum(tensors, "plain"), []


class Float16(Compressor):
    """Casts to 16 bits and sums in 16 bits, as `hvd.Compression.fp16` does: 2 n bytes.

    Values above 65504 become infinite, values below 6e-8 become 0; nothing is remembered.
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return 2 * math.prod(shape)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):  # infinity is the result, and must be visible
            return self._sum(array.astype(np.float16), comm).astype(array.dtype), array

    def _exchange_tensors(
        self, tensors: list[Any], variables: list[Any], exchange: _TensorExchange
    ) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        halves = exchange.sum([tf.cast(tensor, tf.float16) for tensor in tensors], "fp16")
        return [tf.cast(h, t.dtype) for h, t in zip(halves, tensors, strict=True)], []


class Gathered(Compressor):
    """Sends each rank's message to all others; every rank decodes all and sums in rank order."""

    gathers = True

    def __init__(self, name: str, codec: Codec, small: int = SMALL, remember: bool = True) -> None:
        super().__init__(name, small)
        self.codec, self.keeps_errors = codec, remember

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return self.codec.payload(shape, itemsize)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        message = self.codec.encode(array)
        messages = np.empty((comm.size, message.size), np.uint8)
        comm.Allgather(message, messages)
        self._sent += message.nbytes if comm.size > 1 else 0
        total = np.zeros_like(array)
        for other in messages:
            total += self.codec.decode(other, array.shape, array.dtype)
        return total, self.codec.decode(message, array.shape, array.dtype)

    def _exchange_tensors(
        self, tensors: list[Any], variables: list[Any], exchange: _TensorExchange
    ) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        messages = [self.codec.encode_tensor(tensor) for tensor in tensors]
        gathered = exchange.gather([part for message in messages for part in message])
        split = iter([tf.split(part, exchange.ranks) for part in gathered])
        totals, own = [], []
        for tensor, message in zip(tensors, messages, strict=True):
            total = tf.zeros_like(tensor)
            # in rank order: all ranks must round alike
            for other in zip(*(next(split) for _ in message), strict=True):
                total += self.codec.decode_tensor(other, tensor.shape, tensor.dtype)
            totals.append(total)
            if self.keeps_errors:
                own.append(self.codec.decode_tensor(message, tensor.shape, tensor.dtype))
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

    def __init__(
        self, name: str, rank: int, seed: int = 0, small: int = SMALL, remember: bool = True
    ) -> None:
        super().__init__(name, small)
        self.keeps_errors = remember
        self.rank = require_count(rank, "rank")
        self.seed = require_count(seed, "seed", least=0)
        self.starts: dict[Hashable, np.ndarray] = {}

    def compresses(self, shape: Sequence[int], dtype: Any = "float32") -> bool:
        return len(shape) > 1 and super().compresses(shape, dtype)

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return (math.prod(shape[:-1]) + shape[-1]) * self.rank * itemsize

    def start(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Draw the first Q for an array, the same on all ranks."""
        random = np.random.default_rng([self.seed, *shape])
        return random.normal(size=(shape[-1], self.rank)).astype(dtype)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        matrix = array.reshape(-1, array.shape[-1])
        q = self.starts.get(key)
        if q is None:
            q = self.start(array.shape, array.dtype)
        p, _ = np.linalg.qr(self._sum(matrix @ q, comm))
        q = matrix.T @ p
        own, total = p @ q.T, self._sum(q.copy(), comm)
        # power iteration would not recover from zeros or from values that are not finite
        usable = np.isfinite(total).all() and total.any()
        self.starts[key] = total if usable else self.start(array.shape, array.dtype)
        return (p @ total.T).reshape(array.shape), own.reshape(array.shape)

    def _exchange_tensors(
        self, tensors: list[Any], variables: list[Any], exchange: _TensorExchange
    ) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        firsts = [self.start(tuple(t.shape), t.dtype.as_numpy_dtype) for t in tensors]
        starts = [
            self._state.of("start", variable, lambda f=first: f)
            for variable, first in zip(variables, firsts, strict=True)
        ]
        matrices = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in tensors]
        p = exchange.sum([m @ q for m, q in zip(matrices, starts, strict=True)], "p")
        p = [tf.linalg.qr(each)[0] for each in p]
        own = [tf.matmul(m, each, transpose_a=True) for m, each in zip(matrices, p, strict=True)]
        total = exchange.sum(own, "q")
        for start, q, first in zip(starts, total, firsts, strict=True):
            usable = tf.reduce_all(tf.math.is_finite(q)) & tf.reduce_any(q != 0)
            start.assign(tf.where(usable, q, first))

        def product(q: list[Any]) -> list[Any]:
            return [
                tf.reshape(tf.matmul(left, right, transpose_b=True), tensor.shape)
                for left, right, tensor in zip(p, q, tensors, strict=True)
            ]

        return product(total), product(own) if self.keeps_errors else []


class _TensorState:
    """State of one rank from step to step as TensorFlow variables, and the bytes sent."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, Hashable], tuple[Any, Any]] = {}
        self._sent: Any = None

    @property
    def variables(self) -> list[Any]:
        return [made for _variable, made in self._of.values()]

    @property
    def sent(self) -> int:
        return 0 if self._sent is None else int(self._sent.numpy())

    def of(self, kind: str, variable: Any, first: Any) -> Any:
        """Return the state that belongs to a variable of the model; `first()` is its start."""
        import tensorflow as tf

        from dlguide.horovod.reduction import variable_key

        key = kind, variable_key(variable)
        if key not in self._of:
            with tf.init_scope():
                made = tf.Variable(first(), trainable=False, name=f"compression_{kind}")
            self._of[key] = variable, made
        return self._of[key][1]

    def count(self, tensors: Sequence[Any]) -> None:
        """Count tensors that are about to be sent."""
        import tensorflow as tf

        if self._sent is None:
            with tf.init_scope():
                self._sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        sizes = [tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors]
        self._sent.assign_add(tf.add_n(sizes))


class _TensorExchange:
    """Horovod's collectives of one step, with names, counted."""

    def __init__(self, state: _TensorState, name: str, process_set: Any, ranks: int) -> None:
        self.state, self.name, self.process_set, self.ranks = state, name, process_set, ranks

    def whole(self, grads: list[Any], op: int) -> list[Any]:
        """Combine gradients that are not compressed; some may be sparse."""
        import tensorflow as tf

        import dlguide.horovod as hvd
        from dlguide.horovod.ops import REDUCED, transmitted

        sparse = [g for g in grads if isinstance(g, tf.IndexedSlices)]
        dense = [g for g in grads if not isinstance(g, tf.IndexedSlices)]
        parts = [*dense, *(part for g in sparse for part in (g.values, g.indices))]
        self.state.count([transmitted(part, REDUCED) for part in parts])
        return hvd.grouped_allreduce(
            grads, op=op, process_set=self.process_set, name=f"{self.name}.whole"
        )

    def sum(self, tensors: list[Any], what: str) -> list[Any]:
        import dlguide.horovod as hvd

        self.state.count(tensors)
        return hvd.grouped_allreduce(
            tensors, op=hvd.Sum, process_set=self.process_set, name=f"{self.name}.{what}"
        )

    def gather(self, tensors: list[Any]) -> list[Any]:
        import dlguide.horovod as hvd

        self.state.count(tensors)
        name = f"{self.name}.messages"
        return hvd.grouped_allgather(tensors, name, process_set=self.process_set)


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


def power_sgd(
    rank: int = 4, error_feedback: bool = True, seed: int = 0, small: int = SMALL
) -> Compressor:
    """Send matrices as the product of two thin ones: r (rows + columns) values.

    >>> power_sgd(4).nbytes((1024, 128), ranks=2)
    18432
    """
    return PowerSGD(f"power_sgd({rank})", rank, seed, small, error_feedback)


NAMED = {
    "none": none,
    "fp16": fp16,
    "bf16": bf16,
    "top_k": top_k,
    "threshold": threshold,
    "one_bit": one_bit,
    "power_sgd": power_sgd,
}


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
