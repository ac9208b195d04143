"""Checks of the exercises of notebook 72: what is paid, mistakes in scripts, chains, leaving."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

# The mistakes of 72-2: the letter of what it does, and what to say to another one.
MISTAKES = {
    "unpacks ilsvrc2012-tf.tar, reads ilsvrc2012-torch/": (
        "C",
        "The archive is there and is unpacked. What does the program then look for?",
    ),
    "tar xf $WRK-DIR/DONOTREMOVE/DATA/ilsvrc2012-tf.tar": (
        "E",
        "Which variable does the shell read here? A hyphen cannot belong to its name.",
    ),
    "mpirun ... -mca btl ^openib": (
        "A",
        "`^` means: all but this. Which network is it that is left out?",
    ),
    "--gres=gpu:p100:2, without --exclusive, on nodes of 4 GPUs": (
        "F",
        "The job runs, and well. But who gets the other two GPUs of the node?",
    ),
    "export A=1 export B=2 mpirun -np 512 python train.py": (
        "B",
        "All on one line. What does the shell do with words that follow `export`?",
    ),
    "512 ranks, 2 on each node, on a cluster of 200 nodes": (
        "D",
        "Divide. How many nodes does it need?",
    ),
}


def exercise_72_1(paid: Callable[..., Any]) -> str:
    """Check how many core-hours a job is charged.

    Args:
        paid: called with nodes, ranks per node, threads, hours, cores of a node, and whether the
            nodes are exclusive; returns core-hours.

    Returns:
        str: what it means.
    """
    expect_function(paid)
    for nodes, ranks, threads, hours, cores, exclusive in (
        (1, 1, 7, 20.0, 28, False),
        (2, 4, 7, 10.0, 28, True),
        (8, 1, 7, 1.5, 28, True),
        (256, 2, 10, 2.0, 48, False),
        (256, 2, 10, 2.0, 48, True),
    ):
        came = answered(paid(nodes, ranks, threads, hours, cores, exclusive))
        asked = nodes * ranks * threads * hours
        right = nodes * cores * hours if exclusive else asked
        alone = "exclusive" if exclusive else "shared"
        case = f"{nodes} {alone} nodes of {cores} cores, {ranks} ranks x {threads} cores, {hours} h"
        hint = "Cores times hours: nodes, ranks on each, cores of each rank."
        if exclusive and came == asked != right:
            hint = "Nobody else may use an exclusive node. So who pays for its idle cores?"
        elif not exclusive and came == nodes * cores * hours:
            hint = "On a shared node others pay for the other cores."
        elif came == nodes * ranks * hours:
            hint = "A rank has more than one core: that is what `threads` asks for."
        elif came == ranks * threads * hours and nodes > 1:
            hint = "That is one node."
        expect_close(came, right, f"the core-hours of {case}", hint, 1e-9)
    return "One rank of 7 cores on an exclusive node of 28 pays for four."


def exercise_72_2(mistakes: Mapping[str, Any]) -> str:
    """Check what each of six mistakes does.

    Args:
        mistakes: for each line the letter of what happens.

    Returns:
        str: what it means.
    """
    expect_causes(mistakes, MISTAKES)
    return "A, B and F give no error at all. They cost hours, or trust in the result."


def exercise_72_3(core_hours: Callable[..., Any]) -> str:
    """Check the best number of links of a chain.

    Args:
        core_hours: called with epochs, links, seconds of an epoch, seconds of staging and start
            of each job, and cores; returns the core-hours of the whole chain.

    Returns:
        str: what it means.
    """
    expect_function(core_hours)
    for epochs, links, epoch_s, before_s, cores in (
        (90, 9, 600.0, 660.0, 28),
        (90, 1, 600.0, 660.0, 28),
        (10, 4, 300.0, 120.0, 56),
        (7, 7, 1000.0, 1.0, 2),
    ):
        came = answered(core_hours(epochs, links, epoch_s, before_s, cores))
        right = cores * (epochs * epoch_s + links * before_s) / 3600
        case = f"{epochs} epochs in {links} jobs on {cores} cores"
        hint = "The epochs, and for each job what comes before them."
        once = cores * (epochs * epoch_s + before_s) / 3600
        whole = cores * links * (math.ceil(epochs / links) * epoch_s + before_s) / 3600
        if came == right * 3600:
            hint = "Those are core-seconds."
        elif links > 1 and came == once:
            hint = "The disks of the nodes are emptied when a job ends: each link stages anew."
        elif epochs % links and came == whole:
            hint = "The last link trains only the epochs that are left."
        elif came == right / cores:
            hint = "Those are hours. All cores wait while data is staged, and all are paid."
        expect_close(came, right, f"the core-hours of {case}", hint, 1e-9)
    return "Each further link costs its staging and start, on all cores."


def exercise_72_4(leave: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that all leave together.

    Args:
        leave: called with the communicator and whether this rank has seen the file; returns
            whether to save and leave now.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks = cluster.ranks
    looks = {"all": [True] * ranks, "none": [False] * ranks}
    looks |= {f"only rank {r}": [rank == r for rank in range(ranks)] for r in range(ranks)}
    for who, seen in looks.items():
        came = [bool(each) for each in results(cluster, leave, [(each,) for each in seen])]
        case = f"when {who} of {ranks} ranks saw the file"
        same = len(set(came)) == 1
        hint = "The ranks must agree: one that leaves lets the others wait in the next allreduce."
        expect(same, f"the same answer on all ranks {case}", came, hint)
        if who == "none":
            expect(not came[0], f"to go on {case}", came, "Nobody has told them to leave.")
        elif who == "all":
            expect(came[0], f"to leave {case}", came, "The time is nearly over.")
    if ranks == 1:
        return "One rank always agrees with itself: try it on two."
    return "Whatever a single rank sees first, all ranks leave after the same step."
