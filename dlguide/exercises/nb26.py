"""Checks of the exercises of notebook 26: last steps, rates, symptoms, shards, a mended program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import (
    NotAnswered,
    answered,
    expect,
    expect_close,
    expect_function,
    on_ranks,
)

IMAGENET = 1_281_167  # training images
RATE, RATE_BATCH = 0.05, 128  # of one worker
WORKSHOP_RATE, WORKSHOP_BATCH, EPOCHS = 0.001, 20, 2
TRIAL_S = 60.0  # for a training of EPOCHS that loads TensorFlow first
# Each observation: the mistake, and a question that leads to it.
OBSERVED = {
    "A": ("same order", "4 ranks should need a quarter of the steps. Which samples has each?"),
    "B": ("no broadcast", "A distance that never changes: was it ever 0?"),
    "C": ("batch normalisation", "A model has more than trained weights: what else is saved?"),
    "D": ("collectives", "A mean over all ranks is a call: who makes it?"),
    "E": ("checkpoints", "How many ranks write that file, and when?"),
    "F": ("learning rate", "The steps are right, but there are fewer: what must each make up for?"),
}
# Names that the detector gives as well, because one mistake brings them along.
ALONG = {"missed"}


def exercise_26_1(last_step: Callable[..., Any]) -> str:
    """Check the size of the last step, and how much too large it is.

    Args:
        last_step: called with images, ranks and the batch of a rank, returns the samples of one
            rank in the last step, and by how much that step is too large for the linear rule.

    Returns:
        str: what it means.
    """
    expect_function(last_step)
    for images, ranks, batch in [
        *((960, 2, 20), (101, 2, 10), (100, 3, 7), (7, 2, 4)),
        *((IMAGENET, gpus, 128) for gpus in (8, 16, 24, 32)),
    ]:
        came = answered(last_step(images, ranks, batch))
        expect(np.shape(came) == (2,), "two numbers: samples, times too large", came)
        share = math.ceil(images / ranks)
        right = share % batch or batch
        case = f"for {images} images, {ranks} ranks and a batch of {batch}"
        hint = "First what each rank gets, rounded up; then what full batches leave of that."
        if came[0] == 0:
            hint = "Where nothing is left over, the last step is a full one."
        expect(came[0] == right, f"the samples of one rank in the last step {case}", came[0], hint)
        hint = "The rate is made for a full batch: divide that by what the step has."
        expect_close(came[1], batch / right, f"how many times too large {case}", hint, 1e-3)
    factors = {p: 128 / (math.ceil(IMAGENET / p) % 128 or 128) for p in range(8, 65)}
    worst = max(factors, key=lambda gpus: factors[gpus])
    return (
        f"24 GPUs: {factors[24]:.1f} times. The worst between 8 and 64 are {worst} GPUs: "
        f"{factors[worst]:.0f} times, a last batch of {128 / factors[worst]:.0f}."
    )


def exercise_26_2(odd_rows: Callable[..., Any]) -> str:
    """Check which rows of a table break the linear rule.

    Args:
        odd_rows: called with triples (workers, batch of a worker, rate), returns the numbers of
            the rows whose rate is not 0.05 times the global batch / 128.

    Returns:
        str: what it means.
    """
    expect_function(odd_rows)
    tables = [
        [(1, 128, 0.05), (8, 128, 0.4), (16, 128, 0.8), (24, 128, 1.4), (32, 128, 1.6)],
        [(32, 32, 1.6), (32, 32, 0.4), (4, 64, 0.1), (4, 64, 0.2), (3, 100, 0.1172)],
        [(7, 128, 0.35), (3, 128, 0.15), (24, 128, 1.2)],
    ]
    for table in tables:
        came = answered(odd_rows(list(table)))
        rule = [RATE * workers * batch / RATE_BATCH for workers, batch, _ in table]
        right = [
            row
            for row, (meant, (_, _, rate)) in enumerate(zip(rule, table, strict=True))
            if not math.isclose(rate, meant, rel_tol=0.01)
        ]
        listed = isinstance(came, Collection) and not isinstance(came, str | Mapping)
        expect(listed, "a list of row numbers", came)
        numbers = sorted(came)
        by_workers = [row for row, (p, _, r) in enumerate(table) if abs(r / (RATE * p) - 1) > 0.01]
        exactly = [row for row, meant in enumerate(rule) if table[row][2] != meant]
        hint = "The rule speaks of the global batch: workers times batch."
        if numbers == exactly != right:
            hint = "0.05 * 3 is not 0.15 for a computer: allow 1 % of difference."
        elif numbers == by_workers != right:
            hint = "Workers are not all: a batch of 32 has a quarter of the rate of 128."
        expect(numbers == right, f"the rows of {table} that break the rule", came, hint)
    return (
        "1.4 for 24 GPUs is a misprint of 1.2. And 32 workers with 32 images each are 1024 images: "
        "0.4, or 32 x 0.0125; the printed 32 x 0.05 is the rate for batches of 128."
    )


def exercise_26_3(mistakes: Mapping[str, Any]) -> str:
    """Check which mistake explains which observation.

    Args:
        mistakes: letter -> the detector's name of the mistake.

    Returns:
        str: what it means.
    """
    expect(isinstance(mistakes, Mapping), "a dictionary of six letters", mistakes)
    if all(each is Ellipsis for each in mistakes.values()):
        raise NotAnswered
    letters = ", ".join(OBSERVED)
    expect(set(mistakes) == set(OBSERVED), f"a mistake for each of {letters}", sorted(mistakes))
    for letter, (right, hint) in OBSERVED.items():
        came = str(mistakes[letter]).strip().lower()
        expect(came == right, f"the mistake that explains {letter}", came, hint)
    return "Only F can be seen in the loss of one rank, and only beside that of one process."


def exercise_26_4(detect: Callable[..., Any]) -> str:
    """Check a detector of samples that nobody takes, and of samples taken again.

    Args:
        detect: called with one sequence of indices for each rank and the number of samples,
            returns the samples taken by nobody and the times one was taken again.

    Returns:
        str: what it means.
    """
    expect_function(detect)
    random = np.random.default_rng(26)
    orders = [random.permutation(64) for _ in range(4)]
    cases = {
        "a sound epoch": ([orders[0][rank::3] for rank in range(3)], 64),
        "the same shard on both ranks": ([orders[0][::2], orders[0][::2]], 64),
        "the whole set on three ranks": (orders[:3], 64),
        "orders of their own": ([order[rank::4] for rank, order in enumerate(orders)], 64),
        "a rank that takes its own samples twice": ([[0, 1, 1, 1], [2, 3]], 4),
        "one rank, and a rest left out": ([np.arange(60)], 64),
    }
    for name, (seen, samples) in cases.items():
        lists = [[int(sample) for sample in rank] for rank in seen]
        came = answered(detect(lists, samples))
        expect(np.shape(came) == (2,), "two numbers: taken by nobody, taken again", came)
        counts = Counter(sample for rank in lists for sample in rank)
        missed, again = samples - len(counts), counts.total() - len(counts)
        hint = "Put the samples of all ranks together; what of all of them is not there?"
        expect(came[0] == missed, f"the samples taken by nobody, {name}", came[0], hint)
        hint = "A sample that is taken three times is taken again two times."
        if name.startswith("a rank that"):
            hint = "A rank can also meet itself: do not throw its doubles away."
        expect(came[1] == again, f"the times a sample is taken again, {name}", came[1], hint)
    return "That is what the audit does, with a checksum of each sample's bytes as its number."


def exercise_26_5(
    named: Any, mended: Callable[..., Any], cluster: Any, run: Callable[..., Any], data: Any
) -> str:
    """Check on real ranks that the workshop's program has lost both its mistakes.

    Args:
        named: the mistakes' names.
        mended: the program, as `run` takes it.
        cluster: the learner's cluster.
        run: `dlguide.training.trial.run`.
        data: what to train on.

    Returns:
        str: what it means.
    """
    expect_function(mended)
    listed = isinstance(named, Collection) and not isinstance(named, str | Mapping)
    expect(listed, 'a set of names, such as {"seeds", "steps"}', named)
    names = set(named) - ALONG
    hint = "Which samples can a rank take? And whose rule is it to multiply by the ranks?"
    expect(names == {"overlap", "learning rate"}, "the names of both mistakes", named, hint)
    trials = on_ranks.run(cluster, run, mended, data, WORKSHOP_RATE, limit_s=TRIAL_S)
    ranks = len(trials)
    _expect_shards(trials)
    sizes = [len(epoch) for epoch in trials[0].evidence.batches]
    each = {size for one in trials for epoch in one.evidence.batches for size in epoch[:-1]}
    expect(len(sizes) == EPOCHS, f"{EPOCHS} epochs", f"{len(sizes)}")
    expect(each == {WORKSHOP_BATCH}, f"batches of {WORKSHOP_BATCH} on each rank", sorted(each))
    kinds = {one.evidence.optimizer for one in trials}
    expect(kinds == {"adam"}, "Adam, as in the program", sorted(kinds), "Keep the optimizer.")
    rates = [one.evidence.learning_rate for one in trials]
    hint = "Which rule fits an optimizer that divides by the size of the gradients? Notebook 20."
    if ranks > 1 and np.allclose(rates, WORKSHOP_RATE * ranks, rtol=1e-4):
        hint = "Times the number of ranks is the rule of SGD. What is that of Adam?"
    right = [WORKSHOP_RATE * math.sqrt(ranks)] * ranks
    expect_close(rates, right, f"the rate of Adam on {ranks} ranks", hint, 1e-4)
    distance = max(trials[0].distance)
    hint = "The broadcast was right as it was, and so was the averaged gradient."
    expect(distance == 0, "equal weights on all ranks after each step", f"{distance:.2g}", hint)
    reported = {one.evidence.metrics for one in trials if one.evidence.metrics}
    values = {tuple(metric.value for metric in metrics) for metrics in reported}
    hint = "Leave `MetricAverageCallback` in its place."
    expect(len(values) == 1, "metrics of all ranks", f"{len(values)} different reports", hint)
    return (
        "And the comment: there are fewer steps because the ranks share an epoch, which the larger "
        "global batch does; the rate has nothing to do with it."
    )


def _expect_shards(trials: Sequence[Any]) -> None:
    """Each epoch, every sample once, but for a rest smaller than one global batch."""
    rest = len(trials) * WORKSHOP_BATCH
    for epoch in range(len(trials[0].evidence.seen)):
        counts = Counter(sample for one in trials for sample in one.evidence.seen[epoch])
        again = counts.total() - len(counts)
        hint = "Each rank shuffles in an order of its own, or nobody cuts it into shards."
        text = f"{again} of {counts.total()} taken again, in epoch {epoch}"
        expect(again == 0, "no sample taken twice in an epoch", text, hint)
        missed = trials[0].samples - len(counts)
        hint = "All ranks together should go through the data set once."
        expect(missed < rest, "all samples taken in an epoch", f"{missed} are not", hint)
