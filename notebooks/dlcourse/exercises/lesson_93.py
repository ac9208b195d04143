"""Exercises of lesson 93: rounds, interleaving, a split backward pass, links, a layout to find."""

from functools import cache, partial
from math import ceil, inf, prod

import numpy as np

from dlcourse import published_layouts
from dlcourse.exercises.compare import brief
from dlcourse.exercises.engine import Exercise, WrongAnswer, letter
from dlcourse.nets import GPTShape
from dlcourse.parallel import layout_planner


def rounds_bubble(stages, microbatches, room, up=ceil, once=False, of_all=True):
    rounds = 1 if once else up(microbatches / room)
    waits = rounds * (stages - 1)
    return waits / (microbatches + waits if of_all else microbatches)


def kth_passes(k, stages, chunks, reverse=True, groups=True):
    group, place = divmod(k, stages * chunks)
    chunk, number = divmod(place, stages) if groups else divmod(place, chunks)[::-1]
    microbatch = group * stages + number
    return (chunk, microbatch), (chunks - 1 - chunk if reverse else chunk, microbatch)


def urgent(g, y, w, slope=True, kept=True):
    before = g * (1 - y**2) if slope else g
    return before @ w.T, before if kept else g


def later(x, kept, mean=1, bias=True):
    return x.T @ kept / mean, kept.sum(axis=0) if bias else kept.mean(axis=0)


def layers(seed, samples, inputs, outputs):
    random = np.random.default_rng(seed)
    x, w, g = (
        random.normal(size=s) for s in ((samples, inputs), (inputs, outputs), (samples, outputs))
    )
    return x, w, np.tanh(x @ w + random.normal(size=outputs)), g


LAYERS = [layers(93, 7, 4, 3), layers(94, 1, 2, 5), layers(95, 6, 6, 6)]


def slowest_link(width, tensor, flops_per_s, share, sums=4, own=1, divided=True, passes=6):
    nbytes = sums * 2 * (tensor - own) / tensor * 2 * width
    seconds = passes * 12 * width**2 / flops_per_s / (tensor if divided else 1)
    return nbytes / (share * seconds)


MOST = 10  # questions of the open task
CLUSTERS = (
    # GPUs, per node, batch, net: length, vocabulary, width, heads, key-value heads, hidden, layers
    (8, 8, 64, (4096, 32_000, 4096, 32, 32, 11_008, 32)),
    (64, 8, 256, (4096, 32_000, 6656, 52, 52, 17_920, 60)),
    (256, 4, 512, (2048, 51_200, 8192, 64, 64, 0, 48)),
    (1024, 8, 1792, (2048, 51_200, 10_240, 80, 80, 0, 60)),
    (512, 8, 256, (8192, 128_256, 8192, 64, 8, 28_672, 80)),
    (2520, 8, 2520, (2048, 51_200, 20_480, 128, 128, 54_656, 105)),
)


@cache
def prices(number):
    """A cluster in words, and the step of every layout that fits."""
    gpus, per_node, batch, sizes = CLUSTERS[number]
    net, speeds = GPTShape(*sizes), published_layouts.machine("A100", 0.5)
    speeds = layout_planner.RankSpeeds(**{**vars(speeds), "ranks_per_node": per_node})
    plan = layout_planner.plan_layout(
        net, gpus, speeds, batch, microbatches=None, zero=1, recompute=True, overlap=0.5
    )
    works = {(o.data, o.tensor, o.pipeline): o.step_s for o in plan if o.fits and o.context == 1}
    told = {"gpus": gpus, "per_node": per_node, "layers": net.layers, "heads": net.heads}
    return told | {"batch": batch, "parameters": net.parameters}, works


def shares_of_best(answer):
    """The best step / the step of the chosen layout, on each cluster."""
    shares = []
    for number in range(len(CLUSTERS)):
        cluster, works = prices(number)
        asked = []

        def ask(data, tensor, pipeline, works=works, asked=asked):
            asked.append((data, tensor, pipeline))
            if len(asked) > MOST:
                raise WrongAnswer(f"More than {MOST} questions for one cluster.")
            return works.get((data, tensor, pipeline), inf)

        chosen = answer(ask, dict(cluster))
        if not isinstance(chosen, tuple | list) or len(chosen) != 3:
            raise WrongAnswer(f"Expected: data, tensor, pipeline, got {brief(chosen)}.")
        if prod(chosen) != cluster["gpus"]:
            raise WrongAnswer("data x tensor x pipeline must be the number of GPUs.")
        shares.append(min(works.values()) / works.get(tuple(map(int, chosen)), inf))
    return shares


def good_enough(answer):
    shares = shares_of_best(answer)
    if min(shares) == 0:
        raise WrongAnswer(
            "One layout does not fit, or does not divide the net: ask about it first."
        )
    if np.mean(shares) < 0.90:
        raise WrongAnswer(
            "Far from the best: compare other `tensor` inside a node, and fewer stages."
        )


def stages_only(ask, cluster):
    pipelines = [p for p in range(1, cluster["layers"] + 1) if cluster["gpus"] % p == 0]
    fits = [p for p in pipelines[-MOST:] if ask(cluster["gpus"] // p, 1, p) < inf]
    tensor = cluster["per_node"]
    rest = cluster["gpus"] // tensor
    most = max(p for p in range(1, cluster["layers"] + 1) if rest % p == 0)
    return (cluster["gpus"] // fits[-1], 1, fits[-1]) if fits else (rest // most, tensor, most)


def asks_all(ask, cluster):
    gpus = cluster["gpus"]
    every = [
        (gpus // t // p, t, p) for t in (1, 2, 4, 8) for p in range(1, 65) if gpus % (t * p) == 0
    ]
    return min(every, key=lambda sides: ask(*sides))


def choose_by_memory(ask, cluster):
    """The ten layouts with the least splitting that should fit."""
    gpus, found = cluster["gpus"], []
    for tensor in range(1, min(cluster["per_node"], cluster["heads"]) + 1):
        if gpus % tensor or cluster["heads"] % tensor:
            continue
        for pipeline in range(1, cluster["layers"] + 1):
            data, rest = divmod(gpus // tensor, pipeline)
            if rest or cluster["layers"] % pipeline or cluster["batch"] % max(data, 1):
                continue
            if 16 * cluster["parameters"] / (tensor * pipeline) < 75e9 and data:
                found.append((tensor * pipeline, pipeline, (data, tensor, pipeline)))
    asked = {layout: ask(*layout) for *_, layout in sorted(found)[:10]}
    return min(asked, key=asked.get)


def choose_by_neighbours(ask, cluster):
    """From a layout that surely fits, go on to neighbours that are better."""
    gpus, layers, heads = cluster["gpus"], cluster["layers"], cluster["heads"]
    layouts = [
        (gpus // (t * p), t, p)
        for t in range(1, cluster["per_node"] + 1)
        for p in range(1, layers + 1)
        if gpus % (t * p) == 0
        and heads % t == 0
        and layers % p == 0
        and cluster["batch"] % (gpus // (t * p)) == 0
    ]
    enough = [each for each in layouts if 16 * cluster["parameters"] <= 70e9 * each[1] * each[2]]
    order = sorted(enough or layouts, key=lambda each: (each[1] * each[2], each[2]))
    seconds = {}
    for layout in order[:5]:
        seconds[layout] = ask(*layout)
    while len(seconds) < 10:
        best = min(seconds, key=seconds.get)
        left = [each for each in order if each not in seconds]
        if not left:
            break

        def away(layout, best=best):
            return sum(abs(np.log2(one / other)) for one, other in zip(layout, best, strict=True))

        layout = min(left, key=away)
        seconds[layout] = ask(*layout)
    return min(seconds, key=seconds.get)


EXERCISES = {
    "93-1": Exercise(
        rounds_bubble,
        cases=[(4, 8, 4), (4, 8, 8), (2, 8, 3), (8, 64, 8), (1, 5, 2), (4, 10, 4), (4, 3, 9)],
        hint="Each round waits p - 1 times (1 + 2); all rounds together work m times (1 + 2).",
        mistakes={
            "Each round fills and drains the pipeline again.": partial(rounds_bubble, once=True),
            "The last round is smaller, but it waits as long: round up.":
                partial(rounds_bubble, up=lambda exact: exact),
            "A share of the whole step: working and waiting.":
                partial(rounds_bubble, of_all=False),
        },
        remark="With room for p microbatches GPipe loses nearly half of the step, whatever m is."),
    "93-2": Exercise(
        kth_passes,
        cases=[(k, p, v) for p, v in ((4, 2), (2, 3), (3, 1)) for k in range(0, 2 * p * v + 2)],
        hint="divmod(k, stages * chunks) gives the group, and its remainder by stages the piece.",
        mistakes={
            "Backward a group begins with the last piece.": partial(kth_passes, reverse=False),
            "A whole group passes through one piece before the next piece starts.":
                partial(kth_passes, groups=False),
        },
        remark="With 1 piece it is the order of 1F1B; `microbatches` must divide into the groups."),
    "93-3": [
        Exercise(
            urgent, cases=[(g, y, w) for _, w, y, g in LAYERS],
            hint="First through tanh: 1 - y**2. Then the input gradient is one product.",
            mistakes={
                "The gradient goes through tanh first: g * (1 - y**2).":
                    partial(urgent, slope=False),
                "Keep the gradient before tanh: the weights need that one.":
                    partial(urgent, kept=False),
            }),
        Exercise(
            later, cases=[(x, g * (1 - y**2)) for x, _, y, g in LAYERS],
            hint="x.T @ kept, and for b the sum over the samples.",
            mistakes={
                "The bias is added to each sample: its gradient is a sum.":
                    partial(later, bias=False),
                "Sums over the samples; the loss divides by them, if anything does.":
                    lambda x, kept: (x.T @ kept / len(x), kept.sum(axis=0) / len(x)),
            },
            remark="What is kept has the size of y: the price in memory of a zero bubble."),
    ],
    "93-4": [
        Exercise(
            slowest_link,
            cases=[(8192, 8, 4e14, 0.1), (4096, 2, 1.5e14, 0.25), (16_384, 8, 5e14, 0.1),
                   (16_384, 16, 5e14, 1.0)],
            hint="bytes / speed = share * flops / (tensor * flops_per_s), for one token.",
            mistakes={
                "Four allreduces, and a ring sends 2 (t - 1)/t of the bytes of each.":
                    partial(slowest_link, sums=2),
                "A rank keeps its own part: 2 (t - 1)/t of the bytes.":
                    partial(slowest_link, own=0),
                "The flops are shared by `tensor` GPUs.": partial(slowest_link, divided=False),
                "Training is forward and backward: 6 flops for each weight.":
                    partial(slowest_link, passes=2),
            }),
        letter(
            "A",
            {"B": "Count the values in an allreduce: tokens x width.",
             "C": "The next layer needs the sum: what could the rank compute meanwhile?",
             "D": "The number of allreduces stays, each is larger. Do latencies matter there?"},
            "Speed needed: 2/9 (t - 1) flops_per_s / (share w). Wider nets allow slower links."),
    ],
    "93-5": Exercise(
        choose_by_memory, check=good_enough, limit_s=60.0,
        score=lambda answer, cluster: float(np.mean(shares_of_best(answer))),
        mistakes={
            "One layout does not fit, or does not divide the net: ask about it first.":
                lambda ask, cluster: (cluster["gpus"], 1, 1),
            "Far from the best: compare other `tensor` inside a node, and fewer stages.":
                stages_only,
            f"More than {MOST} questions for one cluster.": asks_all,
            "data x tensor x pipeline must be the number of GPUs.": lambda ask, cluster: (1, 1, 1),
        },
        also_right=(choose_by_neighbours,),
        remark="Tensor inside a node, few stages, copies outside: a rule replaces most questions."),
}  # fmt: skip
