"""Ranks that should be equal and are not: found out, and said on all of them together.

Ranks that average their gradients hold the same weights, bit for bit, as long as they started
from the same ones. At intervals every rank sends a checksum of each trainable weight; only when
two differ are values compared. Differences of the size of rounding errors, which processors of
several kinds produce, cause one warning; larger ones end the training with the ranks' numbers and
the likely cause.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from dlguide.collectives.agreement import group_ranks
from dlguide.collectives.communicator import Communicator
from dlguide.distributed.exchange import RanksDifferError
from dlguide.errors import ranks_in_words

ROUNDING = 1000  # differences up to this many units in the last place may be rounding
NO_BROADCAST = (
    "The ranks did not start from the same weights: broadcast them first, with "
    "`distributed.callbacks.Broadcast()` in `fit` or `distributed.broadcast(model)` in your own "
    "loop"
)
CHANGED_ELSEWHERE = (
    "Something other than this optimizer changes weights on some ranks: another optimizer that is "
    "not distributed, weights loaded or restored on one rank only, or a rank that skips steps"
)


def require_alike(ranks: Communicator, lines: Sequence[str], what: str) -> None:
    """Raise on every rank when their descriptions of `what` differ; all ranks call."""
    described = ranks.allgather("\n".join(lines))
    other = next((i for i, text in enumerate(described) if text != described[0]), 0)
    texts = (described[place].split("\n") for place in (0, other))
    for here, there in zip_longest(*texts, fillvalue="nothing"):
        if here != there:
            raise RanksDifferError(
                f"{what} must be the same on every rank: rank 0 has {here}, rank {other} has "
                f"{there}."
            )


def require_equal_steps(ranks: Communicator, steps: int | None) -> None:
    """Refuse ranks with different numbers of batches: the others would wait indefinitely."""
    batches = [int(text) for text in ranks.allgather(str(-1 if steps is None else steps))]
    if min(batches) < 0 or min(batches) == max(batches):
        return
    counts = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(batches))
    raise RanksDifferError(
        "The number of batches per epoch must be the same on every rank, because each of them "
        f"exchanges gradients; got {counts}. Cut the data into equal parts, or give `fit` "
        f"`steps_per_epoch={min(batches)}` on every rank."
    )


def require_equal_weights(
    ranks: Communicator, values: Sequence[np.ndarray], variables: Sequence[Any], first: bool
) -> None:
    """Raise on every rank when their weights are not the same; all ranks call.

    Sends 4 bytes per variable and rank.

    Args:
        values: of the variables, in the same order on all ranks.
        first: whether at most one update was made: then nobody has broadcast the weights.

    Raises:
        RanksDifferError: when weights differ by more than rounding.
    """
    values = [np.ascontiguousarray(value) for value in values]
    sums = np.array([zlib.crc32(v.reshape(-1).view(np.uint8)) for v in values], np.uint32)
    everyone = np.array(
        [np.frombuffer(e, np.uint32) for e in ranks.allgather_bytes(sums.tobytes())]
    )
    different = np.flatnonzero((everyone != everyone[0]).any(axis=0))
    if len(different):
        _complain(ranks, values, variables, everyone, different, first)


def _complain(
    ranks: Communicator,
    values: Sequence[np.ndarray],
    variables: Sequence[Any],
    sums: np.ndarray,
    different: np.ndarray,
    first: bool,
) -> None:
    """Say how far the weights of all ranks are apart; a warning when it is rounding."""
    worst, worst_relative, name, rounding = 0.0, -1.0, "", True
    for i in different:
        own = values[i].astype(np.float64)
        shared = np.frombuffer(ranks.allgather_bytes(own.tobytes())[0]).reshape(own.shape)
        apart = np.where(own == shared, 0.0, np.abs(own - shared))
        apart[np.isnan(own) & np.isnan(shared)] = 0.0
        apart = np.nan_to_num(apart, nan=np.inf)
        distance = max(float(text) for text in ranks.allgather(repr(float(apart.max(initial=0.0)))))
        size = float(np.abs(shared).max(initial=0.0)) or 1.0
        relative = distance / size if np.isfinite(size) else np.inf
        rounding &= relative <= min(ROUNDING * _unit(values[i].dtype), 0.01)
        if relative > worst_relative:
            worst, worst_relative = distance, relative
            name = getattr(variables[i], "path", variables[i].name)
    counted = f"{len(different)} of {len(variables)} trainable variables"
    measured = f"most in `{name}`, by up to {worst:.2g}"
    if rounding:
        warnings.warn(
            f"The weights of the ranks differ by rounding ({counted}, {measured}). Processors of "
            "different kinds do this; it does no harm while it stays small.",
            stacklevel=2,
        )
        return
    cause = NO_BROADCAST if first else CHANGED_ELSEWHERE
    raise RanksDifferError(
        f"The weights of all ranks must be equal, and {_parties(sums)} ({counted}, {measured}). "
        f"{cause}."
    )


def _unit(dtype: np.dtype) -> float:
    """Return one unit in the last place, relative to 1."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" and dtype.itemsize > 2 else 2.0**-8


def _parties(sums: np.ndarray) -> str:
    """Return which ranks differ from the others: 'rank 2 differs from ranks 0, 1'."""
    groups = group_ranks(row.tobytes() for row in sums)
    parties = sorted(groups.values(), key=len)
    if len(parties) == len(sums):
        return f"those of {ranks_in_words(range(len(sums)))} all differ"
    others = sorted(rank for party in parties[:-1] for rank in party)
    verb = "differs" if len(others) == 1 else "differ"
    return f"{ranks_in_words(others)} {verb} from {ranks_in_words(parties[-1])}"
