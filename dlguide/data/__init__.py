"""Data sets, the formats they are kept in, the pipelines that read them, and who reads what."""

from dlguide.data import datasets, formats, input_pipeline

__all__ = ["datasets", "formats", "input_pipeline"]
