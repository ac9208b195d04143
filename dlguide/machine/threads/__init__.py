"""How ranks share the cores of a machine: plan, apply before TensorFlow starts, tune, explain."""

from dlguide.machine.threads.applying import ThreadState, applied, apply, restore
from dlguide.machine.threads.candidates import Candidate, candidates, default
from dlguide.machine.threads.explaining import Explanation, explain
from dlguide.machine.threads.planning import ThreadPlan, plan
from dlguide.machine.threads.tuning import Row, TuneResult, tune

__all__ = [
    "Candidate",
    "Explanation",
    "Row",
    "ThreadPlan",
    "ThreadState",
    "TuneResult",
    "applied",
    "apply",
    "candidates",
    "default",
    "explain",
    "plan",
    "restore",
    "tune",
]
