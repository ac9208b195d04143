"""Jobs for Kubernetes are valid MPIJobs of Kubeflow; what these cannot say is refused by name.

The schema was written after the published one; its `$comment` names the source.
Tests dlguide.cluster.batch and its command.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from dlguide.cli.app import app
from dlguide.cli.batch import batch as command
from dlguide.cluster import batch
from dlguide.cluster.batch import Job, Profile
from dlguide.errors import MissingComponentError

assert command  # importing it adds the command
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "mpijob_v2beta1.json").read_text())
SITE = Profile(scheduler="kubernetes", cores_per_node=28, environment={"NCCL_DEBUG": "INFO"})
IMAGE = "registry.example.org/me/train:1"
PLAIN = Job("train.py", container=IMAGE)
LARGE = Job(
    "train.py", ("--epochs", "{link}0", 'it\'s "$(HOME)": {a}\\', "no", "1e3", "ü"), nodes=2,
    ranks_per_node=4, threads=7, gpus_per_node=4, time="2:00:00", memory="60G", container=IMAGE,
    environment={"LEVEL": "07", "EMPTY": ""},
)  # fmt: skip


def written(job, site=SITE):
    """Return the manifest of a job after a reader of YAML and the schema have accepted it."""
    manifest = yaml.safe_load(batch.script(job, site))
    jsonschema.validate(manifest, SCHEMA)
    return manifest


def containers(manifest):
    replicas = manifest["spec"]["mpiReplicaSpecs"]
    assert sorted(replicas) == ["Launcher", "Worker"]
    return [replicas[role]["template"]["spec"]["containers"][0] for role in sorted(replicas)]


def test_manifest_is_valid_and_says_what_was_asked():
    manifest = written(LARGE)
    assert manifest["metadata"] == {"name": "train"}
    spec = manifest["spec"]
    assert (spec["mpiImplementation"], spec["slotsPerWorker"]) == ("MPICH", 4)
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 7200
    assert [spec["mpiReplicaSpecs"][each]["replicas"] for each in ("Launcher", "Worker")] == [1, 2]
    launcher, worker = containers(manifest)
    assert launcher["image"] == worker["image"] == IMAGE
    assert launcher["command"] == [
        "mpiexec", "-n", "8", "-ppn", "4", "python", "train.py",
        "--epochs", "10", 'it\'s "$$(HOME)": {a}\\', "no", "1e3", "ü",
    ]  # fmt: skip
    assert {each["name"]: each["value"] for each in launcher["env"]} == {
        "OMP_NUM_THREADS": "7", "TF_NUM_INTRAOP_THREADS": "7", "TF_NUM_INTEROP_THREADS": "2",
        "NCCL_DEBUG": "INFO", "LEVEL": "07", "EMPTY": "",
    }  # fmt: skip
    limits = {"cpu": "28", "memory": "60Gi", "nvidia.com/gpu": "4"}
    assert worker["resources"] == {"limits": limits}
    assert "command" not in worker  # the operator starts sshd
    _, worker = containers(written(PLAIN))
    assert worker["resources"] == {"limits": {"cpu": "1"}}


REFUSED = {
    "no image": ({"container": ""}, {}, "`container` must name an image in a registry"),
    "name": ({"name": "My_job"}, {}, "`name` must be lower-case letters"),
    "default name": ({"program": "train_net.py"}, {}, "`name` must .* got 'train_net'. Give a"),
    "staging": ({"stage": ("data",)}, {}, "`stage` must be left out for Kubernetes"),
    "chain": ({"chain": 2}, {}, "`chain` must be left out for Kubernetes, got 2"),
    "anew": ({"requeue": True}, {}, "`requeue` must be left out"),
    "inside": ({"inside": True}, {}, "`inside` must be left out"),
    "partition": ({}, {"partition": "gpu"}, "`partition` must be left out"),
    "modules": ({}, {"modules": ("gcc",)}, "`modules` must be left out"),
    "all memory": ({"memory": "0"}, {}, "`memory` must have a unit for Kubernetes"),
    "cores": ({"threads": 29}, {}, "fit into the 28 cores of a node"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_in_a_manifest_is_refused(case):
    fields, site, text = REFUSED[case]
    job = Job(**{"program": "train.py", "container": IMAGE, **fields})
    with pytest.raises(ValueError, match=text):
        batch.script(job, Profile(scheduler="kubernetes", cores_per_node=28, **site))


def invoke(*words):
    return CliRunner().invoke(app, ["batch", *map(str, words)])


def test_command_writes_the_manifest_and_submits_it_when_asked(tmp_path, monkeypatch):
    done = invoke("train.py", "--kubernetes", "--container", IMAGE)
    assert done.exit_code == 0, done.output
    text, _, after = done.output.partition("# Nothing was submitted. To submit it:\n")
    assert yaml.safe_load(text) == written(PLAIN, Profile(scheduler="kubernetes"))
    assert after == "kubectl create -o name -f job.yaml\n"
    path, asked = tmp_path / "job.yaml", tmp_path / "asked"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/bash\necho "$*" >> {asked}\necho mpijob.kubeflow.org/train\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ("train.py", "--scheduler", "kubernetes", "--container", IMAGE, "--output", path)
    done = invoke(*words, "--submit", "--test-only")
    assert done.exit_code == 0, done.output
    assert "Submitted: mpijob.kubeflow.org/train" in done.output
    assert asked.read_text().splitlines() == [
        f"create --dry-run=server -f {path}", f"create -o name -f {path}",
    ]  # fmt: skip
    assert yaml.safe_load(path.read_text()) == written(PLAIN, Profile(scheduler="kubernetes"))
    done = invoke("train.py", "--kubernetes", "--scheduler", "pbs")
    assert "be kubernetes or left out beside `--kubernetes`" in str(done.exception)
    done = invoke("train.py", "--scheduler", "kubernets")
    assert "Did you mean kubernetes?" in str(done.exception)
    kubectl.write_text("#!/bin/bash\necho 'connection refused' >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match="kubectl refuses the job: connection refused"):
        batch.submit(PLAIN, SITE, str(path))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(MissingComponentError, match="There is no kubectl here"):
        batch.submit(PLAIN, SITE, str(path))
