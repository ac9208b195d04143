"""A stand-in for Horovod, for checks that need no processes."""

from __future__ import annotations

PER_HOST = 2  # ranks of a host


class NotStarted(Exception):
    """Horovod was asked before `init`."""


class Horovod:
    """What a program asks Horovod for at its begin, for a rank that is no process.

    Two ranks stand on each host, so that who counts within a host counts otherwise.

    Args:
        rank: which rank it speaks for (index).
        ranks: all of them (count).
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks, self.started = rank, ranks, False

    def init(self) -> None:
        """Let the processes meet; what follows may be asked from then on."""
        self.started = True

    def rank(self) -> int:
        """Give the number of this rank.

        Returns:
            int: from 0.

        Raises:
            NotStarted: before `init`; so do all that follow.
        """
        return self._told(self._rank)

    def size(self) -> int:
        """Give the number of all ranks.

        Returns:
            int: the count.
        """
        return self._told(self._ranks)

    def local_rank(self) -> int:
        """Give the number of this rank on its host.

        Returns:
            int: from 0 on every host.
        """
        return self._told(self._rank % PER_HOST)

    def local_size(self) -> int:
        """Give the number of the ranks on this host.

        Returns:
            int: the count.
        """
        return self._told(min(PER_HOST, self._ranks))

    def _told(self, number: int) -> int:
        if not self.started:
            raise NotStarted
        return number
