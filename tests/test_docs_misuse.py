"""What is easily got wrong when one part is used alone: refused before anything starts."""

from __future__ import annotations

import numpy as np
import pytest

from dlguide.cluster import batch
from dlguide.data import input_pipeline
from dlguide.machine import imagine, threads
from dlguide.scaling import predict
from dlguide.training import schedules

FITTED = predict.fit({1: 100.0, 2: 190.0}, sets=100)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: threads.plan(2), r"`machine` must be a Machine or None, got 2.*plan\(ranks=2\)"),
        (lambda: FITTED.predict(1024), r"`workers` must be several numbers, got 1024.*\[1024\]"),
        (
            lambda: schedules.StepDecay(0.1, 90, (30, 60)),
            r"`boundaries` must be epochs, such as \(30, 60, 80\), got 90",
        ),
        (
            lambda: batch.Job("a.py", arguments="--epochs 3"),
            "`arguments` must be a tuple of texts, got '--epochs 3'",
        ),
        (lambda: batch.Job("a.py", stage="data.tar"), "`stage` must be a tuple of texts"),
        (lambda: batch.Profile(modules="gcc"), "`modules` must be a tuple of texts, got 'gcc'"),
        (lambda: batch.Profile(setup="ulimit -s"), "`setup` must be a tuple of texts"),
        (
            lambda: input_pipeline.Pipeline([("a.png", 0)] * 4, 2, augment=input_pipeline.Flip()),
            r"`augment` must be a tuple of operations, got Flip.*augment=\(Flip\(\),\)",
        ),
    ],
)
def test_misuse_is_refused_in_words(misuse, message):
    with pytest.raises(ValueError, match=message):
        misuse()


def test_right_use_beside_it_is_accepted():
    assert threads.plan(imagine(1, 2), 2).ranks == 2
    assert len(FITTED.predict(iter([4, 8]))) == 2
    assert schedules.StepDecay(0.1, np.array([30, 60]), 90).epochs == 90
    job = batch.Job("a.py", ["--epochs", "3"], stage=["data.tar"])
    assert "python a.py --epochs 3" in batch.script(job, batch.Profile(modules=["gcc"]))
    files = [("a.png", 0)] * 4
    assert input_pipeline.Pipeline(files, 2, augment=[input_pipeline.Flip()]).batch_per_rank == 2
