"""Exercises of lesson 21: times of four allreduces, claims about them, a crossover, a ring."""

import itertools
import math
from functools import partial

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

COLLECTIVES = ("reduce", "gather", "bcast", "alltoall", "scatter", "scan")


def predict(name, ranks, nbytes, latency_s, byte_s, log=math.log2, tree=2, more=0):
    doublings, ring = log(ranks), 2 * (ranks - 1)
    messages, share = {
        "tree": (tree * doublings, tree * doublings),
        "recursive_doubling": (doublings, doublings),
        "ring": (ring + more, ring / ranks),
        "halving_doubling": (2 * doublings, ring / ranks),
    }[name]
    return messages * latency_s + share * nbytes * byte_s


def crossing(ranks, latency_s, byte_s, ring=2, two=math.inf):
    messages, share = math.log2(ranks), math.log2(ranks) - 2 * (ranks - 1) / ranks
    return (ring * (ranks - 1) - messages) * latency_s / (share * byte_s) if ranks > 2 else two


def ring(comm, array):
    parts = np.array_split(array, comm.size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(2 * (comm.size - 1)):
        come = parts[(comm.rank - step - 1) % comm.size]
        space, adds = np.empty_like(come), step < comm.size - 1
        comm.Sendrecv(parts[(comm.rank - step) % comm.size], right, 0, space, left, 0)
        come[:] = come + space if adds else space
    return array


class Watched:
    """A communicator that counts the bytes that are sent, and notes collectives."""

    def __init__(self, comm):
        self.comm, self.sent, self.collective = comm, 0, False

    def __getattr__(self, name):
        self.collective |= any(word in name.lower() for word in COLLECTIVES)
        return partial(self.send, name) if "send" in name.lower() else getattr(self.comm, name)

    def send(self, name, *args, **named):
        data = (*args, *named.values())[0]
        self.sent += np.asarray(data[0] if isinstance(data, list | tuple) else data).nbytes
        return getattr(self.comm, name)(*args, **named)


def call_ring(answer, comm, array):
    """The sum, whether it took a collective, and whether it sent more than a ring does."""
    watched, part = Watched(comm), 8 * -(-array.size // comm.size)
    return answer(watched, array), watched.collective, watched.sent > 2 * (comm.size - 1) * part


def summed(inputs, of=lambda total, own, rank: total, collective=False, more=False):
    arrays = [array for (array,) in inputs]
    totals = [of(sum(arrays), own, rank) for rank, own in enumerate(arrays)]
    return [(total, collective, more) for total in totals]


EXERCISES = {
    "21-1": Exercise(
        predict,
        cases=[(name, ranks, *rest) for ranks in (2, 4, 16, 64)
               for rest in ((8, 1e-6, 1e-10), (1 << 26, 2e-5, 8e-10))
               for name in ("tree", "recursive_doubling", "ring", "halving_doubling")],
        hint="messages * latency + share * bytes * seconds per byte: see the table in section 1.",
        mistakes={
            "The tree goes up and down: see the table in section 1.": partial(predict, tree=1),
            "log2 is the logarithm to the base 2.": partial(predict, log=math.log),
            "A ring adds in p - 1 messages and hands on in p - 1.": partial(predict, more=1),
        },
        remark="With 64 ranks a ring has 126 messages in a chain, halving and doubling 12."),
    "21-2": Letters({
        "a": ("False", {"True":
              "The ring was compared with one library's allreduce of 2017, a slow one."}),
        "b": ("False", {"True": "The text kept one column. What would you divide by what?"}),
        "c": ("True", {"False": "Put p = 2 into both formulas of the table in section 1."}),
        "d": ("True", {"False":
              "What does a rank do that waits for a message which the other one never sends?"}),
        "e": ("False", {"True": "Count the bytes that one rank sends: can 2 (p - 1)/p exceed 2?"}),
    }, remark="A result without its rival, its sizes and its machine says little."),
    "21-3": Exercise(
        crossing, cases=list(itertools.product((2, 4, 8, 64, 1024), (1e-6, 2e-5), (1e-10, 8e-10))),
        hint="Set both times equal and solve for n; on 2 ranks both send n bytes: never equal.",
        mistakes={
            "On 2 ranks both send n bytes, the ring in two messages: the times are never equal.":
                partial(crossing, two=0),
            "A ring has 2 (p - 1) messages, one after the other.": partial(crossing, ring=1),
        },
        remark="On 1024 ranks with 20 µs and 1.25e9 bytes/s only from "
        f"{crossing(1024, 2e-5, 8e-10) / 1e6:.1f} million bytes on."),
    "21-4": Exercise(
        ring, ranks=(2, 3), call=call_ring, serial=summed,
        cases=lambda ranks: [[(np.random.default_rng([size, rank]).integers(-99, 99, size) * 1.0,)
                              for rank in range(ranks)] for size in (1, 2, 5, 1001, 40_000)],
        hint="Fewer elements than ranks give empty parts; p - 1 steps add, p - 1 steps hand on. "
        "Which part does a rank send in step s?",
        mistakes={
            "Send between neighbours, with `comm.Sendrecv`.": partial(summed, collective=True),
            "A ring sends one part per step, not the whole array.": partial(summed, more=True),
            "Nothing came back: return the array of sums.": partial(summed, of=lambda *_: None),
            "Every rank still has its own values. Return the array with the sum.":
                partial(summed, of=lambda total, own, rank: own),
            "Only one part has its sum: p - 1 further steps must hand the sums on.": partial(
                summed, of=lambda total, own, rank:
                    np.where((np.arange(own.size) < (own.size + 1) // 2) == rank, total, own)),
        },
        remark="Each rank sent 2 (p - 1) / p of the array; sending whole arrays takes p - 1."),
}  # fmt: skip
