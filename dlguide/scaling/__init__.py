"""What a cluster can do, by arithmetic: messages, storages, what a training asks of them."""

from dlguide.scaling import costs, demand, peers, placement, predict, reading, staging, storage

__all__ = ["costs", "demand", "peers", "placement", "predict", "reading", "staging", "storage"]
