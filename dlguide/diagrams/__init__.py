"""Diagrams of ranks: which processes there are, who has what, who waits, who runs where."""

from dlguide.diagrams.affinity import affinity
from dlguide.diagrams.collectives import collective
from dlguide.diagrams.differences import Difference, difference
from dlguide.diagrams.explorable import explore
from dlguide.diagrams.host_copies import host_copies
from dlguide.diagrams.pipeline import pipeline
from dlguide.diagrams.ranks import exchange, processes, timelines
from dlguide.diagrams.sequences import dependencies, sequences
from dlguide.diagrams.storage import file_system, striping

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
