"""Files of deploy/: their readers accept the manifests, scripts, unit and Dockerfile.

The readers are the real ones where they can be had: Kubernetes' and Kubeflow's published models for
manifests, systemd for the unit, shellcheck and hadolint for what shells and Docker read.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.cnet.nccl.asked_plugin import ask
from tests.support import PATIENCE_S, ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
MPI, TORCH = (DEPLOY / "kubernetes" / f"{name}.yaml" for name in ("mpijob", "pytorchjob"))
SCRIPTS = sorted((DEPLOY / "examples").glob("*.sh"))
root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

# Of Tencent's documentation of TACO Train: how its benchmark is started on two hosts.
TACO = shlex.split("""-np 16 --allow-run-as-root -bind-to none -map-by slot -x NCCL_ALGO=RING
-x NCCL_DEBUG=INFO -x NCCL_SOCKET_IFNAME=eth0 -x HOROVOD_MPI_THREADS_DISABLE=1
-x HOROVOD_FUSION_THRESHOLD=0 -x HOROVOD_CYCLE_TIME=0 -x LIGHT_INTRA_SIZE=8 -x LIGHT_2D_ALLREDUCE=1
-x LIGHT_TOPK_ALLREDUCE=1 -x LIGHT_TOPK_THRESHOLD=2097152 -x LD_LIBRARY_PATH -x PATH
-mca btl_tcp_if_include eth0
python3 /mnt/pytorch_synthetic_benchmark.py --model=vgg16 --batch-size=128""")


# ---- Manifests against Kubernetes' and Kubeflow's models ----

# MPIJob v2beta1 has no package of its own; its pods and its policy have.
MPI_JOB = {"apiVersion": "str", "kind": "str", "metadata": "V1ObjectMeta", "spec": {
    "slotsPerWorker": "int", "runLauncherAsWorker": "bool", "sshAuthMountPath": "str",
    "launcherCreationPolicy": "str", "mpiImplementation": "str",
    "runPolicy": "KubeflowOrgV1RunPolicy",
    "mpiReplicaSpecs": "dict(str, KubeflowOrgV1ReplicaSpec)"}}
KINDS = {"str": str, "int": int, "bool": bool, "object": object}


def check(value: Any, kind: Any, where: str = "") -> Any:
    """Fail where a value is not what its kind says; names that a kind does not have are errors."""
    if isinstance(kind, dict):
        assert set(value) <= set(kind), f"{where}: {set(value) - set(kind)}"
        return {name: check(part, kind[name], f"{where}.{name}") for name, part in value.items()}
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        assert isinstance(value, list), where
        return [check(part, match[1], f"{where}[{i}]") for i, part in enumerate(value)]
    if match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        assert isinstance(value, dict), where
        # Quantities may be plain numbers.
        return {name: check(str(part) if where.endswith("resources.limits") else part, match[1],
                            f"{where}.{name}") for name, part in value.items()}
    if kind in KINDS:
        assert type(value) is KINDS[kind] or kind == "object", f"{where}: {value!r} is no {kind}"
        return value
    return check_model(value, kind, where)


def check_model(value: Any, kind: str, where: str) -> Any:
    """Make the published model, which checks what has to be there, of parts that are right."""
    from kubeflow.training import models
    model = getattr(models, kind)
    assert isinstance(value, dict), f"{where}: {value!r} is no {kind}"
    names = {json: name for name, json in model.attribute_map.items()}
    assert set(value) <= set(names), f"{where}: {kind} has no {set(value) - set(names)}"
    return model(**{names[json]: check(part, model.openapi_types[names[json]], f"{where}.{json}")
                    for json, part in value.items()})


def check_job(job: dict[str, Any]) -> None:
    """Check a manifest as the API server and the operators do."""
    spec = job["spec"]
    if job["kind"] == "MPIJob":
        assert job["apiVersion"] == "kubeflow.org/v2beta1"
        check(job, MPI_JOB)
        assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    else:
        assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
        check(job, "KubeflowOrgV1PyTorchJob")
        assert set(spec["pytorchReplicaSpecs"]) == {"Master", "Worker"}
        assert all([box["name"] for box in pod["containers"]] == ["pytorch"] for pod in pods(job))
    for pod in pods(job):
        check_pod(pod)


def check_pod(pod: dict[str, Any]) -> None:
    """Check that the parts of a pod agree."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for box in (*pod.get("initContainers", []), *pod["containers"]):
        assert {mount["name"] for mount in box.get("volumeMounts", [])} <= volumes
        limits = box.get("resources", {}).get("limits", {})
        if any(name.startswith("hugepages-") for name in limits):
            assert {"memory", "cpu"} & set(limits), "huge pages need cpu or memory beside them"
        for port in box.get("ports", []):  # with the host's network a port is the host's
            assert port.get("hostPort", port["containerPort"]) == port["containerPort"]
            assert port["containerPort"] != 22


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    spec = job["spec"]
    replicas = spec.get("mpiReplicaSpecs") or spec["pytorchReplicaSpecs"]
    return [replica["template"]["spec"] for replica in replicas.values()]


def training(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods with GPUs."""
    return [pod for pod in pods(job)
            if "nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]]


@pytest.fixture(params=[MPI, TORCH], ids=lambda path: path.stem)
def job(request):
    return yaml.safe_load(request.param.read_text())


def test_manifests_are_what_kubernetes_accepts(job):
    check_job(job)
    assert training(job)


@pytest.mark.parametrize(("place", "wrong"), [
    (("spec", "slots"), 8), (("spec", "runPolicy", "cleanPods"), "None"),
    (("spec", "runPolicy", "backoffLimit"), "three"), (("metadata", "labels"), ["a"]),
    (("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "hostnetwork"), True),
    (("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "hostNetwork"), "yes"),
    (("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "containers"), [{"image": "x"}]),
    (("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "volumes"), []),
    (("spec", "mpiReplicaSpecs", "Workers"), {}), (("apiVersion",), "kubeflow.org/v1"),
])
def test_the_check_finds_mistakes(place, wrong):
    job = copy.deepcopy(yaml.safe_load(MPI.read_text()))
    at = job
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = wrong
    with pytest.raises((AssertionError, ValueError)):
        check_job(job)


def test_no_container_is_privileged(job):
    for pod in pods(job):
        for box in (*pod.get("initContainers", []), *pod["containers"]):
            assert "privileged" not in box.get("securityContext", {})


def test_the_plugin_is_lent_to_the_training_image(job):
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    copied = re.search(r'CMD \["cp", "(.*)", "(/harp/)"\]', dockerfile)
    assert copied
    for pod in training(job):
        lender, box = pod["initContainers"][0], pod["containers"][0]
        volume, = (mount["name"] for mount in lender["volumeMounts"]
                   if mount["mountPath"] + "/" == copied[2])
        folder, = (mount["mountPath"] for mount in box["volumeMounts"] if mount["name"] == volume)
        path = f"{folder}/{Path(copied[1]).name}"
        assert environment(job)["NCCL_NET_PLUGIN"] == path
        assert environment(job)["NCCL_NET"] == "HARP"


def environment(job: dict[str, Any]) -> dict[str, str]:
    """Environment of the ranks."""
    if job["kind"] == "PyTorchJob":
        return {one["name"]: one["value"] for one in training(job)[0]["containers"][0]["env"]}
    args = pods(job)[0]["containers"][0]["args"]
    passed = [args[i + 1] for i, word in enumerate(args) if word == "-x"]
    return dict(one.split("=", 1) for one in passed if "=" in one)


@root_only
def test_the_capabilities_are_enough_for_xdp(job):
    for pod in training(job):
        granted = pod["containers"][0]["securityContext"]["capabilities"]["add"]
        bounding = ",".join(["-all", *(f"+{name.lower()}" for name in granted)])
        with veth_pair() as (end, _):
            found = ask("listen", before=(*end.space.command(), "setpriv",
                                          f"--bounding-set={bounding}", "--inh-caps=-all", "--"),
                        HARP_PORT="xdp")
            assert any(": xdp: v1 queue 0" in text for _, text in found["said"])


# ---- Scripts ----

@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script):
    done = subprocess.run([BIN / "shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Programs that say how they were called instead of doing it."""
    tell = '#!/bin/sh\necho "$0"; printf "%s\\n" "$@"; echo; env\n'
    for name, text in {"mpirun": tell, "torchrun": tell,
                       "harp": "#!/bin/sh\necho /opt/harp.so\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    base = {name: value for name, value in os.environ.items()
            if not name.startswith(("NCCL_", "HARP_", "LIGHT_", "HOROVOD_"))}

    def play(script: str, *words: str, **settings: str) -> tuple[int, list[str], dict[str, str]]:
        done = subprocess.run([DEPLOY / "examples" / script, *words], text=True, check=False,
                              env={**base, "PATH": f"{tmp_path}:{base['PATH']}", **settings},
                              capture_output=True)
        if done.returncode:
            return done.returncode, [done.stderr], {}
        called, _, environment = done.stdout.partition("\n\n")
        found = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
        return 0, called.splitlines()[1:], found
    return play


def pairs(words: list[str], names: dict[str, str]) -> set[tuple[str, ...]]:
    """Options with their values, whatever their order; -x NAME as -x NAME=value."""
    found, at = set(), 0
    while at < len(words):
        takes = 2 if words[at] == "-mca" else \
            words[at] in ("-np", "-H", "-bind-to", "-map-by", "-x")
        option = words[at:at + 1 + takes]
        if option[0] == "-x" and option[1] in names:
            option[1] += f"={names[option[1]]}"
        found.add(tuple(option))
        at += 1 + takes
    return found


def test_the_mpi_example_runs_the_published_benchmark(stage):
    status, words, environment = stage("mpi.sh")
    assert status == 0
    names = {name: value for name, value in environment.items()
             if name not in ("PATH", "LD_LIBRARY_PATH")}
    found = pairs(words, names)
    assert found >= pairs(TACO, {}) | {("-H", "gpu1:8,gpu2:8"), ("-x", "NCCL_NET=HARP"),
                                       ("-x", "NCCL_NET_PLUGIN=/opt/harp.so")}
    assert words[-4:] == TACO[-4:]


def test_the_mpi_job_runs_the_published_benchmark():
    args = pods(yaml.safe_load(MPI.read_text()))[0]["containers"][0]["args"]
    assert pairs(args, {}) >= pairs(TACO, {})
    assert args[-4:] == TACO[-4:]


def test_the_mpi_example_takes_hosts_settings_and_another_program(stage):
    status, words, environment = stage("mpi.sh", "all_reduce_perf", "-b", "8", HOSTS="a:4,b:2",
                                HARP_PORT="udp", LIGHT_2D_ALLREDUCE="0", BOOTSTRAP="ens5")
    assert status == 0
    assert words[-3:] == ["all_reduce_perf", "-b", "8"]
    assert pairs(words, environment) >= {("-np", "6"), ("-H", "a:4,b:2"), ("-x", "HARP_PORT=udp"),
                                  ("-x", "LIGHT_2D_ALLREDUCE=0"),
                                  ("-mca", "btl_tcp_if_include", "ens5"),
                                  ("-x", "NCCL_SOCKET_IFNAME=ens5")}
    status, said, _ = stage("mpi.sh", HOSTS="a,b")
    assert status == 2
    assert 'HOSTS is "a,b": hosts with numbers of GPUs are wanted' in said[0]


def test_the_torchrun_example_runs_the_same_model(stage):
    status, words, environment = stage("torchrun.sh", NODES="2", NODE="1", MASTER="10.0.0.1")
    assert status == 0
    assert words[-3:] == [str(DEPLOY / "examples" / "benchmark.py"), *TACO[-2:]]
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1"} <= set(words)
    assert (environment["NCCL_NET"], environment["NCCL_NET_PLUGIN"]) == ("HARP", "/opt/harp.so")


@pytest.mark.parametrize("script", ["mpi.sh", "torchrun.sh"])
def test_the_examples_leave_the_algorithm_to_a_tuners_table(stage, script):
    assert stage(script)[2]["NCCL_ALGO"] == "RING"
    assert "NCCL_ALGO" not in stage(script, HARP_TUNER="/etc/harp/tuning.json")[2]
    environment = stage(script, HARP_TUNER="/etc/harp/tuning.json", NCCL_ALGO="TREE")[2]
    assert environment["NCCL_ALGO"] == "TREE"


# ---- Unit and image ----

@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_the_unit_is_sound(tmp_path):
    text = (DEPLOY / "harp-setup.service").read_text()
    unit = tmp_path / "harp-setup.service"
    assert "ExecStart=/opt/harp/bin/harp setup " in text
    unit.write_text(text.replace("/opt/harp/bin/harp", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True,
                          text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_dockerfile_is_sound():
    done = subprocess.run([BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_settings_named_in_deployment_exist():
    source = (ROOT / "cnet" / "nccl" / "settings.c").read_text()
    known = set(re.findall(r'^    \{"(HARP_[A-Z_]+)"', source, re.MULTILINE))
    manual = ROOT / "docs" / "use" / "deploy.md"
    texts = [path.read_text() for path in (*DEPLOY.rglob("*.*"), manual) if path.is_file()]
    assert set(re.findall(r"\bHARP_[A-Z_]+\b", " ".join(texts))) <= known
