"""Notebook 51's checks tick what is right and say which usual mistake was made.

Tests dlguide.exercises.nb51 and dlguide.exercises.stand_in.
"""

import math
import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.exercises import nb51

pytestmark = pytest.mark.timeout(300)


def start(hvd, init=True, voice=0, own=None):
    if init:
        hvd.init()
    mine = own or slice(hvd.rank(), None, hvd.size())
    return hvd.rank() == voice, mine


def late(hvd):
    speaks = hvd.rank() == 0
    hvd.init()
    return speaks, slice(None)


def never(hvd):
    return True, slice(None)


def by_size(hvd):
    hvd.init()
    return hvd.size() > 0, slice(hvd.rank(), None, hvd.size())


def within_a_host(hvd):
    hvd.init()
    return hvd.local_rank() == 0, slice(hvd.rank(), None, hvd.size())


def shared_on_a_host(hvd):
    hvd.init()
    return hvd.rank() == 0, slice(hvd.local_rank(), None, hvd.local_size())


def plan(steps, batch, rate, ranks):
    own = math.ceil(steps / ranks)
    return {"steps": own, "images": own * batch * ranks, "rate": rate * ranks}


def rate_at(step, rate, ranks, warmup):
    return rate * ranks if step >= warmup else rate * (1 + (ranks - 1) * step / warmup)


def changed(name, change):
    def other(steps, batch, rate, ranks):
        return plan(steps, batch, rate, ranks) | {name: change(steps, batch, rate, ranks)}

    return other


def images_per_s(ranks, cores, batch, image_s, gain, exchange_s, fault=""):
    threads = max(1, cores // ranks)
    if fault == "parts of threads":
        threads = max(1, cores / ranks)
    if fault == "rounded up":
        threads = math.ceil(cores / ranks)
    computing = batch * image_s / (1 + gain * (threads - 1))
    if fault != "cores for all":
        computing *= max(1.0, ranks / cores)
    if fault == "perfect threads":
        computing = batch * image_s * ranks / cores
    exchange = exchange_s if ranks > 1 or fault == "always" else 0.0
    return (1 if fault == "one rank's images" else ranks) * batch / (computing + exchange)


def faulty(fault):
    return lambda *arguments: images_per_s(*arguments, fault=fault)


def distinct(images, drawn, ranks):
    return images * (1 - (1 - drawn / images) ** ranks)


NAMED = {"overlap", "learning rate"}
RIGHT = {"51-1": start, "51-3": images_per_s}
WRONG = {
    "asked before": ("51-1", late, "must be started"),
    "never started": ("51-1", never, "call `hvd.init()`"),
    "rank 1": ("51-1", lambda hvd: start(hvd, voice=1), "count from 0"),
    "all speak": ("51-1", by_size, "the same on all ranks"),
    "whole set": ("51-1", lambda hvd: start(hvd, own=slice(None)), "rank's own number"),
    "one on every host": ("51-1", within_a_host, "on each host anew"),
    "shared on a host": ("51-1", shared_on_a_host, "on all hosts"),
    "parts of threads": ("51-3", faulty("parts of threads"), "rounded down"),
    "rounded up": ("51-3", faulty("rounded up"), "rounded down"),
    "no slice": ("51-1", lambda hvd: (start(hvd)[0], 3), "a slice"),
    "alone exchanges": ("51-3", faulty("always"), "nobody to exchange"),
    "cores for all": ("51-3", faulty("cores for all"), "ranks / cores"),
    "perfect threads": ("51-3", faulty("perfect threads"), "its cores count"),
    "one rank's images": ("51-3", faulty("one rank's images"), "batch of its own"),
    "a text": ("51-3", lambda *arguments: "faster", "a number"),
}
PLANS = {
    "same steps": (changed("steps", lambda s, b, r, p: s), rate_at, "fewer are needed"),
    "rounded down": (changed("steps", lambda s, b, r, p: s // p), rate_at, "round up"),
    "one rank's images": (changed("images", lambda s, b, r, p: s * b), rate_at, "times the ranks"),
    "square root": (changed("rate", lambda s, b, r, p: r * p**0.5), rate_at, "rule for Adam"),
    "same rate": (changed("rate", lambda s, b, r, p: r), rate_at, "SGD's rule"),
    "from nothing": (
        plan,
        lambda t, r, p, w: r * p * min(1.0, t / w) if w else r * p,
        "not with 0",
    ),
    "no return": (plan, lambda t, r, p, w: None, "end in `return`"),
    "words for a rate": (changed("rate", lambda s, b, r, p: "4e-4"), rate_at, "a number"),
    "no images": (changed("images", lambda s, b, r, p: None), rate_at, 'number for "images"'),
    "goes on": (plan, lambda t, r, p, w: r * (1 + (p - 1) * t / (w or 1)), "stays where it is"),
    "at once": (plan, lambda t, r, p, w: r * p, "A straight line"),
}
SOLUTIONS = {
    "broadcast": ({"no broadcast", "overlap"}, distinct, "B", "the weights are sent"),
    "same order": ({"same order", *NAMED}, distinct, "B", "seed of its own"),
    "checkpoints": ({"checkpoints", *NAMED}, distinct, "B", "all ranks but 0"),
    "rate alone": ({"learning rate"}, distinct, "B", "knows nothing of ranks"),
    "data alone": ({"overlap"}, distinct, "B", "the optimizer is Adam"),
    "a guess": ({"seeds"}, distinct, "B", "Who draws"),
    "all drawn": (NAMED, lambda n, d, p: d * p, "B", "count each once"),
    "the unseen": (NAMED, lambda n, d, p: n * (1 - d / n) ** p, "B", "seen by nobody"),
    "as printed": (NAMED, distinct, "A", "no fewer steps"),
    "for time": (NAMED, distinct, "C", "What makes a step"),
}


def test_plan_and_rate_are_ticked(capsys):
    assert exercises.check("51-2", plan, rate_at), capsys.readouterr().out


@pytest.mark.parametrize(("first", "second", "hint"), PLANS.values(), ids=PLANS)
def test_wrong_plan_gets_its_hint(first, second, hint, capsys):
    assert not exercises.check("51-2", first, second)
    assert hint in capsys.readouterr().out


@pytest.mark.parametrize("also", [(), ("missed",)])
def test_mistakes_of_the_workshop_are_ticked(also, capsys):
    assert exercises.check("51-4", {*NAMED, *also}, distinct, "B"), capsys.readouterr().out


@pytest.mark.parametrize(("named", "seen", "comment", "hint"), SOLUTIONS.values(), ids=SOLUTIONS)
def test_wrong_word_on_the_workshop_gets_its_hint(named, seen, comment, hint, capsys):
    assert not exercises.check("51-4", named, seen, comment)
    assert hint in capsys.readouterr().out


def in_float32(step, rate, ranks, warmup):
    return np.float32(rate_at(step, rate, ranks, warmup))


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        ("51-1", (lambda hvd: list(start(hvd)),)),
        ("51-2", (changed("rate", lambda s, b, r, p: np.float32(r) * p), in_float32)),
        ("51-3", (lambda *arguments: np.float32(images_per_s(*arguments)),)),
        ("51-3", (lambda *arguments: np.array(images_per_s(*arguments)),)),
        ("51-4", ([*NAMED], lambda n, d, p: round(distinct(n, d, p)), " b ")),
    ],
)
def test_right_answer_of_another_type_is_ticked(number, answer, capsys):
    assert exercises.check(number, *answer), capsys.readouterr().out


def test_rate_of_one_rank_is_not_taken_for_a_square_root(capsys):
    wrong = changed("rate", lambda s, b, r, p: r * 1.000005)
    assert not exercises.check("51-2", wrong, rate_at)
    assert "Adam" not in capsys.readouterr().out


def test_empty_functions_are_not_answered_yet(capsys):
    empty = lambda *arguments: ...  # noqa: E731  as the notebook gives it
    assert not exercises.check("51-2", empty, empty)
    assert not exercises.check("51-4", NAMED, empty, "B")
    assert capsys.readouterr().out.count("not answered yet") == 2


def teams(hvd, even, odd, array, fault=""):
    mine = even if even.included() else odd
    everyone = hvd.allreduce(array, name="everyone")
    if fault == "all":
        return everyone, everyone
    op = hvd.Sum if fault == "sum" else hvd.Average
    own = hvd.allreduce(array, name="own", op=op, process_set=mine)
    if fault == "mean of means":
        means = hvd.allgather(own[None]).numpy()
        return own, (means[0] + means[1]) / 2
    return own, everyone


def faulty_teams(fault):
    return lambda *arguments: teams(*arguments, fault=fault)


TEAMS = {
    "all": "name the set",
    "sum": "divide it",
    "mean of means": "may differ in size",
}


def test_teams_on_real_ranks(capsys):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with Cluster(ranks=3, oversubscribe=True) as cluster:
            assert exercises.check("51-5", teams, cluster), capsys.readouterr().out
            listed = exercises.check("51-5", lambda *each: list(teams(*each)), cluster)
            assert listed, capsys.readouterr().out
            for fault, hint in TEAMS.items():
                assert not exercises.check("51-5", faulty_teams(fault), cluster), fault
                assert hint in capsys.readouterr().out, fault
            assert not exercises.check("51-5", lambda *arguments: ..., cluster)
            assert "not answered yet" in capsys.readouterr().out
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_one_team_alone_is_refused(capsys):
    class Small:
        ranks = 2

    assert not exercises.check("51-5", teams, Small())
    assert "at least 3 ranks" in capsys.readouterr().out


def test_every_exercise_of_the_module_is_tested():
    there = {name for name in vars(nb51) if name.startswith("exercise_51_")}
    assert there == {f"exercise_51_{number}" for number in range(1, 6)}
