"""Submit a script to the batch system, or ask Slurm whether it would accept it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

from dlguide.cluster.batch.job import Job, Profile
from dlguide.errors import MissingComponentError, require

_PROGRAMS = {"slurm": "sbatch", "pbs": "qsub"}
ANSWER_S = 60.0


def commands(job: Job, profile: Profile, path: str) -> list[str]:
    """Return the shell commands that submit the job whose script is at `path`, one per link.

    Each link waits until the previous one has succeeded, and is cancelled if that fails.

    >>> for line in commands(Job("train.py", chain=2), Profile(), "job.sh"):
    ...     print(line)
    job=$(sbatch --parsable --export=ALL,DLGUIDE_LINK=1 job.sh)
    job=$(sbatch --parsable --dependency=afterok:"$job" --kill-on-invalid-dep=yes \
--export=ALL,DLGUIDE_LINK=2 job.sh)
    """
    lines = []
    for link in range(1, job.chain + 1):
        words = _words(job, profile, link, '"$job"' if link > 1 else "")
        line = " ".join([*words, shlex.quote(path)])
        lines.append(f"job=$({line})" if job.chain > 1 else line)
    return lines


def submit(job: Job, profile: Profile, path: str) -> list[str]:
    """Submit the job whose script is at `path`, all links of a chain, and return the job ids.

    Returns:
        list: job ids, in the order of the chain.

    Raises:
        MissingComponentError: if there is no such batch system here.
        RuntimeError: if it refuses a job; those submitted before are named.
    """
    ids: list[str] = []
    for link in range(1, job.chain + 1):
        words = _words(job, profile, link, ids[-1] if ids else "")
        try:
            said = _ask([*words, path], profile)
        except RuntimeError as error:
            if ids:
                error.add_note(f"Submitted before it: {', '.join(ids)}.")
            raise
        # PBS gives "123.server"; Slurm "123" or, with several clusters, "123;cluster"
        ids.append(said.strip().splitlines()[-1].partition(";")[0])
    return ids


def try_out(profile: Profile, path: str) -> str:
    """Return Slurm's answer whether it would accept the script, and when it could start.

    Raises:
        ValueError: for PBS, which cannot answer that.
        MissingComponentError: if there is no Slurm here.
        RuntimeError: if Slurm would refuse the job.
    """
    then = "Leave out `--test-only` and read the script."
    fits = profile.scheduler == "slurm"
    require(fits, "test_only", "be left out under PBS, which has none", True, then)
    answer = _ask(["sbatch", "--test-only", path], profile)
    return re.sub(r"^sbatch: ", "", answer.strip(), flags=re.MULTILINE)


def _words(job: Job, profile: Profile, link: int, after: str) -> list[str]:
    if profile.scheduler == "slurm":
        words = ["sbatch", "--parsable"]
        words += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"] if after else []
        return [*words, f"--export=ALL,DLGUIDE_LINK={link}"]
    words = ["qsub"]
    words += ["-W", f"depend=afterok:{after}"] if after else []
    return [*words, "-v", f"DLGUIDE_LINK={link}"]


def _ask(words: list[str], profile: Profile) -> str:
    program = _PROGRAMS[profile.scheduler]
    if shutil.which(program) is None:
        raise MissingComponentError(
            f"There is no {program} here. Copy the script to the cluster and submit it there."
        )
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        why = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{program} refuses the job: {why}")
    # the answer to --test-only comes on the standard error
    return done.stdout or done.stderr
