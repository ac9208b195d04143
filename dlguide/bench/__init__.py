"""Benchmarks with equal work on both sides, each step's time kept."""

from dlguide.bench import onednn, streams

__all__ = ["onednn", "streams"]
