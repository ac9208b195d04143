"""The division of this machine's cores that trains a net fastest, measured on real ranks.

`tune` searches for a net of the library; `successive_halving` takes any measurement.
"""

from dlguide.machine.threads import Candidate, candidates, default_candidate
from dlguide.tuning.ranks import TuningTask
from dlguide.tuning.search import (
    CandidateResult,
    HalvingResult,
    TuningResult,
    successive_halving,
    tune,
)

__all__ = [
    "Candidate",
    "CandidateResult",
    "HalvingResult",
    "TuningResult",
    "TuningTask",
    "candidates",
    "default_candidate",
    "successive_halving",
    "tune",
]
