"""Exercises of lesson 50: traces, a table against its text, ratios, a choice, trees at once."""

import re
from functools import partial

import numpy as np

from dlcourse import recursive
from dlcourse.exercises.engine import Exercise, Letters, share_of

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


def at_once(trees, net, halves=("left", "right"), bias=1, total=np.sum):
    """Pairs of one height together: those of height 1 have two words, and so on."""
    words, levels = [], {}

    def place(tree):
        pair = isinstance(tree, tuple)
        (left, low), (right, high) = map(place, tree) if pair else ((0, -1), (0, -1))
        words.append(0 if pair else tree)
        if pair:
            levels.setdefault(1 + max(low, high), []).append((len(words) - 1, left, right))
        return len(words) - 1, 1 + max(low, high)

    tops = [place(tree)[0] for tree in trees]
    vectors = net["words"][words]
    for height in sorted(levels):
        own, left, right = np.array(levels[height]).T
        inner = vectors[left] @ net[halves[0]] + vectors[right] @ net[halves[1]]
        vectors[own] = np.tanh(inner + bias * net["bias"])
    return total(vectors[tops], axis=1)


def forests():
    net = recursive.weights(words=30, width=6, seed=4)
    left = ((((1, 2), 3), 4), 5)
    return [([(3, 7)], net), ([7], net), ([(1, 2), 4, (4, (3, (2, 1))), left, (left, left)], net),
            (recursive.sentences(40, longest=9, words=30, seed=5), net)]  # fmt: skip


def scores(answer, trees, net):
    """The answer's scores, and whether it left its inputs as they were."""
    kept, arrays = list(trees), {name: array.copy() for name, array in net.items()}
    found = answer(trees, net)
    changed = trees != kept or any((net[name] != arrays[name]).any() for name in arrays)
    if changed:
        return "changed inputs: compute on copies of the arrays"
    return np.asarray(found, "float32")


def share_of_products(answer, cluster):
    """Products and tanh of all pairs in one call, as a share of the answer's time."""
    net = recursive.weights(width=64, seed=2)
    trees = recursive.sentences(600, longest=12, seed=3)
    pairs = sum(recursive.length(tree) - 1 for tree in trees)
    rows = np.random.default_rng(0).normal(size=(2, pairs, 64)).astype("float32")

    def limit():
        np.tanh(rows[0] @ net["left"] + rows[1] @ net["right"] + net["bias"])

    return share_of(limit, lambda: answer(trees, net), 7, np.median, warmup=2)


def at_once_by_heights(trees, net):
    levels, heights = [], {}

    def place(tree):
        """The level of a tree and its row there."""
        if not isinstance(tree, tuple):
            level, work = 0, tree
        else:
            work = place(tree[0]), place(tree[1])
            level = 1 + max(work[0][0], work[1][0])
        while len(levels) <= level:
            levels.append([])
        levels[level].append(work)
        return level, len(levels[level]) - 1

    tops = [place(tree) for tree in trees]
    for level, works in enumerate(levels):
        if level == 0:
            heights[0] = net["words"][works]
            continue
        left, right = (
            np.array([heights[h][row] for h, row in side]) for side in zip(*works, strict=True)
        )
        heights[level] = np.tanh(left @ net["left"] + right @ net["right"] + net["bias"])
    return np.array([heights[level][row].sum() for level, row in tops], "float32")


def at_once_by_rounds(trees, net):
    nodes, ready, waiting = [], {}, []

    def add(tree):
        children = tuple(add(half) for half in tree) if isinstance(tree, tuple) else ()
        nodes.append(tree)
        if children:
            waiting.append((len(nodes) - 1, *children))
        else:
            ready[len(nodes) - 1] = net["words"][tree]
        return len(nodes) - 1

    tops = [add(tree) for tree in trees]
    while waiting:
        now = [each for each in waiting if each[1] in ready and each[2] in ready]
        waiting[:] = [each for each in waiting if each not in now]
        pairs = np.array([np.concatenate([ready[left], ready[right]]) for _, left, right in now])
        both = np.concatenate([net["left"], net["right"]])
        ready.update(
            zip([each[0] for each in now], np.tanh(pairs @ both + net["bias"]), strict=True)
        )
    return np.array([np.sum(ready[top]) for top in tops], dtype=np.float32)


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
            "TensorFlow": ("unknown", {
                "8": "8 GPUs cannot be spread over 64 nodes.",
                "512": "8 per node on 64 nodes is one reading. Is there a footnote that says so?",
                "64": "Swapped numbers are one reading. Is there a footnote that says so?",
                "": "Which readings does 8/64 leave, and does a footnote decide?"}),
            "Caffe": ("256", EACH_4), "Torch": ("256", EACH_4),
            "MXNet": ("256", {"": "The footnote says P2.16xlarge: 16 GPUs in each of 16 nodes."}),
            "Microsoft Cognitive Toolkit": ("8", {"": "Section 2.2: 8 nodes with one GPU each."}),
            "PyTorch": ("unknown", {"": "8/8 allows 8 and 64, and there is no footnote."}),
        }, "One column, two units, and two entries that only their authors could explain."),
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
        "MPI cluster": ("E", "TensorFlow 1 and mpiexec are there: which adds only a few lines?"),
        "slow workers": ("B", "No worker may wait for the slowest: which has no allreduce?"),
        "data in Spark": ("F", "The data must stay where they are, and so must the job's master."),
        "only inference": ("D", "No training at all: which is made for that?"),
    }, "The question was not which is the fastest: a need decides, and then a measurement."),
    "50-5": Exercise(
        at_once, cases=forests, call=scores, relative=1e-5, score=share_of_products,
        also_right=(at_once_by_heights, at_once_by_rounds),
        hint="Number all nodes, children first; then compute the pairs of each height together.",
        mistakes={
            "The left half goes with `left`, the right one with `right`.":
                partial(at_once, halves=("right", "left")),
            "The bias belongs into every pair.": partial(at_once, bias=0),
            "The score is the sum of the top vector, not its mean.":
                    partial(at_once, total=np.mean),
        },
        remark="The scores are those of the recursion. Data-dependent graphs can be batched, too."),
}  # fmt: skip
