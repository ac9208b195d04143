"""Notebook 82's checks tick what is right, and say which usual mistake was made.

Tests dlguide.exercises.nb82.
"""

import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises, published
from dlguide.cluster import Cluster
from dlguide.exercises import nb82


@pytest.fixture(scope="module", params=[3, 4])
def cluster(request):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=request.param, oversubscribe=True) as cluster:
        yield cluster
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def busiest(way, gpus, each, servers, nbytes, ring=0, joins=True, worker=True):
    if way == "allreduce":
        return 2 * (gpus - 1 + ring) / gpus * nbytes
    voices = gpus / each if joins is True or (joins == "device" and "device" in way) else gpus
    return max(nbytes * worker, voices * nbytes / servers)


def of_all_servers(way, gpus, each, servers, nbytes):
    sent = busiest(way, gpus, each, servers, nbytes)
    return sent if way == "allreduce" else sent * servers


def without_first(rate, images, batches, first_s, time_out=1, images_out=1):
    seconds = batches * images / rate - time_out * first_s
    return (batches - images_out) * images / seconds


FAIR = {
    "8.9 % ahead": ("A", 1.055),
    "7 % ahead": ("B", 0.981),
    "28x": ("E", 0.879),
    "60.6x": ("C", 242.4),
    "29.4x": ("D", 22.5),
}
CAUSES = {
    "2 GPUs less efficient than 4": "C",
    "88 % on 32, 61 % on 64": "A",
    "22.7x with 32 images, 26.7x with 128": "E",
    "8 GPUs: 1.00 exactly": "F",
    "0.273 of 0.581 s a batch": "B",
    "first batch 21.9 s, 9.95 s": "D",
}


def nodes_first(comm, gradient, nodes, fault=None):
    total = gradient if fault == "changes it" else gradient.copy()
    if fault == "no nodes":
        nodes = [0] * comm.size
    leaders = [nodes.index(node) for node in sorted(set(nodes))]
    own = nodes.index(nodes[comm.rank])
    team = [rank for rank, node in enumerate(nodes) if node == nodes[own] and rank != own]
    other, root = np.empty_like(total), leaders[0]
    if fault == "root to all":
        return root_to_all(comm, total, own, root, team, leaders)
    if comm.rank != own:
        comm.Send(total, own)
        if fault != "nothing back":
            comm.Recv(total, own)
        return None if fault == "no result" else total
    for rank in team:
        comm.Recv(other, rank)
        total += other
    if comm.rank == root:
        for leader in leaders[1:]:
            comm.Recv(other, leader)
            total += other
        total /= comm.size if fault == "mean" else 1
        for leader in leaders[1:]:
            comm.Send(total, leader)
    else:
        comm.Send(total, root)
        comm.Recv(total, root)
    for rank in team if fault != "nothing back" else ():
        comm.Send(total, rank)
    return total


def root_to_all(comm, total, own, root, team, leaders):
    """Sum as asked, then let the root send to every rank of every node."""
    other = np.empty_like(total)
    if comm.rank != own:
        comm.Send(total, own)
        comm.Recv(total, root)
        return total
    for rank in [*team, *(leaders[1:] if comm.rank == root else [])]:
        comm.Recv(other, rank)
        total += other
    if comm.rank != root:
        comm.Send(total, root)
        comm.Recv(total, root)
        return total
    for rank in range(comm.size):
        if rank != root:
            comm.Send(total, rank)
    return total


RIGHT = {
    "82-1": busiest,
    "82-2": without_first,
    "82-3": FAIR,
    "82-4": CAUSES,
}
EMPTY = {
    "82-3": [{claim: (..., ...) for claim in FAIR}],
    "82-4": [dict.fromkeys(CAUSES, ...)],
}
WRONG = {
    "ring of 2 n": ("82-1", lambda *a: busiest(*a, ring=1), "2 (p - 1) messages"),
    "GPUs do not add up": ("82-1", lambda *a: busiest(*a, joins=False), "with `device` or without"),
    "only with device": (
        "82-1",
        lambda *a: busiest(*a, joins="device"),
        "with `device` or without",
    ),
    "servers only": ("82-1", lambda *a: busiest(*a, worker=False), "what does a worker send"),
    "all servers": ("82-1", of_all_servers, "one server, or all"),
    "images of all batches": (
        "82-2",
        lambda *a: without_first(*a, images_out=0),
        "must go with its time",
    ),
    "time of all batches": (
        "82-2",
        lambda *a: without_first(*a, time_out=0),
        "must go with its images",
    ),
    "the first batch itself": (
        "82-2",
        lambda rate, images, batches, first_s: images / first_s,
        "The others are asked for",
    ),
    "nothing taken out": ("82-2", lambda rate, *rest: rate, "all but one"),
    "claims itself": ("82-3", FAIR | {"8.9 % ahead": ("A", 768 / 705)}, "Which data"),
    "letter of another": ("82-3", FAIR | {"8.9 % ahead": ("B", 1.055)}, "column `data`"),
    "with the first batch": ("82-3", FAIR | {"7 % ahead": ("B", 29.4 / 27.5)}, "hold the first"),
    "upside down": ("82-3", FAIR | {"7 % ahead": ("B", 1 / 0.981)}, "Turn it round"),
    "from the text": ("82-3", FAIR | {"28x": ("E", 0.875)}, "what does the table give"),
    "not fair": ("82-3", FAIR | {"28x": ("C", 0.879)}, "Recompute it from the table"),
    "nodes": ("82-3", FAIR | {"60.6x": ("C", 60.6)}, "nodes of four"),
    "efficiency": ("82-3", FAIR | {"60.6x": ("C", 0.947)}, "Times a GPU"),
    "throughput": ("82-3", FAIR | {"29.4x": ("D", 29.4)}, "How many hours"),
    "claims missing": ("82-3", {"28x": ("E", 0.879)}, "the claims"),
    "neighbours": ("82-4", CAUSES | {"2 GPUs less efficient than 4": "E"}, "Who else"),
    "saturation": ("82-4", CAUSES | {"88 % on 32, 61 % on 64": "F"}, "all at once"),
    "loading": ("82-4", CAUSES | {"first batch 21.9 s, 9.95 s": "E"}, "what begins there"),
    "no letter": ("82-4", CAUSES | {"8 GPUs: 1.00 exactly": "G"}, "Each letter fits once"),
    "no dictionary": ("82-4", "ABCDEF", "dictionary"),
}


def test_typed_numbers_are_those_of_the_published_tables():
    rows = published.load("throughput")
    names = {"PyTorch": "PyTorch 1.0.0", "Horovod": "Horovod 0.15.2 + PyTorch 1.0.0"}

    def rate(framework, workers, **more):
        (found,) = (
            row["images_per_s"]
            for row in rows
            if row["framework"] == framework
            and row["workers"] == workers
            and all(row[key] == value for key, value in more.items())
        )
        return found

    firsts = {
        (row["framework"], row["workers"]): row["first_s"]
        for row in published.load("first_batches")
    }
    for (name, gpus), (images_per_s, first_s) in nb82.LOGS.items():
        assert rate(names[name], gpus, batch_per_worker=128) == images_per_s
        assert firsts[names[name], gpus] == first_s
    for name, images_per_s in nb82.ALONE.items():
        assert rate(names[name], 1) == images_per_s
    for gpus in (1, 4, 32):
        assert rate("MXNet ps-lite", gpus, data="ImageNet") == nb82.MXNET[gpus]
    assert rate("MXNet ps-lite", 4, data="synthetic") == nb82.MXNET["4, synthetic"]
    assert rate("Horovod + PyTorch", 4) == nb82.HOROVOD_4
    (last,) = (
        row["speedup_over_one_node"]
        for row in published.load("scaling_ibm_ddl")
        if row["gpus"] == 256 and row["framework"].startswith("Caffe")
    )
    assert last == nb82.DDL_256
    hours = [
        row["wall_clock_hours"] for row in published.load("accuracy") if row["wall_clock_hours"]
    ]
    assert set(nb82.HOURS) <= set(hours)


def test_right_sum_is_ticked(cluster, capsys):
    ticked = exercises.check("82-5", nodes_first, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        ("no nodes", "lowest rank"),
        ("root to all", "that node's lowest rank"),
        ("mean", "The sum is asked for"),
        ("nothing back", "has not come here"),
        ("no result", "Return it on every rank"),
        ("changes it", "gradient.copy()"),
    ],
)
def test_wrong_sum_gets_its_hint(fault, hint, cluster, capsys):
    def faulty(*inputs):
        return nodes_first(*inputs, fault=fault)

    assert not exercises.check("82-5", faulty, cluster)
    assert hint in capsys.readouterr().out


def test_two_ranks_are_too_few_to_tell(capsys):
    class Two:
        ranks = 2

    assert not exercises.check("82-5", nodes_first, Two())
    assert "at least 3 ranks" in capsys.readouterr().out


def test_a_collective_of_the_library_is_not_allowed(cluster, capsys):
    def by_library(comm, gradient, per_node):
        return comm.allreduce(gradient)

    assert not exercises.check("82-5", by_library, cluster)
    assert "Only send, recv, Send and Recv" in capsys.readouterr().out


def test_empty_sum_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("82-5", lambda *inputs: ..., cluster)
    assert capsys.readouterr().out == "… Exercise 82-5 is not answered yet.\n"
