"""Notebook 12's checks tick what is right on 1 to 3 ranks and say which usual mistake was made."""

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises
from dlguide.data.mixtures import Ring


def images(image_nbytes, code, number_nbytes, weights):
    saved = image_nbytes - code * number_nbytes
    return 4 * weights // saved + 1 if saved > 0 else None


def judge(p, q):
    both = p + q
    best = np.where(both > 0, p / np.where(both > 0, both, 1), 0.5)
    value = sum(a * np.log(d) for a, d in zip(p, best, strict=True) if a > 0)
    value += sum(b * np.log(1 - d) for b, d in zip(q, best, strict=True) if b > 0)
    return best, value


def wasserstein(real, fake):
    import tensorflow as tf

    return tf.reduce_mean(fake) - tf.reduce_mean(real), -tf.reduce_mean(fake)


def by_numpy(real, fake):
    return np.mean(fake) - np.mean(real), -np.mean(fake)


def conditioned(samples, labels, classes):
    hot = np.eye(classes, dtype="float32")[labels]
    hot = hot.reshape(len(labels), *[1] * (samples.ndim - 2), classes)
    maps = np.broadcast_to(hot, (*samples.shape[:-1], classes))
    return np.concatenate([samples, maps], axis=-1)


def only_pictures(samples, labels, classes):
    """Forgets that codes are told their label too."""
    return samples if samples.ndim == 2 else conditioned(samples, labels, classes)


def one_pixel(samples, labels, classes):
    maps = np.zeros((*samples.shape[:-1], classes))
    corner = (slice(None), *[0] * (samples.ndim - 2))
    maps[corner] = np.eye(classes)[labels]
    return np.concatenate([samples, maps], axis=-1)


def naive(p, q):
    best = p / (p + q)
    return best, (p * np.log(best) + q * np.log(1 - best)).sum()


RIGHT = {"12-1": images, "12-2": Parts((judge, "b")), "12-3": wasserstein, "12-4": conditioned}
EMPTY = {"12-2": [Parts((lambda p, q: ..., "B")), Parts((judge, ...))]}
WRONG = {
    "codes for nothing": ("12-1", lambda i, c, n, w: -(-4 * w // i), "cost nothing"),
    "no decoder": ("12-1", lambda i, c, n, w: 1, "decoder must be sent"),
    "weights of a byte": ("12-1", lambda i, c, n, w: w // (i - c * n) + 1, "takes 4 bytes"),
    "equally many": ("12-1", lambda i, c, n, w: 4 * w // (i - c * n), "not equally many"),
    "a fraction": ("12-1", lambda i, c, n, w: 4 * w / (i - c * n), "images are whole"),
    "pays for ever": (
        "12-1",
        lambda i, c, n, w: 4 * w // (i - c * n) + 1 if i > c * n else 10**9,
        "return None",
    ),
    "shares of the made ones": (
        "12-2",
        Parts((lambda p, q: (q / (p + q), 0.0), "B")),
        "what share is true",
    ),
    "nobody there": ("12-2", Parts((naive, "B")), "0 / 0"),
    "0 log 0": (
        "12-2",
        Parts((lambda p, q: (judge(p, q)[0], naive(p, q)[1]), "B")),
        "0 log 0",
    ),
    "a loss": (
        "12-2",
        Parts((lambda p, q: (judge(p, q)[0], -judge(p, q)[1]), "B")),
        "never above 0",
    ),
    "true ones only": (
        "12-2",
        Parts((lambda p, q: (judge(p, q)[0], np.sum(p * np.log(judge(p, q)[0] + 1e-300))), "B")),
        "plus mean of log",
    ),
    "D alone": ("12-2", Parts((lambda p, q: judge(p, q)[0], "B")), "two results"),
    "infinite value": ("12-2", Parts((judge, "A")), "a finite number"),
    "judge guesses": ("12-2", Parts((judge, "C")), "right about every sample"),
    "true samples unseen": ("12-2", Parts((judge, "D")), "in no game"),
    "critic the wrong way": (
        "12-3",
        lambda real, fake: (np.mean(real) - np.mean(fake), -np.mean(fake)),
        "true ones must score high",
    ),
    "logarithms": (
        "12-3",
        lambda real, fake: (
            np.mean(np.log1p(np.exp(-real))) + np.mean(np.log1p(np.exp(fake))),
            -np.mean(fake),
        ),
        "no logarithm",
    ),
    "generator the wrong way": (
        "12-3",
        lambda real, fake: (np.mean(fake) - np.mean(real), np.mean(fake)),
        "score high",
    ),
    "outside the graph": ("12-3", by_numpy, "take `tf.reduce_mean`"),
    "not a mean": ("12-3", lambda real, fake: (fake - real[: len(fake)], -fake), "take the mean"),
    "label as a number": (
        "12-4",
        lambda x, y, n: np.concatenate(
            [x, np.broadcast_to(y.reshape(-1, *[1] * (x.ndim - 1)), (*x.shape[:-1], 1))], -1
        ),
        "one constant map for each class",
    ),
    "pictures only": ("12-4", only_pictures, "a vector to a vector"),
    "label in a corner": ("12-4", one_pixel, "at every pixel"),
    "label first": (
        "12-4",
        lambda x, y, n: np.roll(conditioned(x, y, n), n, axis=-1),
        "the sample comes first",
    ),
    "no function": ("12-4", 3.0, "Write it with `def`"),
}


@pytest.mark.parametrize(("number", "answer"), [("12-2", judge), ("12-3", wasserstein)])
def test_list_is_as_good_as_a_tuple(number, answer, capsys):
    why = ["B"] if number == "12-2" else []
    ticked = exercises.check(number, lambda *arguments: list(answer(*arguments)), *why)
    assert ticked, capsys.readouterr().out


def test_losses_by_numpy_cannot_be_played():
    from dlguide.training import adversarial

    game = adversarial.Game(*adversarial.dense_pair(), Ring(modes=8).draw, 16, by_numpy)
    with pytest.raises(NotImplementedError):
        game.play(1)


def test_oracle_of_the_judge_is_not_beaten_by_any_other():
    random = np.random.default_rng(3)
    p, q = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    best, value = judge(p, q)
    for _ in range(50):
        other = np.clip(best + random.normal(0, 0.1, 5), 0.01, 0.99)
        assert (p * np.log(other) + q * np.log(1 - other)).sum() < value


def play(comm, judge, generator, rate, steps, batch, of_judge, of_generator, faults=()):
    d, g = judge, generator
    count = len(steps[0][0]) if "own mean" in faults else 1 if "no mean" in faults else batch
    for rows, codes in steps:
        before = d
        slope = of_judge(d, g, rows, codes)
        d = d - rate * (slope if "own judge" in faults else comm.allreduce(slope)) / count
        slope = of_generator(before if "early" in faults else d, g, codes)
        g = g - rate * (slope if "own generator" in faults else comm.allreduce(slope)) / count
    return d, g


def with_faults(*faults):
    return lambda *arguments: play(*arguments, faults=faults)


def test_game_without_faults_is_ticked(cluster, capsys):
    ticked = exercises.check("12-5", play, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint", "alone"),
    [
        ("own judge", "judges go separate ways", True),
        ("own generator", "generators go separate ways", True),
        ("own mean", "too long", True),
        ("no mean", "too long", False),
        ("early", "after its step", False),
    ],
)
def test_fault_of_a_game_is_named(fault, hint, alone, cluster, capsys):
    ticked = exercises.check("12-5", with_faults(fault), cluster)
    out = capsys.readouterr().out
    if alone and cluster.ranks == 1:
        assert ticked
        assert "one rank alone hides" in out
    else:
        assert not ticked
        assert hint in out


def test_game_that_forgets_to_return_is_wrong_or_not_answered(cluster, capsys):
    assert not exercises.check("12-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
    assert not exercises.check("12-5", lambda *arguments: 1.0, cluster)
    assert "two results" in capsys.readouterr().out
