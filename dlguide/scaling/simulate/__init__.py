"""Training on up to ten thousand workers, event by event: who waits, for whom, and how long."""

from dlguide.scaling.simulate.lockstep import local, synchronous
from dlguide.scaling.simulate.serving import asynchronous
from dlguide.scaling.simulate.workers import Simulated, Workers

__all__ = ["Simulated", "Workers", "asynchronous", "local", "synchronous"]
