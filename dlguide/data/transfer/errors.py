"""What goes wrong when a data set is fetched or copied."""

from __future__ import annotations

from dlguide.errors import DataError


class TransferError(DataError):
    """A data set could not be brought to its place; the text says why and what to do."""
