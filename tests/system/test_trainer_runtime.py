"""The runtime of Kubeflow Trainer v2 and a job on it are what Trainer's published models accept."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api import models

from tests.support import ROOT
from tests.system.test_deploy import TORCH, check_pod

FOLDER = ROOT / "deploy" / "kubernetes"
MODELS = {"clustertrainingruntime": models.TrainerV1alpha1ClusterTrainingRuntime,
          "trainjob": models.TrainerV1alpha1TrainJob}


def given(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def check(name: str, document: dict[str, Any]) -> None:
    check_model(MODELS[name], document)


def check_model(model: Any, document: dict[str, Any]) -> None:
    """The models drop keys that they do not know: what they give back has to be the same."""
    assert as_text(model.from_dict(copy.deepcopy(document)).to_dict()) == as_text(document)


def as_text(value: Any) -> Any:
    """The same, with quantities as texts, and without the default protocol of a port."""
    if isinstance(value, dict):
        return {key: {name: str(one).removesuffix(".0") for name, one in part.items()}
                if key == "limits" else as_text(part) for key, part in value.items()
                if (key, part) != ("protocol", "TCP")}
    return [as_text(part) for part in value] if isinstance(value, list) else value


def runtime_pod() -> dict[str, Any]:
    (job,) = given("clustertrainingruntime")["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    pod: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", MODELS)
def test_a_manifest_is_what_trainer_accepts(name: str) -> None:
    document = given(name)
    assert document["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    check(name, document)


@pytest.mark.parametrize(("name", "place", "wrong"), [
    ("trainjob", ("spec", "runtime"), {"name": "x"}), ("trainjob", ("spec", "trainer", "nodes"), 2),
    ("trainjob", ("spec", "trainer", "numNodes"), "two"),
    ("clustertrainingruntime", ("spec", "mlPolicy", "pytorch"), {}),
    ("clustertrainingruntime", ("spec", "template", "spec", "jobs"), [])])
def test_the_check_finds_mistakes(name: str, place: tuple[str, ...], wrong: Any) -> None:
    document = given(name)
    at = document
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = wrong
    with pytest.raises((AssertionError, ValueError)):
        check(name, document)


def test_the_pod_hangs_together_and_is_the_one_of_the_operators_of_v1() -> None:
    pod = runtime_pod()
    check_pod(pod)
    old = yaml.safe_load(TORCH.read_text())["spec"]["pytorchReplicaSpecs"]["Worker"]
    other = old["template"]["spec"]
    assert {key: pod[key] for key in pod if key != "containers"} == {
        key: other[key] for key in other if key != "containers"}
    (box,), (beside,) = pod["containers"], other["containers"]
    same = ("securityContext", "resources", "volumeMounts", "image")
    assert {key: box[key] for key in same} == {key: beside[key] for key in same}
    assert box["name"] == "node"


def test_a_job_names_the_runtime_and_nothing_of_harps() -> None:
    job = given("trainjob")
    assert job["spec"]["runtimeRef"]["name"] == given("clustertrainingruntime")["metadata"]["name"]
    assert set(job["spec"]) == {"runtimeRef", "trainer"}
    assert "harp" not in str(job["spec"]["trainer"]).lower()
