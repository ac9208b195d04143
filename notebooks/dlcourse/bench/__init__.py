"""Benchmarks that one lesson shows: file formats, oneDNN, scaling, streams of inference."""

from dlcourse.bench import io, onednn, scaling, streams

__all__ = ["io", "onednn", "scaling", "streams"]
