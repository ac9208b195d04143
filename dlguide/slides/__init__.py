"""Slides from the notebooks' own cells: one deck for each part, with this machine's numbers."""

from dlguide.slides.browser import print_pdf
from dlguide.slides.decks import PARTS, Deck, stale, write
from dlguide.slides.runs import execute

__all__ = ["PARTS", "Deck", "execute", "print_pdf", "stale", "write"]
