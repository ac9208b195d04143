"""Processors from 2013 on with year and source, and how to choose among them.

`processors` lists them, `find` takes one by name, `choose` ranks what is available.
"""

from dlguide.machine.catalogue.choosing import OUTDATED, Choice, choose
from dlguide.machine.catalogue.processors import KINDS, Processor, find, processors

__all__ = ["KINDS", "OUTDATED", "Choice", "Processor", "choose", "find", "processors"]
