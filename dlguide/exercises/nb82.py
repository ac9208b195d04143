"""Checks of the exercises of notebook 82: bytes, first batches, fair claims, nodes first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import (
    NotAnswered,
    answered,
    expect,
    expect_close,
    expect_function,
    near,
)
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

PARAMETERS = 25_557_032  # weights of ResNet-50
# As in data/published: throughput and first_batches (thesis, 128 images a GPU).
LOGS = {  # framework and GPUs: images/s over 200 batches, first batch (s)
    ("PyTorch", 2): (372.09, 18.532),
    ("Horovod", 2): (390.24, 9.696),
    ("PyTorch", 32): (5696.80, 21.925),
    ("Horovod", 32): (6104.32, 9.950),
}
BATCHES, BATCH = 200, 128
ALONE = {"PyTorch": 207.11, "Horovod": 207.79}
HOURS = (148.27, 6.60)
MXNET = {1: 182, 4: 705, 32: 5120, "4, synthetic": 728}
HOROVOD_4, DDL_256 = 768, 60.6
CLAIMS = ("8.9 % ahead", "7 % ahead", "28x", "60.6x", "29.4x")


def exercise_82_1(busiest: Callable[..., Any]) -> str:
    """Check the bytes that the busiest process sends in a step.

    Args:
        busiest: called with the name of the way, GPUs, GPUs that one process of MXNet drives,
            servers, and the bytes of the weights; returns the most bytes that a process sends in
            a step. In the ring there is a process for each GPU.

    Returns:
        str: what it means.
    """
    expect_function(busiest)
    n = 4 * PARAMETERS
    for gpus, each, servers in ((2, 2, 1), (8, 4, 2), (8, 1, 2), (8, 2, 16), (64, 4, 16)):
        ring, plain = 2 * (gpus - 1) / gpus * n, max(n, gpus * n / servers)
        joined = max(n, gpus / each * n / servers)
        for way in ("allreduce", "dist_sync", "dist_device_sync", "dist_async"):
            right = ring if way == "allreduce" else joined
            came = answered(busiest(way, gpus, each, servers, n))
            case = f"for {way}, {gpus} GPUs, {each} a process, {servers} servers"
            hint = "A server answers every process, with the part of the weights that it holds."
            if way == "allreduce":
                hint = "A rank of the ring sends 2 (p - 1) messages of n / p bytes."
            elif near(came, plain) and not near(plain, joined):
                hint = "The GPUs of a process add up first, with `device` or without."
            elif near(came, right * servers) and servers > 1:
                hint = "Is that one server, or all of them?"
            elif right == n:
                hint = "The busiest need not be a server: what does a worker send?"
            expect_close(came, right, f"the most bytes of a process {case}", hint, 1e-9)
    return (
        f"The guide's 64 GPUs with a server on each of 16 nodes: {n / 1e6:.0f}e6 bytes a step, "
        f"{64 * n / 16 / 1e6:.0f}e6 if each GPU spoke for itself, {2 * 63 / 64 * n / 1e6:.0f}e6 "
        "in a ring of all GPUs."
    )


def exercise_82_2(without_first: Callable[..., Any]) -> str:
    """Check the throughput that is left when the first batch is taken out of a mean.

    Args:
        without_first: called with mean images/s, images of a batch over all workers, batches
            that the mean is over, and the time of the first (s); returns images/s of the others.

    Returns:
        str: what it means.
    """
    expect_function(without_first)
    found = {}
    for (name, gpus), (rate, first_s) in LOGS.items():
        images = gpus * BATCH
        whole = BATCHES * images / rate
        right = (BATCHES - 1) * images / (whole - first_s)
        found[name, gpus] = right
        came = answered(without_first(rate, images, BATCHES, first_s))
        hint = "How long did all batches take together? And all but one?"
        if near(came, BATCHES * images / (whole - first_s)):
            hint = "The first batch's images must go with its time."
        elif near(came, (BATCHES - 1) * images / whole):
            hint = "The first batch's time must go with its images."
        elif near(came, images / first_s):
            hint = "That is the first batch. The others are asked for."
        case = f"images/s of {name} on {gpus} GPUs without the first batch"
        expect_close(came, right, case, hint, 1e-6)
    torch, horovod = found["PyTorch", 32], found["Horovod", 32]
    return (
        f"On 32 GPUs {torch:.0f} images/s with PyTorch and {horovod:.0f} with Horovod: once they "
        "run, Horovod is not the faster one."
    )


def exercise_82_3(answers: Mapping[str, tuple[str, float]]) -> str:
    """Check what is wrong with five published claims, and the honest number.

    Args:
        answers: for each claim the letter of what is wrong, and the number asked for.

    Returns:
        str: what it means.
    """
    expect(isinstance(answers, Mapping), "a dictionary", answers)
    expect(set(answers) == set(CLAIMS), f"the claims {', '.join(CLAIMS)}", list(answers))
    parts = [part for pair in answers.values() for part in np.atleast_1d(np.array(pair, object))]
    if any(part is Ellipsis for part in parts):
        raise NotAnswered
    for claim, (letter, number, why, traps) in _fair().items():
        pair = answers[claim]
        expect(isinstance(pair, tuple | list) and len(pair) == 2, f"two parts for {claim}", pair)
        expect(str(pair[0]).strip().upper() == letter, f"what is wrong with {claim}", pair[0], why)
        for value, hint in traps:
            wrong = near(pair[1], value, 2e-3) and not near(number, value, 2e-3)
            expect(not wrong, f"the honest number of {claim}", pair[1], hint)
        expect_close(pair[1], number, f"the honest number of {claim}", why, 5e-3)
    return "One of five was fair. Ask of a ratio: over what, of what, on what, and from when on?"


def _fair() -> dict[str, tuple[str, float, str, list[tuple[float, str]]]]:
    rates = {
        name: (BATCHES - 1) * 32 * BATCH / (BATCHES * 32 * BATCH / rate - first_s)
        for (name, gpus), (rate, first_s) in LOGS.items()
        if gpus == 32
    }
    ups = {name: LOGS[name, 32][0] / alone for name, alone in ALONE.items()}
    return {
        "8.9 % ahead": (
            "A",
            HOROVOD_4 / MXNET["4, synthetic"],
            "Read the column `data` of the two rows.",
            [(HOROVOD_4 / MXNET[4], "That is the claim itself. Which data did each read?")],
        ),
        "7 % ahead": (
            "B",
            rates["Horovod"] / rates["PyTorch"],
            "What else than training is in both means?",
            [
                (ups["Horovod"] / ups["PyTorch"], "Those means hold the first batch."),
                (rates["PyTorch"] / rates["Horovod"], "Turn it round: Horovod over PyTorch."),
            ],
        ),
        "28x": (
            "E",
            MXNET[32] / MXNET[1] / 32,
            "Recompute it from the table: one GPU, real images, both measured alike.",
            [(0.875, "The text says so; what does the table give?")],
        ),
        "60.6x": (
            "C",
            4 * DDL_256,
            "What is 1.0 in that table?",
            [
                (DDL_256 / 64, "That is the efficiency over a node. Times a GPU is asked for."),
                (DDL_256, "That counts in nodes of four GPUs."),
            ],
        ),
        "29.4x": (
            "D",
            HOURS[0] / HOURS[1],
            "The claim is about the time of a whole training. What does the clock say?",
            [(ups["Horovod"], "That is the throughput. How many hours did each take?")],
        ),
    }


def exercise_82_4(causes: Mapping[str, str]) -> str:
    """Check which cause each of six observations has.

    Args:
        causes: for each observation a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(
        causes,
        {
            "2 GPUs less efficient than 4": ("C", "Who else was on the node?"),
            "88 % on 32, 61 % on 64": ("A", "It was well until then: what ends all at once?"),
            "22.7x with 32 images, 26.7x with 128": (
                "E",
                "What does a step cost that does not depend on its images?",
            ),
            "8 GPUs: 1.00 exactly": ("F", "Nothing is without loss: where is it hidden?"),
            "0.273 of 0.581 s a batch": ("B", "The column is called Data."),
            "first batch 21.9 s, 9.95 s": ("D", "Data 12.0 s and 1.1 s: what begins there?"),
        },
    )
    return "Four of the six have nothing to do with the exchange of gradients."


def exercise_82_5(nodes_first: Callable[..., Any], cluster: Any) -> str:
    """Check a sum that is made inside each node first, on real ranks.

    Args:
        nodes_first: called with a communicator, this rank's gradient and a list with the node of
            each rank; returns the sum over all ranks, on all of them. Only the lowest rank of a
            node may speak to another node.
        cluster: the learner's cluster, of at least 3 ranks.

    Returns:
        str: what it means.
    """
    expect_function(nodes_first)
    ranks = cluster.ranks
    then = "On 2 every rank would be alone on its node."
    expect(ranks >= 3, "a cluster of at least 3 ranks", f"{ranks} ranks", then)
    gradients = np.random.default_rng(82).normal(size=(ranks, 6))
    total = gradients.sum(axis=0)
    for nodes in ([(rank + 1) // 2 for rank in range(ranks)], [rank % 2 for rank in range(ranks)]):
        inputs = [(nodes_first, gradients[rank], nodes) for rank in range(ranks)]
        came = results(cluster, _watched, inputs)
        for rank, (result, kept, crossed) in enumerate(came):
            case = f"on rank {rank}, with ranks on the nodes {nodes}"
            hint = "Return it on every rank, also on those that only hand theirs over."
            expect(np.shape(result) == (6,), f"an array of shape (6,) {case}", result, hint)
            hint, same = "Work on a copy: `gradient.copy()`.", np.array_equal(kept, gradients[rank])
            expect(same, f"`gradient` unchanged {case}", kept, hint)
            hint = "Hand it to the lowest rank of your own node, which speaks for all."
            speaks = rank == nodes.index(nodes[rank])
            who = f"no messages to another node {case}"
            expect(speaks or not crossed, who, f"to ranks {crossed}", hint)
            hint = "Send it to that node's lowest rank, which hands it on."
            past = [to for to in crossed if to != nodes.index(nodes[to])]
            expect(not past, f"messages to lowest ranks of other nodes only {case}", past, hint)
        for rank, (result, _, _) in enumerate(came):
            node = gradients[np.array(nodes) == nodes[rank]].sum(axis=0)
            hint = "Does every gradient count once, and does the sum come back to everybody?"
            if near(result, total / ranks):
                hint = "That is the mean. The sum is asked for."
            elif near(result, gradients[rank]) or near(result, node):
                hint = "What the others have has not come here."
            case = f"the sum over all ranks on rank {rank}, with ranks on the nodes {nodes}"
            expect_close(result, total, case, hint, 1e-9)
    return (
        "So NCCL inside a node and MPI between nodes work together: with 4 GPUs a node, a quarter "
        "of the ranks speaks on the network."
    )


def _watched(comm: Any, function: Callable[..., Any], gradient: np.ndarray, nodes: list) -> Any:
    watched, mine = _Watched(comm, nodes), gradient.copy()
    result = function(watched, mine, list(nodes))
    if result is Ellipsis:
        return result
    return (None if result is None else np.asarray(result)), mine, watched.crossed


class _Watched:
    """A communicator for messages between two ranks, which notes those to another node."""

    def __init__(self, comm: Any, nodes: list[int]) -> None:
        self._comm, self._nodes = comm, nodes
        self.rank, self.size, self.crossed = comm.rank, comm.size, []

    def __getattr__(self, name: str) -> Any:
        if name not in ("send", "recv", "Send", "Recv", "Get_rank", "Get_size"):
            raise AttributeError(f"Only send, recv, Send and Recv are allowed here, not {name}.")
        if name not in ("send", "Send"):
            return getattr(self._comm, name)

        def noted(data: Any, dest: int, *args: Any, **kwargs: Any) -> None:
            if self._nodes[dest] != self._nodes[self.rank]:
                self.crossed.append(dest)
            getattr(self._comm, name)(data, dest, *args, **kwargs)

        return noted
