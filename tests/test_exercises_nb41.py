"""Notebook 41's checks tick what is right and say which usual mistake was made."""

import numpy as np
import pytest

from dlguide import exercises
from dlguide.training.stage_line import Stage, seconds_per_sample


def speed(read_s, decode_s, train_s, threads, prefetch, cores):
    if not prefetch:
        return 1 / (read_s + decode_s / threads + train_s)
    return 1 / max(read_s, decode_s / threads, train_s, (decode_s + train_s) / cores)


def mixed(sample, per_class, buffer, batch):
    return max(0, sample - buffer + 1), min(batch, -(-(batch + buffer - 1) // per_class))


SYMPTOMS = ("same crops", "never seen", "last step", "prefetch", "memory", "two epochs")
CAUSES = dict(zip(SYMPTOMS, "BAEFCD", strict=True))


def pipeline(rank, ranks, samples, batch, seed, epoch, faults=()):
    import tensorflow as tf

    numbers = tf.data.Dataset.range(samples)
    buffer = 5 if "small buffer" in faults else samples
    seed = seed if "same order" in faults else 1000 * seed + epoch
    if "one seed" in faults:
        seed = epoch
    if "unseeded" in faults:
        seed = None
    if "each its own" in faults:
        seed = seed + rank
    numbers = numbers.shuffle(buffer, seed=seed)
    if "shard" in faults:
        return numbers.shard(ranks, rank).batch(batch)
    if "rest dropped" in faults:
        return numbers.shard(ranks, rank).batch(batch, drop_remainder=True)
    if "repeat" in faults:
        numbers = numbers.repeat()
    numbers = numbers.batch(batch * ranks)
    return numbers if "all of it" in faults else numbers.map(lambda part: part[rank::ranks])


def with_faults(*faults):
    return lambda *arguments: pipeline(*arguments, faults=faults)


RIGHT = {"41-1": speed, "41-2": mixed, "41-3": CAUSES, "41-4": pipeline}
EMPTY = {"41-3": [None, dict.fromkeys(SYMPTOMS, ...)]}
WRONG = {
    "one after the other": (
        "41-1",
        lambda r, d, t, k, prefetch, cores: speed(r, d, t, k, False, cores),
        "the slowest alone counts",
    ),
    "beside without prefetch": (
        "41-1",
        lambda r, d, t, k, prefetch, cores: speed(r, d, t, k, True, cores),
        "one after the other",
    ),
    "cores forgotten": ("41-1", lambda *a: speed(*a[:5], 1000), "must share the cores"),
    "seconds": ("41-1", lambda *a: 1 / speed(*a), "1 / seconds"),
    "threads forgotten": ("41-1", lambda r, d, t, k, p, c: speed(r, d, t, 1, p, c), "slowest"),
    "place below 0": ("41-2", lambda i, c, b, n: (i - b + 1, mixed(i, c, b, n)[1]), "below 0"),
    "place too late": (
        "41-2",
        lambda i, c, b, n: (max(0, i - b), mixed(i, c, b, n)[1]),
        "at place",
    ),
    "buffer alone": ("41-2", lambda i, c, b, n: (mixed(i, c, b, n)[0], -(-b // c)), "last sample"),
    "more than a batch": (
        "41-2",
        lambda i, c, b, n: (mixed(i, c, b, n)[0], -(-(b + n - 1) // c)),
        "more classes than samples",
    ),
    "one number": ("41-2", lambda *a: 3, "two numbers"),
    "cache for shard": ("41-3", CAUSES | {"never seen": "B"}, "the same list"),
    "crops": ("41-3", CAUSES | {"same crops": "D"}, "one random crop"),
    "prefetch": ("41-3", CAUSES | {"prefetch": "c"}, "a core"),
    "no letter": ("41-3", CAUSES | {"memory": 3}, "letter"),
    "unseeded": ("41-4", with_faults("unseeded"), "the same seed everywhere"),
    "own seed": ("41-4", with_faults("each its own"), "the same seed everywhere"),
    "everything": ("41-4", with_faults("all of it"), "at most 10"),
    "shard first": ("41-4", with_faults("shard"), "global batches"),
    "rest dropped": ("41-4", with_faults("rest dropped"), "rest dropped"),
    "same order each epoch": ("41-4", with_faults("same order"), "the epoch take part"),
    "one order for all seeds": ("41-4", with_faults("one seed"), "the run's seed"),
    "small buffer": ("41-4", with_faults("small buffer"), "holds all samples"),
    "without end": ("41-4", with_faults("repeat"), "No `repeat`"),
    "a list": ("41-4", lambda *a: [[1, 2]], "tf.data.Dataset"),
}


def test_oracle_of_speed_agrees_with_the_line_of_the_package():
    def line(prefetch):
        walls = (("read", 3e-3, 0.0), ("decode", 2e-3, 4e-3), ("train", 2.5e-3, 2.5e-3))
        return [Stage(*one, worker * prefetch) for worker, one in enumerate(walls)]

    for prefetch, cores in ((True, 9), (True, 2), (False, 9)):
        predicted = 1 / seconds_per_sample(line(prefetch), cores)
        assert speed(3e-3, 4e-3, 2.5e-3, 2, prefetch, cores) == pytest.approx(predicted)


@pytest.mark.parametrize(("per_class", "buffer", "batch"), [(10, 5, 4), (3, 10, 6), (2, 1, 3)])
def test_oracle_of_the_buffer_agrees_with_a_simulated_buffer(per_class, buffer, batch):
    samples, random = 60, np.random.default_rng(0)
    earliest = np.full(samples, samples)
    classes = set()
    for _ in range(4000):
        held, came = list(range(buffer)), []
        for following in range(buffer, samples + buffer):
            came.append(held.pop(random.integers(len(held))))
            held += [following] * (following < samples)
        np.minimum.at(earliest, came, np.arange(samples))
        classes.add(len({number // per_class for number in came[:batch]}))
    assert earliest[:20].tolist() == [mixed(i, per_class, buffer, batch)[0] for i in range(20)]
    assert max(classes) == mixed(0, per_class, buffer, batch)[1]


def equal_steps(comm, mine, batch, way="largest"):
    from mpi4py import MPI

    steps = -(-len(mine) // batch)
    if way == "largest":
        steps = comm.allreduce(steps, op=MPI.MAX)
    elif way == "smallest":
        steps = comm.allreduce(steps, op=MPI.MIN)
    elif way == "sum":
        steps = comm.allreduce(steps)
    return [list(mine[s * batch : (s + 1) * batch]) for s in range(steps)]


def test_equal_steps_are_ticked(cluster, capsys):
    ticked = exercises.check("41-5", equal_steps, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("way", "hint"),
    [("own", "Ask the others"), ("smallest", "shortest rank"), ("sum", "Round up")],
)
def test_unequal_or_lost_steps_get_their_hint_on_more_than_one_rank(way, hint, cluster, capsys):
    answer = lambda comm, mine, batch: equal_steps(comm, mine, batch, way)  # noqa: E731
    ticked = exercises.check("41-5", answer, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1:
        assert ticked, out
        assert "try it on two" in out
    else:
        assert not ticked
        assert hint in out


def test_no_batches_are_wrong_or_not_answered(cluster, capsys):
    assert not exercises.check("41-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
    assert not exercises.check("41-5", lambda comm, mine, batch: mine, cluster)
    assert "a list of lists" in capsys.readouterr().out
