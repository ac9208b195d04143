"""Data sets and who reads which sample: `dlguide.data.datasets`."""

from dlguide.data import datasets

__all__ = ["datasets"]
