"""What works on this machine, what does not, and the command that fixes it."""

from dlguide.doctor.checkup import examine
from dlguide.doctor.finding import Finding, report

__all__ = ["Finding", "examine", "report"]
