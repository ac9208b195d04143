"""What goes wrong when a data set is brought here."""

from __future__ import annotations

from dlguide.data.idx import DataError


class TransferError(DataError):
    """A data set could not be brought to its place; the text says why and what to do."""


class HeldError(TransferError):
    """Another process holds a lock; `owner` says which one."""

    def __init__(self, message: str, owner: str) -> None:
        super().__init__(message)
        self.owner = owner


class NoLocksError(TransferError):
    """The file system knows no locks."""
