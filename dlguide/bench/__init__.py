"""Benchmarks with equal work on both sides, each step's time kept."""
