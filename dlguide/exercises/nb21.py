"""Checks of the exercises of notebook 21: predicted times, claims, a crossover, a ring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dlguide.exercises import NotAnswered, expect, expect_close
from dlguide.exercises.on_ranks import results

NAMES = ("tree", "recursive_doubling", "ring", "halving_doubling")
CLAIMS = {
    "a": (
        False,
        "The ring was compared with one library's allreduce of 2017, as the deck says a slow one.",
    ),
    "b": (False, "The text kept one column. What would you divide by what?"),
    "c": (True, "Put p = 2 into both formulas of the table in section 1."),
    "d": (True, "What does a rank do that waits for a message which the other one never sends?"),
    "e": (False, "Count the bytes that one rank sends: does 2 (p - 1)/p ever exceed 2?"),
}
SIZES = (1, 2, 3, 5, 1001, 40_000)


def exercise_21_1(seconds: Callable[..., Any]) -> str:
    """Check the predicted time of four algorithms.

    Args:
        seconds: called with a name, ranks, bytes, the latency (s) and the seconds of a byte,
            returns the predicted seconds.

    Returns:
        str: what it means.
    """
    expect(callable(seconds), "a function", seconds, "Write it with `def`.")
    for ranks in (2, 4, 16, 64):
        for nbytes, latency_s, byte_s in ((8, 1e-6, 1e-10), (1 << 26, 2e-5, 8e-10)):
            for name in NAMES:
                came = seconds(name, ranks, nbytes, latency_s, byte_s)
                if came is Ellipsis:
                    raise NotAnswered
                messages, share = _cost(name, ranks)
                text = f"the seconds of {name} on {ranks} ranks with {nbytes} bytes"
                hint = f"The time is messages * latency + share * bytes * seconds a byte; {name}: "
                hint += "see the table in section 1. log2 is the logarithm to the base 2."
                right = messages * latency_s + share * nbytes * byte_s
                expect_close(came, right, text, hint, 1e-9)
    return "With 64 ranks a ring has 126 messages one after the other, halving and doubling 12."


def exercise_21_2(claims: Mapping[str, Any]) -> str:
    """Check which claims the evidence of the lesson supports.

    Args:
        claims: for each letter, "a" to "e", True or False.

    Returns:
        str: what it means.
    """
    expect(isinstance(claims, Mapping), "a dictionary", claims, 'Such as {"a": True, ...}.')
    if all(each is Ellipsis for each in claims.values()):
        raise NotAnswered
    expect(set(claims) == set(CLAIMS), "one answer for each of a to e", sorted(map(str, claims)))
    for letter, (right, hint) in CLAIMS.items():
        given = claims[letter]
        expect(given in (True, False), f"True or False for claim {letter}", given)
        expect(given == right, f"another answer for claim {letter}", given, hint)
    return "A result names its rival, its sizes and its machine, or it says little."


def exercise_21_3(crossover: Callable[..., Any]) -> str:
    """Check the size from which a ring beats recursive doubling.

    Args:
        crossover: called with ranks, the latency (s) and the seconds of a byte, returns the
            bytes at which both take equally long; math.inf where the ring never wins.

    Returns:
        str: what it means.
    """
    expect(callable(crossover), "a function", crossover, "Write it with `def`.")
    for ranks in (2, 4, 8, 64, 1024):
        for latency_s, byte_s in ((1e-6, 1e-10), (2e-5, 8e-10)):
            came = crossover(ranks, latency_s, byte_s)
            if came is Ellipsis:
                raise NotAnswered
            (few, whole), (many, least) = (_cost(n, ranks) for n in ("recursive_doubling", "ring"))
            if ranks == 2:
                hint = "Both send n bytes, the ring in two messages: the times are never equal."
                endless = isinstance(came, float) and math.isinf(came) and came > 0
                expect(endless, "math.inf for 2 ranks", came, hint)
                continue
            right = (many - few) * latency_s / ((whole - least) * byte_s)
            hint = "Set both times equal and solve for n: extra messages against spared bytes."
            expect_close(came, right, f"the bytes for {ranks} ranks", hint, 1e-9)
    return (
        f"On 1024 ranks with 20 µs and 1.25e9 bytes/s only from {right / 1e6:.1f} million bytes on."
    )


def exercise_21_4(ring: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks a ring allreduce that the learner wrote.

    Args:
        ring: called with the communicator and a flat float64 array, returns the sum of the
            arrays of all ranks.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect(callable(ring), "a function", ring, "Write it with `def`.")
    ranks = cluster.ranks
    random = np.random.default_rng(21)
    for size in SIZES:
        arrays = [random.integers(-99, 99, size).astype(float) for _ in range(ranks)]
        right = np.sum(arrays, axis=0)
        came = results(cluster, partial(_watched, ring), [(each,) for each in arrays])
        if all(each is Ellipsis for each, *_ in came):
            raise NotAnswered
        pairs = zip(came, arrays, strict=True)
        untouched = all(np.array_equal(each[0], own) for each, own in pairs)
        text = f"the sum of all ranks' arrays of {size} numbers, on every rank"
        for rank, (array, sent, library) in enumerate(came):
            hint = "Write it with messages between neighbours: `comm.Sendrecv`."
            expect(not library, "a ring of your own", f"a call of {library}", hint)
            hint = f"Rank {rank} differs. Fewer numbers than ranks make empty parts; p - 1 steps "
            hint += "add, p - 1 steps hand on. Which part does a rank send in step s?"
            if array is None:
                hint = "Nothing came back: return the array with the sum."
            elif ranks > 1 and untouched:
                hint = "Every rank still has its own numbers. Return the array with the sum."
            expect_close(array, right, text, hint, 0)
            most = 2 * (ranks - 1) * 8 * -(-size // ranks)
            hint = "A ring sends one part in a step, not the whole array."
            expect(sent <= most, f"at most {most} bytes sent by a rank", f"{sent} bytes", hint)
    return f"{size} numbers: each rank sent {sent} bytes in place of {8 * size * (ranks - 1)}."


def _cost(name: str, ranks: int) -> tuple[float, float]:
    """Messages one after the other, and the share of the array's bytes in them."""
    log, least = math.log2(ranks), 2 * (ranks - 1) / ranks
    return {
        "tree": (2 * log, 2 * log),
        "recursive_doubling": (log, log),
        "ring": (2 * (ranks - 1), least),
        "halving_doubling": (2 * log, least),
    }[name]


def _watched(ring: Callable[..., Any], comm: Any, array: np.ndarray) -> tuple[Any, int, str]:
    """Call the learner's function with a communicator that notes what goes out."""
    from mpi4py import MPI

    class Watched(MPI.Intracomm):
        sent, library = 0, ""

        def _note(self, buffer: Any) -> None:
            data = buffer[0] if isinstance(buffer, list | tuple) else buffer
            self.sent += np.asarray(data).nbytes

        def Send(self, buf: Any, *rest: Any, **more: Any) -> None:
            self._note(buf)
            super().Send(buf, *rest, **more)

        def Isend(self, buf: Any, *rest: Any, **more: Any) -> Any:
            self._note(buf)
            return super().Isend(buf, *rest, **more)

        def Sendrecv(self, sendbuf: Any, *rest: Any, **more: Any) -> None:
            self._note(sendbuf)
            super().Sendrecv(sendbuf, *rest, **more)

        def Allreduce(self, *rest: Any, **more: Any) -> None:
            self.library = "Allreduce"
            super().Allreduce(*rest, **more)

        def allreduce(self, *rest: Any, **more: Any) -> Any:
            self.library = "allreduce"
            return super().allreduce(*rest, **more)

    through = Watched(comm)
    came = ring(through, array.copy())
    return came, through.sent, through.library
