"""Throughput at many workers, predicted from throughput measured at a few."""

from dlguide.scaling.predict.fitting import Fit, Prediction, fit
from dlguide.scaling.predict.held_out import Held, held_out, published_series
from dlguide.scaling.predict.terms import TERMS, Term

__all__ = [
    "TERMS",
    "Fit",
    "Held",
    "Prediction",
    "Term",
    "fit",
    "held_out",
    "published_series",
]
