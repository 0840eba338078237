"""The chart that prepares hosts: Helm lints and renders it, and takes no value of a wrong kind.

Helm itself runs, in a process of its own; the pods are held against Kubernetes' models.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubeflow_trainer_api import models

from harp.cli.setup import setup
from tests.support import ROOT
from tests.support.helm import CHART, Helm, RefusedError, own_process
from tests.system.test_trainer_runtime import check_model

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    with own_process() as process:
        yield Helm(process)


def rendered(helm: Helm, **values: Any) -> dict[str, Any]:
    """The one manifest."""
    texts = helm.render(values)
    (manifest,) = [text for name, text in texts.items() if name.endswith(".yaml")]
    found: dict[str, Any] = yaml.safe_load(manifest)
    return found


def pod(helm: Helm, **values: Any) -> dict[str, Any]:
    found: dict[str, Any] = rendered(helm, **values)["spec"]["template"]["spec"]
    return found


def options(helm: Helm, **values: Any) -> list[str]:
    (box,) = pod(helm, setup=values)["initContainers"]
    words: list[str] = box["args"]
    return words


def test_helm_finds_nothing_to_say(helm: Helm) -> None:
    found = helm.lint()
    assert found["errors"] == []
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("undo", [False, True])
def test_the_pod_is_what_kubernetes_accepts(helm: Helm, *, undo: bool) -> None:
    check_model(models.IoK8sApiCoreV1PodSpec, pod(helm, setup={"undo": undo}))
    manifest = rendered(helm)
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "DaemonSet")
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(("values", "words"), [
    ({}, ["setup"]),
    ({"nics": "eth1..eth8", "mtu": 8500, "hugepages": 0},
     ["setup", "--nics", "eth1..eth8", "--mtu", "8500", "--hugepages", "0"])])
def test_values_become_options_that_harp_setup_has(helm: Helm, values: dict[str, Any],
                                                   words: list[str]) -> None:
    assert options(helm, **values) == words
    setup.make_context("setup", words[1:])  # raises where an option or its value is unknown


def test_the_host_keeps_settings_and_what_to_undo(helm: Helm) -> None:
    found = pod(helm, setup={"undo": True})
    paths = {volume["hostPath"]["path"] for volume in found["volumes"]}
    assert paths == {"/etc/harp", "/var/lib/harp"}
    (setting,), (kept,) = found["initContainers"], found["containers"]
    assert kept["volumeMounts"] == setting["volumeMounts"]
    assert kept["lifecycle"]["preStop"]["exec"]["command"] == ["harp", "setup", "--undo"]


def test_only_what_needs_it_is_privileged(helm: Helm) -> None:
    found = pod(helm)
    assert "securityContext" not in found["containers"][0]


@pytest.mark.parametrize("values", [
    {"setup": {"mtu": "large"}}, {"setup": {"nic": "eth1"}}, {"setup": {"nics": "eth1; reboot"}},
    {"image": {"tag": ""}}, {"setup": {"hugepages": -2}}])
def test_a_wrong_value_is_refused(helm: Helm, values: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        rendered(helm, **values)


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert chart["version"] == chart["appVersion"] == version[1]
