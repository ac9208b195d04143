"""Worked cases from beginning to end, each on the ranks of a cluster."""
