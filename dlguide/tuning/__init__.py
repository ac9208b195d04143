"""Which division of this machine's cores trains a net fastest: measured on real ranks."""

from dlguide.tuning.search import Tuned, tune
from dlguide.tuning.work import Work

__all__ = ["Tuned", "Work", "tune"]
