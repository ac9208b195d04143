"""Checks of the exercises of notebook 00: cores, ranks, memories, observations, shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import expect
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

CAUSES = {
    "empty": ("C", "Whose list did the ranks append to?"),
    "gone": ("E", "Compare the process numbers before and after a restart."),
    "no faster": ("A", "Images/s count the steps only. What else happens in the job?"),
    "two nets": ("F", "Equal steps from equal weights give equal weights. What was not equal?"),
    "refused": ("B", "Compare the number of ranks with the second line of the stamp."),
    "wide": ("D", "What changes from one repeat to the next, although the program does not?"),
}


def exercise_00_1(most_ranks: int, machine: Any) -> str:
    """Check how many ranks this process may start without sharing cores.

    Args:
        most_ranks: the answer (count).
        machine: what `machine.describe()` found.

    Returns:
        str: what it means.
    """
    hint = "Read the second line of the stamp: how many physical cores may this process use?"
    if isinstance(most_ranks, str) and most_ranks.strip().isdecimal():
        most_ranks = int(most_ranks)
    elif most_ranks == 1:
        hint = "The notebook itself needs no core while the ranks compute: it waits."
    expect(most_ranks == machine.usable_cores, "as many ranks as usable cores", most_ranks, hint)
    return "One rank a core: more would only take turns."


def exercise_00_2(who_am_i: Callable[..., Any], cluster: Any) -> str:
    """Check a function that tells rank, number of ranks and process number.

    Args:
        who_am_i: called with the communicator, returns (rank, ranks, process number).
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    came = results(cluster, who_am_i, [()] * cluster.ranks)
    pids = [engine["pid"] for engine in cluster.engines]
    shape = "a tuple of three numbers from every rank"
    expect(all(np.shape(each) == (3,) for each in came), shape, came, "`return rank, ranks, pid`.")
    came = [tuple(each) for each in came]
    numbers = [each[:2] for each in came]
    right = [(rank, cluster.ranks) for rank in range(cluster.ranks)]
    expect(numbers == right, "rank and number of ranks", numbers, "`comm.rank` and `comm.size`.")
    hint = "`os.getpid()`, asked inside the function: outside it is the notebook's."
    expect([each[2] for each in came] == pids, "the number of the rank's process", came, hint)
    return "One function, another answer on every rank: that is all there is to parallel Python."


def exercise_00_3(on_the_ranks: Any, in_the_notebook: Any, cluster: Any) -> str:
    """Check what is in a list to which every rank has appended one thing.

    Args:
        on_the_ranks: for each rank the length that it saw (list of counts).
        in_the_notebook: the length in the notebook's kernel afterwards (count).
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks = cluster.ranks
    each = on_the_ranks
    hint = "`cluster.run` returns a list: one result for each rank."
    expect(np.shape(each) == (ranks,), "a list, one length a rank", each, hint)
    hint = "Every rank got a copy of the list; nobody sees what another one does to its copy."
    expect(list(each) == [1] * ranks, "the length in each rank", each, hint)
    hint = "The ranks changed their copies. What comes back is only what a function returns."
    expect(in_the_notebook == 0, "the length in the notebook", in_the_notebook, hint)
    return "Memories are separate: a rank knows what it was sent, you know what it returned."


def exercise_00_4(causes: Mapping[str, str]) -> str:
    """Check which sentence explains which observation.

    Args:
        causes: for each of the six observations a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "None of the six is a fault of the machine: each follows from what a rank is."


def exercise_00_5(my_share: Callable[..., Any], cluster: Any) -> str:
    """Check a function that deals the numbers 0 to total - 1 out to the ranks.

    Args:
        my_share: called with the communicator and total (count), returns this rank's numbers.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    for total in (8 * cluster.ranks, 9 * cluster.ranks - 1, 1, 0):
        came = results(cluster, my_share, [(total,)] * cluster.ranks)
        shares = [[int(number) for number in share] for share in came]
        dealt = sorted(number for share in shares for number in share)
        everything = f"each of 0 to {total - 1} on exactly one rank"
        hint = f"With total = {total}: which number is on no rank?"
        if len(set(dealt)) < len(dealt):
            hint = f"With total = {total}: which number is on two ranks?"
        elif dealt == list(range(1, total + 1)):
            hint = "The first number is 0."
        expect(dealt == list(range(total)), everything, shares, hint)
        sizes = [len(share) for share in shares]
        fair = f"shares of {total} numbers that differ by at most one in size"
        expect(max(sizes) - min(sizes) <= 1, fair, sizes, "Who gets the remainder?")
    return "That is a shard. Notebook 20 deals out the training images in this way."
