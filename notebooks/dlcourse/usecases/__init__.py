"""Worked cases from beginning to end, each on the ranks of a cluster.

Lessons 60, 80, 81 and 83 show them, and `notebooks/programs/` has a program for each.
"""
