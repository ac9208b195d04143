"""Jobs for a batch system: described, checked, written as a script, and submitted when asked."""

from dlguide.cluster.batch.job import Job
from dlguide.cluster.batch.profile import Profile, read_profile
from dlguide.cluster.batch.rehearsal import rehearse
from dlguide.cluster.batch.render import definition, script
from dlguide.cluster.batch.submit import commands, submit, try_out

__all__ = [
    "Job",
    "Profile",
    "commands",
    "definition",
    "read_profile",
    "rehearse",
    "script",
    "submit",
    "try_out",
]
