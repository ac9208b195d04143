"""Notebook 52's checks tick what is right and say which usual mistake was made."""

import json
import warnings

import numpy as np
import pytest

from dlguide import exercises


def samples_of(worker, workers, samples, batch):
    part = batch // workers
    begins = range(worker * part, samples, batch)
    return [list(range(begin, begin + part)) for begin in begins]


def for_a_sum(losses, batch):
    return np.sum(losses) / batch


def for_a_mean(losses, batch, ranks):
    return ranks * np.sum(losses) / batch


def tf_config(hosts, per_host, port, index):
    workers = [f"{host}:{port + each}" for host in hosts for each in range(per_host)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def edited(edit):
    def wrong(*arguments):
        config = json.loads(tf_config(*arguments))
        edit(config, arguments)
        return json.dumps(config)

    return wrong


CAUSES = dict(
    zip(("rate", "twice", "nan", "startup", "ten seconds", "one device"), "DAFCEB", strict=True)
)
RIGHT = {"52-1": samples_of, "52-3": tf_config, "52-4": CAUSES}
EMPTY = {"52-4": [dict.fromkeys(CAUSES, ...)]}
WRONG = {
    "every other sample": (
        "52-1",
        lambda w, p, n, b: np.arange(n)[w::p].reshape(-1, b // p).tolist(),
        "Consecutive samples stay together",
    ),
    "a block of its own": (
        "52-1",
        lambda w, p, n, b: np.split(np.arange(n), p)[w].reshape(-1, b // p).tolist(),
        "not the other way",
    ),
    "everything": (
        "52-1",
        lambda w, p, n, b: np.arange(n).reshape(-1, b).tolist(),
        "one part only",
    ),
    "as with OFF": (
        "52-1",
        lambda w, p, n, b: np.arange(n).reshape(-1, b // p).tolist() if p > 1 else [],
        "samples / batch steps",
    ),
    "one step too few": ("52-1", lambda *a: samples_of(*a)[:-1], "samples / batch steps"),
    "one flat list": ("52-1", lambda w, p, n, b: list(range(n)), "One list for each step"),
    "no text": ("52-3", lambda *a: json.loads(tf_config(*a)), "use `json.dumps`"),
    "single quotes": ("52-3", lambda *a: str(json.loads(tf_config(*a))), "double quotes"),
    "index of the host": (
        "52-3",
        edited(lambda config, a: config["task"].update(index=a[3] // a[1])),
        "over all hosts",
    ),
    "index as text": (
        "52-3",
        edited(lambda config, a: config["task"].update(index=str(a[3]))),
        "a number, no text",
    ),
    "one worker a host": (
        "52-3",
        edited(lambda config, a: config["cluster"].update(worker=[f"{h}:{a[2]}" for h in a[0]])),
        "all workers of all hosts",
    ),
    "hosts in turn": (
        "52-3",
        edited(lambda config, a: config["cluster"]["worker"].sort(key=lambda w: w[::-1])),
        "host after host",
    ),
    **{
        f"{symptom} taken for another": ("52-4", {**CAUSES, symptom: letter}, hint)
        for symptom, letter, hint in (
            ("rate", "A", "8 means"),
            ("twice", "F", "leave samples"),
            ("nan", "D", "no samples"),
            ("startup", "B", "first operation"),
            ("ten seconds", "C", "heart"),
            ("one device", "E", "ignores the wish"),
        )
    },
    "no letter": ("52-4", {**CAUSES, "nan": "G"}, "Each letter fits once"),
}


def test_right_losses_are_ticked(capsys):
    assert exercises.check("52-2", for_a_sum, for_a_mean), capsys.readouterr().out


def test_losses_in_float32_are_ticked(capsys):
    single = np.float32
    summed = lambda losses, batch: single(for_a_sum(single(losses), batch))  # noqa: E731
    averaged = lambda *given: single(for_a_mean(single(given[0]), *given[1:]))  # noqa: E731
    assert exercises.check("52-2", summed, averaged), capsys.readouterr().out


def mean(losses, batch, ranks=1):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.mean(losses)


@pytest.mark.parametrize(
    ("summed", "averaged", "hint"),
    [
        (mean, for_a_mean, "then the sum is too large"),
        (for_a_sum, mean, "equal parts only"),
        (for_a_sum, lambda losses, batch, ranks: for_a_sum(losses, batch), "what undoes it"),
        (lambda losses, batch: np.sum(losses), for_a_mean, "count 1 / batch"),
        (
            lambda losses, batch: for_a_sum(losses, batch) if len(losses) else np.nan,
            for_a_mean,
            "not a number",
        ),
        (3.0, for_a_mean, "Write it with `def`"),
        (lambda losses, batch: losses / batch, for_a_mean, "not one for each sample"),
        (for_a_sum, lambda losses, batch, ranks: None, "one number"),
        (lambda losses, batch: "a loss", for_a_mean, "one number"),
    ],
)
def test_wrong_loss_gets_its_hint(summed, averaged, hint, capsys):
    assert not exercises.check("52-2", summed, averaged)
    assert hint in capsys.readouterr().out


def test_empty_losses_are_not_answered_yet(capsys):
    assert not exercises.check("52-2", lambda *a: ..., lambda *a: ...)
    assert "not answered yet" in capsys.readouterr().out


def test_scaled_losses_sum_to_the_mean_over_the_global_batch():
    parts = [np.array([1.0, 2.0, 6.0]), np.array([]), np.array([3.0])]
    assert sum(for_a_sum(part, 4) for part in parts) == 3.0
    assert np.mean([for_a_mean(part, 4, 3) for part in parts]) == 3.0


def global_mean(comm, rows):
    return comm.allreduce(rows.sum(axis=0)) / comm.allreduce(len(rows))


def mean_of_means(comm, rows):
    return comm.allreduce(rows.mean(axis=0) if len(rows) else np.zeros(4)) / comm.size


def mean_with_nan(comm, rows):
    own = rows.mean(axis=0) if len(rows) else np.full(4, np.nan)
    return comm.allreduce(len(rows) * own) / comm.allreduce(len(rows))


def own_mean(comm, rows):
    return rows.mean(axis=0) if len(rows) else np.zeros(4)


def test_right_mean_is_ticked_on_any_number_of_ranks(cluster, capsys):
    assert exercises.check("52-5", global_mean, cluster), capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (mean_of_means, "counts the samples of a small part more"),
        (mean_with_nan, "not a number"),
        (own_mean, "others' samples are missing"),
    ],
)
def test_wrong_mean_gets_its_hint_on_more_than_one_rank(wrong, hint, cluster, capsys):
    if cluster.ranks == 1:
        assert exercises.check("52-5", wrong, cluster)
        assert "try it on two" in capsys.readouterr().out
    else:
        assert not exercises.check("52-5", wrong, cluster)
        assert hint in capsys.readouterr().out


def test_sum_without_division_gets_its_hint(cluster, capsys):
    assert not exercises.check("52-5", lambda comm, rows: comm.allreduce(rows.sum(0)), cluster)
    assert "How many samples" in capsys.readouterr().out


def test_empty_mean_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("52-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
