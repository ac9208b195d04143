"""What works on this machine, what does not, and the command that mends it."""

from dlguide.doctor.checkup import examine
from dlguide.doctor.finding import Finding, as_json, report

__all__ = ["Finding", "as_json", "examine", "report"]
