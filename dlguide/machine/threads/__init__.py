"""How ranks share the cores of a machine: plan it, then apply it before TensorFlow starts."""

from dlguide.machine.threads.applying import ThreadState, applied, apply, restore
from dlguide.machine.threads.planning import ThreadPlan, plan

__all__ = ["ThreadPlan", "ThreadState", "applied", "apply", "plan", "restore"]
