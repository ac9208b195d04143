"""`dlguide cluster`: ranks that several notebooks share and that outlive each of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from dlguide.cli.app import OversubscribeOption, RanksOption, app

group = typer.Typer(help="Ranks for several notebooks, which use `Cluster.attach`.")
app.add_typer(group, name="cluster", no_args_is_help=True)
ProfileOption = Annotated[str, typer.Option(help="IPython profile that names the cluster.")]
LAUNCHER = "DlguideEngineSetLauncher"
STARTED_S = 60.0


@group.command()
def start(
    ranks: RanksOption = 2,
    profile: ProfileOption = "dlguide",
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Start ranks that stay until `dlguide cluster stop`; use them with `Cluster.attach()`."""
    from dlguide.cluster.attach import AttachedCluster
    from dlguide.cluster.launch import default_plan

    default_plan(ranks, oversubscribe)  # refuses before anything runs
    launcher = f"--engines=dlguide.cluster.engine.{LAUNCHER}"
    more = f"--{LAUNCHER}.oversubscribe={oversubscribe}"
    _ipcluster("start", profile, launcher, f"--n={ranks}", more, "--daemonize")
    print(AttachedCluster(profile, magics=False, answer_s=STARTED_S))
    print(f"In a notebook: cluster = dlguide.cluster.Cluster.attach({profile!r})")


@group.command()
def status(profile: ProfileOption = "dlguide") -> None:
    """Print the ranks of a cluster with their processes, threads and cores."""
    from dlguide.cluster import Cluster

    print(Cluster.attach(profile, magics=False))


@group.command()
def stop(profile: ProfileOption = "dlguide") -> None:
    """Stop a cluster, also one whose ranks compute or hang."""
    _ipcluster("stop", profile)
    print(f"The cluster of profile {profile} was stopped.")


def _ipcluster(command: str, profile: str, *options: str) -> None:
    """Run ipyparallel's command, and leave with its words if it fails."""
    words = [sys.executable, "-P", "-m", "ipyparallel.cluster", command, f"--profile={profile}"]
    done = subprocess.run([*words, *options, "--log-level=40"], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise RuntimeError("\n".join([f"ipcluster could not {command} the cluster.", *said[-5:]]))
