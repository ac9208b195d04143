"""What is easily got wrong when one part is used alone: refused before anything starts."""

from __future__ import annotations

import pytest

from dlguide.cluster import batch
from dlguide.data import input_pipeline
from dlguide.machine import threads
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
