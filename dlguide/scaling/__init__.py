"""What a cluster can do: costs of messages, storage, throughput predicted, training simulated."""

from dlguide.scaling import costs, predict, simulate, step, storage

__all__ = ["costs", "predict", "simulate", "step", "storage"]
