"""Exercises of lesson 50: traces, a table against its text, honest ratios, a choice, other nets."""

import re
from functools import partial

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

KEYS = {  # of a traced call, from the sentence
    **{"numbers": str, "tensors": lambda tree: re.sub(r"\d", "word", str(tree))},
    **{"lists": lambda tree: str(tree).count(",") + 1, "any list": lambda tree: "(None, 3)"},
}
SENTENCES = [
    *([(1, 2)] * 3, [(1, 2), (3, 4), (1, 2), (2, 1)], [((1, 2), 3), (1, (2, 3)), ((4, 4), 4)]),
    [(1, 2), ((1, 2), 3), (1, (2, 3)), (5, 6), (1, 2), ((7, 8), (9, 9)), 4],
]
EACH_4 = {"": "The footnote says 4 GPUs per node, and 4 x 64 is the first number itself."}
TABLE = [{"framework": "A", "modes": "sync async"}, {"framework": "B", "modes": "sync"}]
STATEMENTS = ("A sync,B sync", "A async sync,B sync", "B async,A sync x,A sync async", "B sync x")


def traces(trees, way):
    return len({KEYS[way](tree) for tree in trees})


def as_if(given, taken):
    return lambda trees, way: traces(trees, taken if way == given else way)


def contradicted(rows, statements, differs=lambda cell, said: set(cell) != set(said)):
    table = {row["framework"]: row for row in rows}
    return [s for s in statements if differs(table[s[0]][s[1]].split(), s[2].split())]


def ratio(row, unit):
    return (8 if unit == "steps/s" else 1) * row["gpus_8"] / row["gpus_1"]


def gradient(comm, trees, net, summed):
    count = comm.allreduce(len(trees))
    return {name: comm.allreduce(own) / count for name, own in summed(trees, net).items()}


def summed(trees, net):
    return {name: sum(trees) * array for name, array in net.items()}


def on_each_rank(ranks):
    net = {"words": np.arange(1.0, 7.0).reshape(2, 3), "bias": np.array([3.0, -1.0])}
    return [[(list(range(rank, 2 * rank + 1)), net, summed) for rank in range(ranks)]]


def scaled(inputs, factor):
    """All ranks' gradients, by factors made of the ranks' sums and numbers of sentences."""
    sums, counts = np.array([(sum(trees), len(trees)) for trees, *_ in inputs]).T
    return [summed([each], inputs[0][1]) for each in factor(sums, counts) + 0 * sums]


EXERCISES = {
    "50-1": Exercise(
        traces, cases=[(trees, way) for trees in SENTENCES for way in KEYS],
        hint="Count the different keys: only a call with a new key makes a trace.",
        mistakes={
            "A call whose key was there before needs no new trace.": lambda trees, way: len(trees),
            "A Python number is in the key: new number, new trace.": as_if("numbers", "tensors"),
            "A tensor's value is not in the key; the nesting is.": as_if("tensors", "any list"),
            "Sentences of one length can have different trees.": as_if("tensors", "lists"),
            "The words are tensors: other words, the same trace.": as_if("tensors", "numbers"),
            "An array's shape is part of the key, its values are not.": as_if("lists", "numbers"),
            "The signature says (None, 3): what is new about a call?": as_if("any list", "lists"),
        },
        remark="Count the keys, not the calls. A tensor is data; the rest is program."),
    "50-2": [
        Exercise(
            contradicted,
            cases=[(TABLE, [(one[0], "modes", one[2:]) for one in line.split(",")])
                   for line in STATEMENTS],
            hint="Return the statements that the table contradicts, as they are.",
            mistakes={
                "`sync async` and `async sync` are the same: compare sets of words.":
                    partial(contradicted, differs=lambda cell, said: cell != said),
                "One word fewer is another claim.":
                    partial(contradicted, differs=lambda cell, said: not set(said) <= set(cell)),
                "One word more is another claim.":
                    partial(contradicted, differs=lambda cell, said: not set(cell) <= set(said)),
                "In the order of the statements.": lambda *a: contradicted(*a)[::-1],
            }),
        Letters({
            "TensorFlow": ("512", {"": "8 GPUs cannot be spread over 64 nodes: each node has 8."}),
            "Caffe": ("256", EACH_4), "Torch": ("256", EACH_4),
            "MXNet": ("256", {"": "The footnote says P2.16xlarge: 16 GPUs in each of 16 nodes."}),
            "Microsoft Cognitive Toolkit": ("8", {"": "Section 2.2: 8 nodes with one GPU each."}),
            "PyTorch": ("unknown", {"": "8/8 allows 8 and 64, and there is no footnote."}),
        }, "One column, two units, and a number that cannot be read any more."),
    ],
    "50-3": Exercise(
        ratio,
        cases=[({"gpus_1": one, "gpus_8": eight}, unit) for unit in ("img/s", "steps/s")
               for one, eight in ((168.334, 843.348), (4.865, 4.227), (10.0, 80.0))],
        hint="The images per second of 8 GPUs, divided by those of one.",
        mistakes={
            "A step on 8 GPUs processes eight batches.": lambda row, _: ratio(row, "img/s"),
            "That is the efficiency. How many times as fast is it?": lambda *a: ratio(*a) / 8,
            "Upside down: a speed-up above 1 means that 8 GPUs do more.": lambda *a: 1 / ratio(*a),
        },
        remark="Under the printed unit 8 GPUs train the Transformer more slowly than one; in "
        "steps/s they are 7.0 (Paddle) and 3.9 (TensorFlow) times as fast. Ask for the unit."),
    "50-4": Letters({
        "sentences": ("C", "Every sentence has its own graph: which needs none in advance?"),
        "three backends": ("A", "One source text for several frameworks: whose idea is that?"),
        "MPI cluster": ("E", "mpiexec is there; which needs only a few lines and an MPI?"),
        "slow workers": ("B", "No worker may wait for the slowest: which has no allreduce?"),
        "data in Spark": ("F", "The data must stay where they are, and so must the job's master."),
        "only inference": ("D", "No training at all: which is made for that?"),
    }, "The question was not which is the fastest: a need decides, and then a measurement."),
    "50-5": Exercise(
        gradient, ranks=(2, 3), cases=on_each_rank,
        serial=partial(scaled, factor=lambda sums, counts: sums.sum() / counts.sum()),
        hint="Add the sums of all ranks, then divide by the number of sentences of all ranks.",
        mistakes={
            "That is the sum: divide it by the number of all sentences.":
                partial(scaled, factor=lambda sums, counts: sums.sum()),
            "The mean of the ranks' means: but the ranks have unequal numbers of sentences.":
                partial(scaled, factor=lambda sums, counts: (sums / counts).mean()),
            "That is this rank's own mean: nothing was exchanged.":
                partial(scaled, factor=lambda sums, counts: sums / counts),
            "Divided by the number of ranks: divide by the number of sentences.":
                partial(scaled, factor=lambda sums, counts: sums.mean()),
        },
        remark="An allreduce needs equal shapes of the weights, not of the data."),
}  # fmt: skip
