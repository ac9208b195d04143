"""Notebook 50's checks tick what is right and say which usual mistake was made."""

import numpy as np
import pytest

from dlguide import exercises
from dlguide.exercises import nb50
from dlguide.nets import recursive
from dlguide.published import load


def traces(trees, way):
    if way == "any list":
        return 1
    keys = {"numbers": lambda tree: tree, "tensors": recursive.shape, "lists": recursive.length}
    return len({keys[way](tree) for tree in trees})


def contradictions(rows, statements):
    table = {row["framework"]: row for row in rows}
    return [
        (framework, column, value)
        for framework, column, value in statements
        if set(table[framework][column].split()) != set(value.split())
    ]


def times_as_fast(row, unit):
    return (8 if unit == "steps/s" else 1) * row["gpus_8"] / row["gpus_1"]


GPUS = {
    "TensorFlow": 512, "Caffe": 256, "Torch": 256, "MXNet": 256,
    "Microsoft Cognitive Toolkit": 8, "PyTorch": "unknown",
}  # fmt: skip
CHOICE = dict(
    zip(
        ("sentences", "three backends", "MPI cluster", "slow workers", "data in Spark"),
        "CAEBF",
        strict=True,
    )
) | {"only inference": "D"}

RIGHT = {"50-1": traces, "50-3": times_as_fast, "50-4": CHOICE}
EMPTY = {"50-4": [dict.fromkeys(CHOICE, ...)]}
WRONG = {
    "calls": ("50-1", lambda trees, way: len(trees), "was there before needs no new trace"),
    "numbers forgotten": (
        "50-1",
        lambda trees, way: traces(trees, "tensors" if way == "numbers" else way),
        "a new number, a new trace",
    ),
    "lengths for trees": (
        "50-1",
        lambda trees, way: traces(trees, "lists" if way == "tensors" else way),
        "can have different trees",
    ),
    "words for trees": (
        "50-1",
        lambda trees, way: traces(trees, "numbers" if way == "tensors" else way),
        "other words, the same trace",
    ),
    "signature overlooked": (
        "50-1",
        lambda trees, way: traces(trees, "lists" if way == "any list" else way),
        "what could be new",
    ),
    "no eight batches": ("50-3", lambda row, unit: row["gpus_8"] / row["gpus_1"], "eight batches"),
    "efficiency": ("50-3", lambda row, unit: times_as_fast(row, unit) / 8, "share of 8"),
    "upside down": ("50-3", lambda row, unit: 1 / times_as_fast(row, unit), "Upside down"),
    "difference": ("50-3", lambda row, unit: row["gpus_8"] - row["gpus_1"], "divided by those"),
    "fastest for all": ("50-4", dict.fromkeys(CHOICE, "B"), "needs none in advance"),
    "letter": ("50-4", CHOICE | {"sentences": "G"}, "a letter from A to F"),
    "servers and allreduce": ("50-4", CHOICE | {"slow workers": "E"}, "no allreduce"),
}


@pytest.mark.parametrize("number", RIGHT)
def test_right_answer_gets_a_remark(number, capsys):
    assert exercises.check(number, RIGHT[number])
    assert len(capsys.readouterr().out) > 40


def test_contradictions_and_gpus_are_ticked(capsys):
    assert exercises.check("50-2", contradictions, GPUS), capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "second", "hint"),
    {
        "text compared": (
            lambda rows, said: [
                s for s in said if {r["framework"]: r for r in rows}[s[0]][s[1]] != s[2]
            ],
            GPUS,
            "compare sets of words",
        ),
        "part is enough": (
            lambda rows, said: [
                s for s in said if s[2] not in {r["framework"]: r for r in rows}[s[0]][s[1]]
            ],
            GPUS,
            "fewer is another claim",
        ),
        "agreements": (
            lambda rows, said: [s for s in said if s not in contradictions(rows, said)],
            GPUS,
            "the contradictions in",
        ),
        "eight in all": (contradictions, GPUS | {"TensorFlow": 8}, "8 are in each node"),
        "product": (contradictions, GPUS | {"Caffe": 256 * 64}, "4 GPUs a node"),
        "MXNet": (contradictions, GPUS | {"MXNet": 4096}, "P2.16xlarge"),
        "guess": (contradictions, GPUS | {"PyTorch": 64}, "allows 8 and 64"),
        "number as text": (contradictions, GPUS | {"Caffe": "256"}, "A number, no text"),
        "unknown where it is known": (contradictions, GPUS | {"Caffe": "Unknown"}, "4 GPUs a"),
        "nothing in the list": (lambda rows, said: [None], GPUS, "a list of statements"),
    }.values(),
)
def test_wrong_contradictions_get_their_hint(first, second, hint, capsys):
    assert not exercises.check("50-2", first, second)
    assert hint in capsys.readouterr().out


def test_unknown_may_be_written_with_a_capital(capsys):
    assert exercises.check("50-2", contradictions, GPUS | {"PyTorch": "Unknown"})


def test_unanswered_contradictions_are_not_wrong(capsys):
    assert not exercises.check("50-2", lambda *parts: ..., GPUS)
    assert not exercises.check("50-2", contradictions, GPUS | {"PyTorch": ...})
    assert capsys.readouterr().out.count("not answered yet") == 2


def gradient(comm, trees, net, summed, fault=""):
    from mpi4py import MPI

    own = summed(trees, net)
    if fault == "nothing":
        return {name: array / len(trees) for name, array in own.items()}
    if fault == "means":
        own = {name: array / len(trees) for name, array in own.items()}
    count = comm.allreduce(len(trees))
    found = {}
    for name, array in own.items():
        total = np.empty_like(array)
        comm.Allreduce(array, total, op=MPI.SUM)
        parts = {"": count, "sum": 1, "means": comm.size, "ranks": comm.size}
        found[name] = total / parts[fault]
    return found


def test_gradient_of_all_sentences_is_ticked(cluster, capsys):
    assert exercises.check("50-5", gradient, cluster), capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "sum": "divide it by the number of all sentences",
        "means": "unequal numbers",
        "nothing": "nothing was exchanged",
        "ranks": "divide by the sentences",
    }.items(),
)
def test_faulty_gradient_gets_its_hint(cluster, fault, hint, capsys):
    def faulty(*arguments):
        return gradient(*arguments, fault=fault)

    ticked = exercises.check("50-5", faulty, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1:
        assert ticked
    else:
        assert not ticked
        assert hint in out


def test_gradient_that_returns_nothing_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("50-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out


def test_keys_of_traces_are_those_of_the_net():
    trees = recursive.sentences(count=60, longest=5, words=4, seed=2)
    for way in nb50.WAYS:
        assert len({nb50._key(tree, way) for tree in trees}) == traces(trees, way)


def test_remark_quotes_the_published_transformer():
    rows = [row for row in load("paddle_comparison") if row["model"] == "Transformer"]
    ratios = [times_as_fast(row, "steps/s") for row in rows]
    assert [f"{ratio:.1f}" for ratio in ratios] == ["7.0", "3.9"]
    assert all(times_as_fast(row, "img/s") < 1 for row in rows)


def test_frameworks_with_numbers_in_table_1_are_asked_for():
    printed = {row["framework"]: row["max_gpus_nodes"] for row in load("frameworks")}
    assert {name for name, text in printed.items() if text[0] != "+"} == set(nb50.GPUS)


def test_every_exercise_of_the_module_is_tested():
    there = {name for name in vars(nb50) if name.startswith("exercise_50_")}
    assert there == {f"exercise_50_{number}" for number in range(1, 6)}
