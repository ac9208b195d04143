"""The example of a job for Kubernetes is a valid MPIJob of Kubeflow, and its numbers agree.

The schema was written after the published one; its `$comment` names the source.
Tests docs/research/mpijob.yaml.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

TESTS = Path(__file__).parent
SCHEMA = json.loads((TESTS / "schemas" / "mpijob_v2beta1.json").read_text())
EXAMPLE = (TESTS.parent / "docs" / "research" / "mpijob.yaml").read_text()


def test_the_example_is_a_valid_mpijob():
    jsonschema.validate(yaml.safe_load(EXAMPLE), SCHEMA)
    with pytest.raises(jsonschema.ValidationError, match="slotPerWorker"):
        jsonschema.validate(yaml.safe_load(EXAMPLE.replace("slotsPer", "slotPer")), SCHEMA)


def test_ranks_and_cores_of_the_example_agree():
    spec = yaml.safe_load(EXAMPLE)["spec"]
    replicas, slots = spec["mpiReplicaSpecs"], spec["slotsPerWorker"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    ranks = replicas["Worker"]["replicas"] * slots
    assert launcher["command"][:5] == ["mpiexec", "-n", str(ranks), "-ppn", str(slots)]
    threads = {each["name"]: int(each["value"]) for each in launcher["env"]}
    assert int(worker["resources"]["limits"]["cpu"]) == slots * threads["OMP_NUM_THREADS"]
    assert threads["TF_NUM_INTRAOP_THREADS"] == threads["OMP_NUM_THREADS"]
    assert launcher["image"] == worker["image"]
    assert "command" not in worker  # the operator starts sshd
