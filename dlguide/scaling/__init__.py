"""What a cluster can do: costs of messages and of steps, throughput predicted."""

from dlguide.scaling import costs, predict, step

__all__ = ["costs", "predict", "step"]
