"""Checks of the exercises of notebook 52: shards, scaled losses, TF_CONFIG, symptoms, a sum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

CAUSES = {
    "rate": ("D", "What is a sum over 8 workers of 8 means?"),
    "twice": ("A", "Does anybody leave samples to the other?"),
    "nan": ("F", "0/0: who has no samples at the end?"),
    "startup": ("C", "What must be made before the first operation?"),
    "ten seconds": ("E", "Whose heart does not beat any more?"),
    "one device": ("B", "Whose interface ignores the wish without a word?"),
}


def exercise_52_1(samples_of: Callable[..., Any]) -> str:
    """Check the samples of a worker under the policy DATA.

    Args:
        samples_of: called with the worker, the workers, the samples and the global batch; returns
            a list of numbers for each step.

    Returns:
        str: what it means.
    """
    expect_function(samples_of)
    for workers, samples, batch in ((2, 12, 4), (1, 6, 3), (3, 36, 9), (4, 64, 16)):
        for worker in range(workers):
            came = answered(samples_of(worker, workers, samples, batch))
            case = f"worker {worker} of {workers}, {samples} samples, batch {batch}"
            try:
                rows = [[int(number) for number in step] for step in came]
            except (TypeError, ValueError):
                expect(False, f"a list of lists for {case}", came, "One list for each step.")
            hint = "An epoch has samples / batch steps, for every worker."
            expect(len(rows) == samples // batch, f"the steps of {case}", len(rows), hint)
            whole = np.arange(samples)
            hint = "Which global batch belongs to step 0? Of it the worker keeps its part."
            if rows == whole.reshape(-1, workers)[:, worker].reshape(len(rows), -1).tolist():
                hint = "Consecutive samples stay together: the batch is cut into pieces."
            elif sum(map(len, rows)) == samples:
                hint = "Each worker keeps one part only of every batch." if workers > 1 else hint
            elif [number for step in rows for number in step] == np.split(whole, workers)[
                worker
            ].tolist():
                hint = "First into batches, then each batch to the workers; not the other way."
            right = whole.reshape(samples // batch, workers, -1)[:, worker].tolist()
            expect(rows == right, f"the numbers of {case}", rows, hint)
    return "Every step of all workers together is one global batch: as in the serial run."


def exercise_52_2(for_a_sum: Callable[..., Any], for_a_mean: Callable[..., Any]) -> str:
    """Check losses that are scaled for a sum or for a mean over the replicas.

    Args:
        for_a_sum: called with the losses of a replica and the global batch.
        for_a_mean: called with the losses of a rank, the global batch and the ranks.

    Returns:
        str: what it means.
    """
    expect_function(for_a_sum)
    expect_function(for_a_mean)
    random = np.random.default_rng(52)
    for sizes in ((5, 5), (5, 4), (3,), (4, 0, 2), (1, 8, 2, 2)):
        parts = [random.uniform(1.0, 2.0, size) for size in sizes]
        whole, ranks = np.concatenate(parts), len(parts)
        for part in parts:
            share = part.sum() / len(whole)
            case = f"{len(part)} of {len(whole)} samples"
            came = _one_number(for_a_sum(part, len(whole)), case)
            hint = "Summed over the replicas, each sample must count 1 / batch."
            if len(part) == 0:
                hint = "The mean over nothing is not a number; what is the sum over nothing?"
            elif np.isclose(came, part.mean()):
                hint = "The mean over this replica: then the sum is too large."
            expect_close(came, share, f"the loss for a sum, {case}", hint, 1e-5)
            came = _one_number(for_a_mean(part, len(whole), ranks), case)
            hint = "Who takes the mean divides by the ranks: what undoes it?"
            if len(part) and np.isclose(came, part.mean()):
                hint = "A mean of means is right for equal parts only."
            expect_close(came, share * ranks, f"the loss for a mean, {case}", hint, 1e-5)
    return (
        "With equal parts, the second is the mean over the rank's own batch: what Horovod expects."
    )


def _one_number(came: Any, case: str) -> float:
    hint = "Return the sum of the losses, scaled: one number, not one for each sample."
    try:
        array = np.asarray(answered(came), float)
    except (TypeError, ValueError):
        expect(False, f"one number for {case}", came, hint)
    expect(came is not None and array.shape == (), f"one number for {case}", came, hint)
    return float(array)


def exercise_52_3(tf_config: Callable[..., Any]) -> str:
    """Check the text of TF_CONFIG.

    Args:
        tf_config: called with the hosts, the workers of a host, the first port and the index of
            the worker; returns the text.

    Returns:
        str: what it means.
    """
    expect_function(tf_config)
    for hosts, per_host in ((["a"], 2), (["node1", "node2"], 1), (["x", "y", "z"], 2)):
        addresses = [f"{host}:{4000 + each}" for host in hosts for each in range(per_host)]
        for index in range(len(addresses)):
            came = answered(tf_config(hosts, per_host, 4000, index))
            hint = "TF_CONFIG is a variable: use `json.dumps`."
            expect(isinstance(came, str), "a text", came, hint)
            try:
                found = json.loads(came)
            except ValueError:
                expect(False, "JSON", came, "JSON has double quotes: use `json.dumps`.")
            whole = isinstance(found, Mapping) and {"cluster", "task"} <= set(found)
            expect(whole, 'an object with "cluster" and "task"', came)
            task = {"type": "worker", "index": index}
            hint = f"This is worker {index} over all hosts, counted from 0; a number, no text."
            expect(found["task"] == task, '"task" with type and index', found["task"], hint)
            hint = "Every worker gets the same list: all workers of all hosts, host after host."
            right = found["cluster"] == {"worker": addresses}
            expect(right, f"the addresses for {hosts}, {per_host} each", found["cluster"], hint)
    return "All that differs between two workers is the index; mpiexec does this for you."


def exercise_52_4(causes: Mapping[str, str]) -> str:
    """Check which cause each symptom has.

    Args:
        causes: for each symptom a letter.

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "Two of the six say nothing by themselves: A and B. Count samples, look at devices."


def exercise_52_5(global_mean: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks the mean over all samples of unequal parts.

    Args:
        global_mean: called with the communicator and this rank's gradients, a row for each of its
            samples; returns the mean over the samples of all ranks.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(global_mean)
    ranks = cluster.ranks
    random = np.random.default_rng(53)
    for empty in ((), (ranks - 1,)):
        sizes = [0 if rank in empty and ranks > 1 else 2 + 3 * rank for rank in range(ranks)]
        parts = [random.normal(1.0 + rank, 1.0, (size, 4)) for rank, size in enumerate(sizes)]
        whole = np.concatenate(parts)
        right = whole.mean(axis=0)
        came = results(cluster, global_mean, [(part,) for part in parts])
        for rank, each in enumerate(came):
            case = f"rank {rank}, parts of {sizes} samples"
            try:
                each = np.asarray(each, float)
            except (TypeError, ValueError):
                expect(False, f"an array on {case}", each, "Return the mean on every rank.")
            expect(each.shape == (4,), f"4 numbers on {case}", f"shape {each.shape}")
            hint = "The mean over nothing is not a number, and a sum carries it to everybody."
            expect(not np.isnan(each).any(), f"numbers on {case}", each, hint)
            hint = "Sum the rows of all ranks, sum the counts, then divide."
            with np.errstate(all="ignore"):
                means = np.array([part.mean(axis=0) for part in parts if len(part)])
            if np.allclose(each, whole.sum(axis=0)):
                hint = "The sum is right. How many samples are there on all ranks?"
            elif ranks > 1 and np.allclose(each, means.sum(axis=0) / ranks):
                hint = "A mean of means counts the samples of a small part more."
            elif ranks > 1 and len(parts[rank]) and np.allclose(each, parts[rank].mean(axis=0)):
                hint = "That is this rank's mean: the others' samples are missing."
            expect_close(each, right, f"the mean of all {len(whole)} samples on {case}", hint, 1e-9)
    if ranks == 1:
        return "One rank has nobody to sum with: try it on two."
    return "Two sums, and no part is too small: not even an empty one."
