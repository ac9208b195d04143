"""The command line: `dlguide COMMAND --help` tells what each command does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from dlguide.checks import MissingComponentError, require, require_count

# The words of a wrong command line, of a missing component, of a failed run: one line each.
EXPECTED = (ValueError, RuntimeError, OSError)

app = typer.Typer(
    help="Deep learning at scale: set up, check, train, and open the notebooks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RanksOption = Annotated[int, typer.Option(help="Number of MPI ranks.")]
OversubscribeOption = Annotated[bool, typer.Option(help="Allow more ranks than cores.")]


@app.command()
def train(
    ranks: RanksOption = 2,
    compare: Annotated[bool, typer.Option(help="Train on 1 rank too; table and plot.")] = False,
    net: Annotated[str, typer.Option(help="A net of dlguide.nets.")] = "mnist_cnn",
    data: Annotated[str, typer.Option(help="A data set of dlguide.data.")] = "mnist",
    epochs: Annotated[int, typer.Option(help="Passes over the training samples.")] = 1,
    batch: Annotated[int, typer.Option(help="Images per rank and step.")] = 100,
    optimizer: Annotated[str, typer.Option(help="adam or sgd.")] = "adam",
    learning_rate: Annotated[float | None, typer.Option(help="For one rank.")] = None,
    samples: Annotated[int | None, typer.Option(help="Train on the first so many only.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or gpu.")] = "cpu",
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to save to and go on from.")] = (
        None
    ),
    output: Annotated[Path, typer.Option(help="Folder for table and plot.")] = Path("build"),
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Train a net with Horovod on MPI ranks of this machine."""
    from dlguide import plots, training
    from dlguide.cluster import Cluster
    from dlguide.folders import require_writable
    from dlguide.machine import describe, threads
    from dlguide.training import compare as comparison
    from dlguide.training import settings

    require_count(ranks, "ranks")
    work: dict[str, Any] = {
        "net": net, "data": data, "epochs": epochs, "batch": batch, "optimizer": optimizer,
        "learning_rate": learning_rate, "samples": samples, "seed": seed,
        "device": device,
    }  # fmt: skip
    asked = settings.Settings(
        **work, rate_scaling=None, dropout=None, dtype="float32", shuffle=True, evaluate=True,
        checkpoint=None,
    )  # fmt: skip
    asked.check()
    settings.load_data(data, samples, batch, ranks)
    require(not (compare and checkpoint), "checkpoint", "not be given with compare", checkpoint)
    require_writable(output, "output")
    machine = describe()
    plan = threads.plan(machine, ranks, oversubscribe=oversubscribe)
    plans = comparison.plans(machine, plan) if compare else [plan]
    print(machine.summary())
    runs = []
    for plan in plans:
        print(f"\n{net} on {data}, {plan.ranks} rank{'s'[: plan.ranks != 1]}"
              f" x {plan.threads} thread{'s'[: plan.threads != 1]}", flush=True)  # fmt: skip
        with Cluster(plan) as cluster:
            runs.append(cluster.run(training.fit, **work, checkpoint=checkpoint))
    table = comparison.rows(runs)
    _print_table(table)
    comparison.write(runs, table, output / "scaling.json")
    if len(runs) > 1:
        alike = [run for each in runs for run in each if run.threads == plan.threads]
        plots.scaling(alike, output / "scaling.png")
        print(f"Plot and numbers: {output / 'scaling.png'}, {output / 'scaling.json'}")


def _print_table(table: list) -> None:
    """Print the rows of a comparison."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title="Scaling", title_justify="left")
    for name in ("ranks", "threads", "images/s", "speed-up", "efficiency", "accuracy", "seconds"):
        drawn.add_column(name, justify="right")
    for row in table:
        accuracy = "" if row.test_accuracy is None else f"{100 * row.test_accuracy:.2f} %"
        drawn.add_row(
            str(row.ranks), str(row.threads), f"{row.images_per_s:.0f}", f"{row.speed_up:.2f}",
            f"{100 * row.efficiency:.0f} %", accuracy, f"{row.seconds:.1f}",
        )  # fmt: skip
    print()
    Console().print(drawn)
    print("threads: per rank. efficiency: speed-up per core. accuracy: on all test images.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script; its arguments follow it.")],
    ranks: RanksOption = 2,
    oversubscribe: OversubscribeOption = False,
) -> None:
    """Run a script on MPI ranks; the exit status is 0 only when every rank ended well."""
    from dlguide.cluster.script import run_script

    run_script(script, context.args, ranks, oversubscribe)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all that the course needs on this machine; each fault with the command to mend it."""
    from dlguide import doctor

    findings = doctor.examine()
    print(doctor.report(findings, as_json=as_json))
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


@app.command()
def lab(
    port: Annotated[int | None, typer.Option(help="Port; default: the first free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Open JupyterLab on the notebooks, on this machine only, with a token."""
    notebooks = Path(__file__).resolve().parents[1] / "notebooks"
    require(notebooks.is_dir(), "notebooks", "be a folder beside the package", str(notebooks))
    command = [sys.executable, "-m", "jupyterlab", str(notebooks), "--ServerApp.ip=127.0.0.1"]
    if port is not None:
        _require_free(port)
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        command.append("--allow-root")
    with tempfile.TemporaryDirectory(prefix="dlguide-lab-") as folder:
        # Without the internet there are no news and no updates to ask for.
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        settings = Path(folder) / "labconfig" / "default_setting_overrides.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": quiet}))
        paths = [folder, os.environ.get("JUPYTER_CONFIG_PATH", "")]
        env = {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(paths).rstrip(os.pathsep)}
        raise typer.Exit(subprocess.run(command, env=env).returncode)


def _require_free(port: int) -> None:
    """Say before anything starts that a port of this machine is taken."""
    require(0 < port < 65536, "port", "be a number from 1 to 65535", port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            text = f"be free to listen on ({error.strerror})"
            require(False, "port", text, port, "Choose another, or leave --port out.")


@app.command()
def notebooks(
    names: Annotated[list[str] | None, typer.Argument(help="Numbers or files; all.")] = None,
) -> None:
    """Execute notebooks from top to bottom and say how long each took."""
    from dlguide import notebooks

    if not notebooks.execute_all(names or []):
        raise typer.Exit(1)


@app.command()
def cleanup(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """End the processes that clusters have left behind, ours and only ours."""
    from dlguide.cluster import processes

    ended = processes.cleanup()
    if as_json:
        print(json.dumps([vars(each) for each in ended]))
        return
    for each in ended:
        print(f"ended {each.pid}: {each.command}")
    print(f"{len(ended)} left-over process{'' if len(ended) == 1 else 'es'} ended.")


@app.command("install-horovod")
def install_horovod(
    mpicc: Annotated[str | None, typer.Option(help="A site's own MPI compiler.")] = None,
    force: Annotated[bool, typer.Option(help="Build even when a wheel is in the cache.")] = False,
) -> None:
    """Build and install Horovod for this Python, TensorFlow and MPI."""
    from dlguide import install_horovod

    install_horovod.install(mpicc, force)


def main() -> None:
    """Run the command line; what a user can mend is said in words, without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; the ranks were stopped.")
    except MissingComponentError as error:
        sys.exit(f"dlguide: {error}")
    except EXPECTED as error:
        if os.environ.get("DLGUIDE_TRACEBACK"):
            raise
        sys.exit(f"dlguide: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
