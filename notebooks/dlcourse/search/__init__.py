"""Hyper-parameter search: many trainings side by side on the ranks of a cluster.

space = {"rate": search.LogUniform(1e-3, 1.0), "width": search.Integer(8, 64)}
found = search.run(objective, space, search.Random(trials=24, epochs=3), cluster)
print(found.best())
"""

from dlcourse.search.methods import TPE, Grid, Halving, Proposal, Random, Trial
from dlcourse.search.running import SearchResult, run
from dlcourse.search.spaces import Choice, Integer, LogUniform, Uniform

__all__ = [
    "TPE",
    "Choice",
    "Grid",
    "Halving",
    "Integer",
    "LogUniform",
    "Proposal",
    "Random",
    "SearchResult",
    "Trial",
    "Uniform",
    "run",
]
