"""Jobs for Slurm and PBS: described, validated, written, and submitted if asked."""

from dlguide.cluster.batch.job import Job, Profile, read_profile
from dlguide.cluster.batch.render import definition, script
from dlguide.cluster.batch.submit import DryRun, commands, dry_run, submit, try_out

__all__ = [
    "DryRun",
    "Job",
    "Profile",
    "commands",
    "definition",
    "dry_run",
    "read_profile",
    "script",
    "submit",
    "try_out",
]
