"""The exercises of notebook 51, Horovod."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from dlguide.exercises.stand_in import PER_HOST, Horovod, NotStarted

# What a detector may find in the workshop's solution; the first two are its mistakes.
WORKSHOP = {"overlap", "learning rate"}
ALLOWED_WITH = {"missed"}


def exercise_51_1(start: Callable[..., Any]) -> str:
    """Check how Horovod is started and who speaks (questions 1 and 4).

    Args:
        start: called with Horovod, or what looks like it; returns whether this rank speaks, and
            the slice of the samples that is its own.

    Returns:
        str: what it means.
    """
    expect_function(start)
    for ranks in (1, 2, 4):
        speaking, seen = [], []
        for rank in range(ranks):
            stand_in = Horovod(rank, ranks)
            try:
                came = answered(start(stand_in))
            except NotStarted:
                hint = "A process learns its number from Horovod, and Horovod must be started."
                expect(False, "`hvd.init()` before anything else", "a question before it", hint)
            hint = "Nothing has told this process which rank it is: call `hvd.init()`."
            expect(stand_in.started, "a Horovod that was started", "no `hvd.init()`", hint)
            pair = isinstance(came, tuple | list) and len(came) == 2
            expect(pair, "two things: whether it speaks, and its slice", came)
            speaks, own = came
            expect(isinstance(own, slice), "a slice of the samples", own)
            speaking += [rank] * bool(speaks)
            seen += list(range(24))[own]
        case = f"of {ranks} rank{'s' * (ranks > 1)}"
        hint = "Somebody must speak, also when there is only one rank: count from 0."
        if len(speaking) > 1 and ranks > PER_HOST and speaking == list(range(0, ranks, PER_HOST)):
            hint = "`hvd.local_rank()` counts on each host anew: then one speaks on every host."
        elif len(speaking) > 1:
            hint = "`hvd.size()` is the same on all ranks; `hvd.rank()` is not."
        expect(speaking == [0], f"rank 0 alone to speak {case}", f"ranks {speaking}", hint)
        hint = "Begin at the rank's own number, and step over those of all others, on all hosts."
        expect(sorted(seen) == list(range(24)), f"each sample once {case}", f"{seen}", hint)
    return (
        "`init` is when the processes meet: before it none knows how many they are. The slide asks "
        "for 'rank #1 (0)': the first rank has the number 0."
    )


def exercise_51_2(plan: Callable[..., Any], rate_at: Callable[..., Any]) -> str:
    """Check steps and rates for any number of ranks (questions 2, 3, 5 and 6).

    Args:
        plan: called with steps, batch and rate of one process and the ranks; returns a dict of
            "steps" of a rank, "images" of all ranks together, and "rate".
        rate_at: called with the step (from 0), the rate of one process, the ranks and the steps
            of the warmup; returns the rate.

    Returns:
        str: what it means.
    """
    expect_function(plan)
    expect_function(rate_at)
    for steps, batch, rate, ranks in ((400, 50, 0.02, 1), (1000, 50, 0.02, 4), (1000, 32, 0.1, 3)):
        came = answered(plan(steps, batch, rate, ranks))
        three = isinstance(came, dict) and set(came) >= {"steps", "images", "rate"}
        expect(three, 'a dict with "steps", "images" and "rate"', came)
        for name in ("steps", "images", "rate"):
            expect(_is_number(came[name]), f'a number for "{name}"', came[name])
        case = f"for {steps} steps of {batch} images, {ranks} ranks"
        right = math.ceil(steps / ranks)
        hint = "All ranks together must use no fewer images than one process does."
        if came["steps"] == steps and ranks > 1:
            hint = "A step of all ranks uses `ranks` times as many images: fewer are needed."
        elif came["steps"] == steps // ranks:
            hint = "Rounded down, a few images fewer are used than by one process: round up."
        expect(came["steps"] == right, f"the steps of a rank {case}", came["steps"], hint)
        hint = "Steps of a rank, times its batch, times the ranks."
        images = right * batch * ranks
        expect(came["images"] == images, f"the images of all ranks {case}", came["images"], hint)
        hint = "SGD's rule: k times the global batch, k times the rate."
        if ranks > 1 and np.isclose(came["rate"], rate * math.sqrt(ranks)):
            hint = "The square root is a rule for Adam and its relatives; here it is SGD."
        expect_close(came["rate"], rate * ranks, f"the rate {case}", hint, 1e-6)
    for rate, ranks, warmup in ((0.02, 4, 10), (0.1, 1, 5), (0.1, 2, 0)):
        for step in (0, 1, warmup // 2, warmup, warmup + 1, 10 * warmup + 7):
            came = answered(rate_at(step, rate, ranks, warmup))
            hint = "Does the function end in `return`?" if came is None else ""
            expect(_is_number(came), "a number from `rate_at`", came, hint)
            share = min(1.0, step / warmup) if warmup else 1.0
            right = rate * (1 + (ranks - 1) * share)
            hint = "A straight line from `rate` at step 0 to `rate * ranks` at step `warmup`."
            if step == 0 and warmup and np.isclose(came, 0.0):
                hint = "Begin with the rate of one process, not with 0."
            elif step > warmup:
                hint = "After the warmup the rate stays where it is."
            case = f"the rate at step {step}, {ranks} ranks, {warmup} steps of warmup"
            expect_close(came, right, case, hint, 1e-6)
    return (
        "The larger global batch asks for both: fewer steps, because each uses more images, and "
        "a larger rate, because there are fewer steps. The warmup is for the first ones."
    )


def exercise_51_3(images_per_s: Callable[..., Any]) -> str:
    """Check a prediction of the speed on 1, 2 and 4 ranks (question 7).

    Args:
        images_per_s: called with ranks, cores, batch, core seconds of an image, what each
            further thread of a rank brings (0 to 1), and seconds of an exchange; returns images/s.

    Returns:
        str: what it means.
    """
    expect_function(images_per_s)
    for ranks, cores, batch, image_s, gain, exchange_s in (
        (1, 1, 50, 0.001, 0.5, 0.01),
        (1, 2, 50, 0.001, 0.5, 0.01),
        (2, 2, 50, 0.001, 0.5, 0.01),
        (4, 2, 50, 0.001, 0.5, 0.01),
        (2, 7, 50, 0.001, 0.5, 0.01),
        (4, 16, 32, 0.002, 0.8, 0.005),
    ):
        came = answered(images_per_s(ranks, cores, batch, image_s, gain, exchange_s))
        right = _images_per_s(ranks, cores, batch, image_s, gain, exchange_s)
        expect(_is_number(came) and came > 0, "a number of images/s", came)
        hint = "All ranks' images, divided by computing and exchange of one step."
        if ranks == 1 and np.isclose(1 / came, 1 / right + exchange_s / batch):
            hint = "One rank has nobody to exchange with."
        elif ranks == 1:
            hint = "One rank exchanges nothing; its cores count 1 + gain * (threads - 1)."
        elif np.isclose(came, right / ranks):
            hint = "Each rank brings a batch of its own."
        elif ranks < cores and cores % ranks:
            hint = "Whole threads, rounded down (`//`): the cores that remain stay idle."
        elif ranks > cores:
            hint = "More ranks than cores share them: computing takes ranks / cores times as long."
        case = f"the images/s of {ranks} ranks on {cores} cores, gain {gain}"
        expect_close(came, right, case, hint, 1e-6)
    return (
        "Ranks win where a second thread brings less than a second rank, so with small nets. "
        "More ranks than cores compute no faster; in this model they gain only because one "
        "exchange serves a larger global batch."
    )


def _images_per_s(
    ranks: int, cores: int, batch: int, image_s: float, gain: float, exchange_s: float
) -> float:
    # how many cores' worth of work a rank gets done
    worth = 1 + gain * (cores // ranks - 1) if ranks <= cores else cores / ranks
    step_s = batch * image_s / worth
    if ranks > 1:
        step_s += exchange_s
    return ranks * batch / step_s


def exercise_51_4(named: Any, distinct: Callable[..., Any], comment: Any) -> str:
    """Check what is wrong with the workshop's solution.

    Args:
        named: the mistakes, by the detector's names.
        distinct: called with the images there are, those that each rank draws, and the ranks;
            returns how many different images are seen by at least one rank, on average.
        comment: the letter of what the comment on the steps should say.

    Returns:
        str: what it means.
    """
    names = isinstance(named, set | frozenset | list | tuple)
    expect(names, "a set of names out of `audit.KINDS`", named)
    found = {str(name).strip() for name in named}
    hint = "Who draws from what? And which optimizer is it, and what is its rule for the rate?"
    if "no broadcast" in found:
        hint = "Look for `BroadcastGlobalVariablesHook`: the weights are sent."
    elif "same order" in found:
        hint = "Each rank shuffles with a seed of its own: the orders differ."
    elif "checkpoints" in found:
        hint = "`checkpoint_dir` is None on all ranks but 0."
    elif WORKSHOP - found == {"overlap"}:
        hint = "`next_batch` knows nothing of ranks: every rank draws from the whole set."
    elif WORKSHOP - found == {"learning rate"}:
        hint = "The rate is multiplied by the ranks, and the optimizer is Adam."
    exact = WORKSHOP <= found <= WORKSHOP | ALLOWED_WITH
    expect(exact, "both mistakes of the code, and no other", sorted(found), hint)
    expect_function(distinct)
    for images, drawn, ranks in ((55_000, 50_000, 1), (55_000, 12_500, 4), (100, 50, 2)):
        came = answered(distinct(images, drawn, ranks))
        right = images * (1 - (1 - drawn / images) ** ranks)
        hint = "One rank misses an image with 1 - drawn / images, all ranks with its power."
        if np.isclose(came, drawn * ranks):
            hint = "Some images are drawn by several ranks; count each once."
        elif np.isclose(came, images - right):
            hint = "That many are seen by nobody; asked is how many are seen."
        case = f"the images seen, {ranks} ranks drawing {drawn} of {images}"
        expect_close(came, right, case, hint, 1e-4)  # rounded to a whole image is right, too
    letter = str(comment).strip().upper()
    hint = "What makes a step of 4 ranks worth 4 steps of one process?"
    if letter == "A":
        hint = "Then a training with a small rate would need no fewer steps on 4 ranks."
    expect(letter == "B", "the letter of the right comment", comment, hint)
    lost = 1 - (1 - (1 - 12_500 / 55_000) ** 4) / (50_000 / 55_000)
    return (
        f"4 ranks that draw 12 500 images each see {lost:.0%} fewer different ones than one "
        "process that draws 50 000, and nothing in the output says so."
    )


def exercise_51_5(teams: Callable[..., Any], cluster: Any) -> str:
    """Check means within process sets, on real ranks.

    Args:
        teams: called with Horovod, the sets of even and of odd ranks, and this rank's array;
            returns the mean over its own set and the mean over all ranks.
        cluster: the learner's cluster, of 3 ranks at least.

    Returns:
        str: what it means.
    """
    expect_function(teams)
    hint = "With fewer, a set has a single rank, and nothing shows."
    expect(cluster.ranks >= 3, "a cluster of at least 3 ranks", f"{cluster.ranks}", hint)
    if _is_empty(teams):
        raise NotAnswered  # before ranks are started for it
    arrays = np.random.default_rng(51).normal(size=(cluster.ranks, 2, 3)).astype("float32")
    came = on_ranks.run(cluster, _in_teams, teams, arrays)
    for rank, each in enumerate(came):
        each = answered(each)
        pair = isinstance(each, tuple | list) and len(each) == 2
        expect(pair, "two arrays: the mean of the set, and of all", each)
        own, everyone = arrays[rank % 2 :: 2].mean(0), arrays.mean(0)
        hint = "`hvd.allreduce(..., process_set=...)`: the set that this rank belongs to."
        if np.shape(each[0]) == own.shape and np.allclose(each[0], everyone, atol=1e-5):
            hint = "That is the mean of all ranks: name the set in `process_set=`."
        elif np.shape(each[0]) == own.shape and np.allclose(
            each[0], arrays[rank % 2 :: 2].sum(0), atol=1e-5
        ):
            hint = "That is the sum: divide it, or leave out `op=hvd.Sum`."
        expect_close(each[0], own, f"the mean of rank {rank}'s set", hint, 1e-4)
        hint = "The sets may differ in size: a mean of their means is not the mean of all."
        expect_close(each[1], everyone, f"the mean of all ranks, on rank {rank}", hint, 1e-4)
    return "Each set exchanges by itself: the others need not take part, nor wait."


def _is_number(value: Any) -> bool:
    """Tell whether a value is one number, also one of NumPy's or TensorFlow's."""
    try:
        array = np.asarray(value)
    except Exception:
        return False
    return array.shape == () and array.dtype.kind in "iuf"


def _is_empty(teams: Callable[..., Any]) -> bool:
    try:
        return teams(None, None, None, None) is Ellipsis
    except Exception:
        return False  # it does something with its arguments


def _in_teams(teams: Callable[..., Any], arrays: np.ndarray) -> Any:
    """Call the learner's function with the sets of even and odd ranks, on every rank."""
    import horovod.tensorflow as hvd
    import mpi4py.MPI  # noqa: F401  MPI then outlives Horovod

    hvd.shutdown()
    ranks = range(len(arrays))
    even, odd = (hvd.ProcessSet(list(ranks[first::2])) for first in (0, 1))
    hvd.init(process_sets=[even, odd])
    came = teams(hvd, even, odd, arrays[hvd.rank()])
    if isinstance(came, tuple | list):
        came = tuple(np.asarray(each) for each in came)
    return came
