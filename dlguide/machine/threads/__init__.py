"""How ranks share the cores of a machine: plan it, apply it before TensorFlow starts, tune it."""

from dlguide.machine.threads.applying import ThreadState, applied, apply, restore
from dlguide.machine.threads.candidates import Candidate, candidates, default
from dlguide.machine.threads.planning import ThreadPlan, plan
from dlguide.machine.threads.tuning import Row, TuneResult, tune

__all__ = [
    "Candidate",
    "Row",
    "ThreadPlan",
    "ThreadState",
    "TuneResult",
    "applied",
    "apply",
    "candidates",
    "default",
    "plan",
    "restore",
    "tune",
]
