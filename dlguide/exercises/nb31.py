"""Checks of the exercises of notebook 31: crowded cores, communication cores, recipes, pinning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

CAUSES = {
    "four are slower": (
        "E",
        "How many threads has each core, if nobody tells a rank of the others?",
    ),
    "half is idle": ("C", "At which number does each of them begin?"),
    "no effect": ("F", "Who reads that variable, and who does not?"),
    "both sockets": (
        "A",
        "The 1 in `compact,1,0` moves the innermost level outwards. Which one is it?",
    ),
    "one image": ("B", "The same threads pay for 256 images. What do they share for one?"),
    "a core given away": ("D", "k / (c - k): what is it for 1 of 2, and for 2 of 24?"),
}


def exercise_31_1(crowding: Callable[..., Any]) -> str:
    """Check how many computing threads there are, and how many for each core.

    Args:
        crowding: called with ranks, cores and the threads each rank was told to use (None for
            nothing: TensorFlow then starts one per core it sees); returns the computing threads
            of all ranks and the threads per core.

    Returns:
        str: what it means.
    """
    expect_function(crowding)
    for ranks, cores, told in (
        (1, 2, None), (2, 2, 1), (2, 2, None), (4, 2, 2), (4, 4, 2), (2, 48, 22), (2, 48, None),
    ):  # fmt: skip
        came = answered(crowding(ranks, cores, told))
        pair = np.shape(came) == (2,)
        expect(pair, "two numbers: threads in all, threads per core", came)
        threads = ranks * (cores if told is None else told)
        said = "told nothing" if told is None else f"told to use {told}"
        case = f"{ranks} ranks on {cores} cores, each {said}"
        hint = "Threads of one rank, times the ranks."
        if told is None:
            hint = "Nobody tells a rank of the others: it takes every core it sees."
        expect(came[0] == threads, f"the threads of {case}", came[0], hint)
        hint = "All threads, divided by the cores they share."
        expect_close(came[1], threads / cores, f"the threads per core of {case}", hint, 1e-9)
    return (
        "The workshop's 4 ranks x 2 threads on 2 cores were 4 threads a core. And 2 ranks that "
        "know nothing of each other already make 2 a core, on every machine."
    )


def exercise_31_2(communication_cpus: Callable[..., Any]) -> str:
    """Check that every process communicates on CPUs of its own socket.

    Args:
        communication_cpus: called with the socket of each CPU (a dict) and the number of CPUs
            for each process; there is one process per socket, in the order of the sockets.
            Returns the value for MLSL_SERVER_AFFINITY, a text.

    Returns:
        str: what it means.
    """
    expect_function(communication_cpus)
    blocks = {cpu: cpu // 24 for cpu in range(48)}
    turns = {cpu: cpu % 2 for cpu in range(48)}
    four = {cpu: cpu // 3 for cpu in range(12)}
    for name, socket_of, each in (
        ("2 x 24 cores numbered in blocks", blocks, 2),
        ("2 x 24 cores numbered in turn", turns, 2),
        ("4 x 3 cores numbered in blocks", four, 1),
    ):
        came = answered(communication_cpus(dict(socket_of), each))
        expect(isinstance(came, str), 'a text such as "39,38,43,42"', came)
        parts = [part.strip() for part in came.split(",")]
        hint = "Numbers with commas between them, nothing else."
        expect(all(part.isdigit() for part in parts), f"CPUs for {name}", came, hint)
        _expect_own_sockets([int(part) for part in parts], socket_of, each, name)
    return "The list of 2019 fails this for both numberings. Ask `lscpu -e` before you copy one."


def _expect_own_sockets(
    cpus: list[int], socket_of: Mapping[int, int], each: int, name: str
) -> None:
    sockets = sorted(set(socket_of.values()))
    wanted = each * len(sockets)
    text = f"{wanted} CPUs for {name}"
    expect(len(cpus) == wanted, text, cpus, f"{each} for each of {len(sockets)} processes.")
    there = all(cpu in socket_of for cpu in cpus)
    expect(there, f"CPUs that are there, for {name}", cpus, "Take them from `socket_of`.")
    expect(len(set(cpus)) == wanted, f"each CPU once, for {name}", cpus)
    for place, socket in enumerate(sockets):
        own = cpus[place * each : (place + 1) * each]
        on = [socket_of[cpu] for cpu in own]
        hint = f"Process {place} has the CPUs {own}. On which sockets are they?"
        expect(on == [socket] * each, f"process {place} on socket {socket}, {name}", on, hint)


def exercise_31_3(landing: Callable[..., Any]) -> str:
    """Check where three values of KMP_AFFINITY put thread after thread.

    Args:
        landing: called with the type ("compact,1", "compact" or "scatter", all with
            granularity=fine), sockets, cores per socket, hardware threads per core (2 or more)
            and the number of threads; CPUs are numbered in blocks, second hardware threads after
            all first ones. Returns the CPU of each thread.

    Returns:
        str: what it means.
    """
    expect_function(landing)
    hints = {
        "compact,1": "Core after core of socket 0, then 1; then the second hardware threads.",
        "compact": "Fill a core with all its hardware threads before you take the next one.",
        "scatter": "As far apart as can be: sockets in turn; second hardware threads come last.",
    }
    for kind, hint in hints.items():
        for sockets, cores, siblings, threads in (
            (2, 4, 2, 6), (2, 4, 2, 16), (1, 4, 2, 5), (2, 24, 2, 22), (4, 3, 4, 48),
        ):  # fmt: skip
            came = answered(landing(kind, sockets, cores, siblings, threads))
            right = _landing(kind, sockets, cores, siblings)[:threads]
            where = f"{kind}: {threads} threads on {sockets} x {cores} cores x {siblings}"
            listed = np.shape(came) == (threads,)
            expect(listed, f"one CPU for each thread ({where})", came)
            wrong = next((i for i in range(threads) if came[i] != right[i]), None)
            if wrong is not None:
                expect(False, f"the CPU of thread {wrong} ({where})", came[wrong], hint)
    return "So `compact,1,0` with 22 threads fills the cores of one socket, one thread on each."


def _landing(kind: str, sockets: int, cores: int, siblings: int) -> list[int]:
    places = [
        (socket, core, thread)
        for socket in range(sockets)
        for core in range(cores)
        for thread in range(siblings)
    ]
    keys = {
        "compact,1": lambda p: (p[2], p[0], p[1]),
        "compact": lambda p: p,
        "scatter": lambda p: (p[2], p[1], p[0]),
    }
    ordered = sorted(places, key=keys[kind])
    return [t * sockets * cores + s * cores + c for s, c, t in ordered]


def exercise_31_4(pin: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that all threads of each rank are bound to the rank's share.

    Args:
        pin: called with the communicator and the list of CPUs that all ranks may use; binds all
            threads of the calling rank to CPUs number rank, rank + ranks, ... of the list, or
            to number rank mod CPUs where there are fewer CPUs than ranks.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(pin)
    cpus = sorted({cpu for own in cluster.plan.cpus for cpu in own})
    ranks = cluster.ranks
    came = results(cluster, _pinned_masks, [(pin, cpus)] * ranks)
    for rank, (main, others) in enumerate(came):
        right = cpus[rank::ranks] or [cpus[rank % len(cpus)]]
        hint = "Which CPUs of the list are this rank's? Start at `comm.rank`, go on in steps of "
        hint += "`comm.size`; with more ranks than CPUs begin again at the first."
        expect(main == right, f"rank {rank} on CPUs {right}", main, hint)
        hint = (
            "`os.sched_setaffinity(0, ...)` binds the calling thread only. Go through all the "
            "numbers in `/proc/self/task`."
        )
        rest = [mask for mask in others if mask != right]
        expect(not rest, f"every thread of rank {rank} on CPUs {right}", rest[:1], hint)
    return (
        f"Each rank had {len(came[0][1])} threads or so: TensorFlow's, MPI's and Python's. A mask "
        "that only the first one has binds nothing that computes."
    )


def exercise_31_5(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which symptom.

    Args:
        causes: for each of the six symptoms a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "None of the six raises an error. Let every run print its masks and its threads."


def _pinned_masks(comm: Any, pin: Callable[..., Any], cpus: list[int]) -> Any:
    """On a rank: call the learner's function, read all masks, and put them back."""
    import os
    import threading
    from contextlib import suppress

    def masks() -> dict[int, list[int]]:
        found = {}
        for name in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                found[int(name)] = sorted(os.sched_getaffinity(int(name)))
        return found

    # one more thread that is not the first, whatever else the rank has started
    gate = threading.Event()
    extra = threading.Thread(target=gate.wait)
    extra.start()
    before = masks()
    for thread in before:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cpus)
    try:
        answer = pin(comm, list(cpus))
        after = masks()
    finally:
        for thread, mask in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, mask)
        gate.set()
        extra.join()
    if answer is Ellipsis:
        return ...
    own = after.pop(threading.get_native_id())
    return own, list(after.values())
