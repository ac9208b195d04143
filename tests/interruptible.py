"""Programs that a test interrupts, started as from a terminal."""

import signal


def default_interrupt():
    """Accept SIGINT (`preexec_fn`): the background jobs of a shell inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
