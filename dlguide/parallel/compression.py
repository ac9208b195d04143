"""Gradients made small before they are sent, with the error remembered for the next step.

    compressor = compression.top_k(0.01)
    mean = compressor.allreduce(gradient, comm)                                # NumPy and mpi4py
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compressor)    # Keras and Horovod

With e the error that a rank remembers, what it sends of its gradient g, and what stays, is

    sent = decode(encode(g + e)),    e <- g + e - sent

so that nothing is lost, only late: all that was sent and the last error add up to all gradients.
`sent` counts the bytes that this rank has handed to others, `nbytes` predicts them.
"""

from __future__ import annotations

from dlguide.errors import require, require_known
from dlguide.parallel.codecs import BFloat16, OneBit, Threshold, TopK
from dlguide.parallel.compressors import SMALL, Compressor, Float16, Gathered
from dlguide.parallel.power_sgd import PowerSGD


def none() -> Compressor:
    """Send arrays as they are, and count."""
    return Compressor("none")


def fp16(small: int = SMALL) -> Compressor:
    """Send 16-bit numbers with 5 bits of exponent, added up in 16 bits: 2 bytes each."""
    return Float16("fp16", small)


def bf16(small: int = SMALL) -> Compressor:
    """Send 16-bit numbers with the 8 bits of exponent of float32: 2 bytes each."""
    return Gathered("bf16", BFloat16(), small, remember=False)


def top_k(fraction: float = 0.01, error_feedback: bool = True, small: int = SMALL) -> Compressor:
    """Send the largest numbers and their places: k (4 + 4) bytes in float32.

    >>> top_k(0.01).nbytes((1024, 128), ranks=2)
    10488
    """
    return Gathered(f"top_k({fraction:g})", TopK(fraction), small, error_feedback)


def threshold(
    threshold: float = 0.5, error_feedback: bool = True, small: int = SMALL
) -> Compressor:
    """Send +threshold, 0 or -threshold for each number, in 2 bits as MXNet does.

    The threshold is in the units of the gradient: one far above its numbers sends nothing for a
    long time, one far below them sends too little each step.
    """
    return Gathered(f"threshold({threshold:g})", Threshold(threshold), small, error_feedback)


def one_bit(error_feedback: bool = True, small: int = SMALL) -> Compressor:
    """Send the sign of each number and two means a column, as CNTK does: n / 8 bytes and these.

    >>> one_bit().nbytes((1024, 128), ranks=2)
    17408
    """
    return Gathered("one_bit", OneBit(), small, error_feedback)


def power_sgd(
    rank: int = 4, error_feedback: bool = True, seed: int = 0, small: int = SMALL
) -> Compressor:
    """Send matrices as the product of two thin ones: r (rows + columns) numbers.

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
    """Make a compressor by its name, with the usual numbers.

    Args:
        compression: a key of `NAMED`, or a compressor, given back as it is.

    Returns:
        Compressor: for one training on this rank.

    Raises:
        ValueError: when it is neither.
    """
    if isinstance(compression, Compressor):
        return compression
    then = "Make one with `dlguide.parallel.compression`."
    must = "be a name or a compressor"
    require(isinstance(compression, str), "compression", must, compression, then)
    return NAMED[require_known(compression, NAMED, "compression")]()
