"""What works on this machine, what does not, and the command that fixes it."""

from dlguide.doctor.examination import examine
from dlguide.doctor.result import CheckResult, report

__all__ = ["CheckResult", "examine", "report"]
