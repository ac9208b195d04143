"""Diagrams of ranks: which processes there are, who has what, who waits, who runs where."""

from dlcourse.diagrams.affinity import affinity
from dlcourse.diagrams.collectives import collective
from dlcourse.diagrams.differences import Difference, difference
from dlcourse.diagrams.explorable import explore
from dlcourse.diagrams.host_copies import host_copies
from dlcourse.diagrams.pipeline import pipeline
from dlcourse.diagrams.ranks import exchange, processes, timelines
from dlcourse.diagrams.sequences import dependencies, sequences
from dlcourse.diagrams.storage import file_system, striping

__all__ = [
    "Difference",
    "affinity",
    "collective",
    "dependencies",
    "difference",
    "exchange",
    "explore",
    "file_system",
    "host_copies",
    "pipeline",
    "processes",
    "sequences",
    "striping",
    "timelines",
]
