"""Every command that stands in a block of a how-to page runs as it stands there.

Each page has a folder with the files that its commands name, of small clusters. Its commands run
there one after the other, as a reader types them. Commands that need more than one machine, that
never end or that would change this one are in `ELSEWHERE`, with the test that runs the like.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.sim.calibration.test_iperf3 import document as iperf3_run
from tests.sim.formats.test_nccl_topology import host as nccl_topology
from tests.sim.traces.test_pytorch import step as pytorch_step
from tests.support import ROOT
from tests.support.cluster_files import topology, write, write_job
from tests.support.levels import long, long_except

if TYPE_CHECKING:
    from collections.abc import Callable

TYPED = re.compile(r"(?:\$ )?((?:sudo|eval|harp|python|mpirun|iperf3|HARP_\w+=|NCCL_\w+=|openssl|"
                   r"pip|docker|kubectl|helm|torchrun|make) ?.*)")
BLOCK = re.compile(r"(<!-- output of:[^<]*-->\n)?```(\w*)\n(.*?)```\n", re.DOTALL)
FINDS = {"harp check": {0, 1}, "harp diagnose": {0, 1, 3}, "harp setup --dry-run": {0, 1}}
"""Exit statuses of commands that report their findings on this machine."""
SEARCHES = re.compile(r"python -m sim\.tune \S+\.yaml .*")
SHORT = " --budget 5s"
"""A reader's search takes a minute."""

ELSEWHERE = {
    "sudo harp setup": "tests/harp/cli/setup/test_knobs_on_real_links.py",
    "sudo harp setup --undo": "tests/harp/cli/setup/test_knobs_on_real_links.py",
    "harp setup --dry-run --nics eth1..eth2": "tests/harp/cli/setup/test_setup.py",
    'NCCL_NET_PLUGIN=$(harp plugin-path) NCCL_NET=HARP python train.py': "tests/gpu/run.py",
    "harp diagnose node-1.json node-2.json …": "tests/harp/cli/diagnose/test_diagnose.py",
    "harp diagnose --serve 9407 --token-file token": "tests/harp/cli/diagnose/test_diagnose.py",
    "harp diagnose node-1:9407 node-2:9407 … --token-file token":
        "tests/harp/cli/diagnose/test_diagnose.py",
    "harp top --export 9408": "tests/harp/cli/test_prometheus.py",
    "harp top --export /var/lib/node_exporter/harp.prom": "tests/harp/cli/test_prometheus.py",
    "harp probe 10.0.0.2 10.0.0.3 -o map-0.json": "tests/harp/cli/test_probe.py",
    "harp probe --answer 10.0.0.2": "tests/harp/cli/test_probe.py",
    "harp probe --fingerprint 10.0.0.2 -o map-0.json": "tests/harp/cli/test_probe.py",
    "harp probe --latency 10.0.0.2 10.0.0.3 -o lat-0.json": "tests/harp/cli/test_probe.py",
    "mpirun --hostfile files/hostfile.openmpi ...": "tests/harp/cli/plan/test_launcher_files.py",
    "iperf3 -s": "tests/sim/calibration/test_iperf3.py",
    "iperf3 -c HOST -t 10 -J > iperf3.json": "tests/sim/calibration/test_iperf3.py",
    "NCCL_ALGO=RING NCCL_PROTO=Simple all_reduce_perf -b 8 -e 1G -f 2": "tests/gpu/run.py",
    "NCCL_ALGO=Tree NCCL_PROTO=LL all_reduce_perf -b 8 -e 1G -f 2 > tree-ll.log":
        "tests/gpu/run.py",
    "python -m sim.run topologies/bonded-ecmp-2x4.yaml --fidelity lab":
        "tests/sim/network/lab/test_lab.py",
    "python -m sim.sweep sweep.yaml -o results.parquet --dask tcp://10.0.0.1:8786":
        "tests/sim/sweeps/test_dask_cluster.py",
    "python -m sim.sweep sweep.yaml -o results.parquet --html sweep.html --dask tcp://10.0.0.1:8786":
        "tests/sim/sweeps/test_dask_cluster.py",
}


def commands(page: str) -> list[str]:
    """The command that a reader types, without the remarks behind it."""
    text = (ROOT / page).read_text("utf-8")
    blocks = [block for mark, kind, block in BLOCK.findall(text)
              if not mark and kind in ("", "sh", "bash")]
    found = [match[1] for block in blocks for line in block.splitlines()
             if (match := TYPED.fullmatch(line))]
    return [re.split(r"\s{2,}#", line)[0].strip() for line in found]


def small(**keys: Any) -> dict[str, Any]:
    stack = {"stack": "kernel-tcp"}
    scenarios = [{"name": "DDP", **stack}, {"name": "2D", **stack, "allreduce": "2d"},
                 {"name": "FSDP", **stack, "parallel": {"shard": "fsdp"}}]
    return topology(hosts=2, gpus=2, scenarios=scenarios) | keys


def tutorial(folder: Path) -> None:
    (folder / "topologies").symlink_to(ROOT / "topologies")
    write(folder, small(), "T.yaml")


def shipped(folder: Path) -> None:
    (folder / "topologies").symlink_to(ROOT / "topologies")


def traces(folder: Path) -> None:
    write(folder, small(), "cluster.yaml")
    made = [sys.executable, "-m", "sim.trace", "traces/gpt", "--topology", "cluster.yaml",
            "--write"]
    subprocess.run(made, cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "sim.convert", "cluster.yaml", "infra.json"], cwd=folder,
                   check=True)
    for rank in (0, 1):
        pytorch_step().write(folder, rank)


def formats(folder: Path) -> None:
    write(folder, small(), "cluster.yaml")
    made = [sys.executable, "-m", "sim.convert", "cluster.yaml", "infra.json"]
    subprocess.run(made, cwd=folder, check=True)
    (folder / "nccl.xml").write_text(nccl_topology())


def sweeps(folder: Path) -> None:
    write(folder, small(), "leaf-spine.yaml")
    (folder / "sweep.yaml").write_text(yaml.safe_dump({
        "topology": "leaf-spine.yaml", "scenarios": ["DDP"], "grid": {"seed": [1, 2]},
        "objectives": {"images_per_s": "max", "seed": "min"}}))


def tuning(folder: Path) -> None:
    """Small clusters stand for the shipped ones, which take minutes to search."""
    write(folder, small(), "cluster.yaml")
    shape = {"layers": 2, "width": 512, "heads": 8, "vocabulary": 1000}
    job = {"model": shape, "sequence": 256, "batch": 2, "precision": "bf16", "framework": "free"}
    host = {"gpus": {"count": 1, "model": "any", "effective": "10TFLOPS", "memory": "4GiB"},
            "ram": "1GiB", "disk": {"capacity": "10GB", "read": "1GB/s"}}
    (folder / "topologies").mkdir()
    write(folder, topology(hosts=2, gpus=2, workload=job),
          "topologies/llama3-8b-a100-100g.yaml")
    write(folder, topology(hosts=2, gpus=1, host=host, workload=job,
                           scenario={"offload": {"to": "host"}}),
          "topologies/offload-t5-v100-disk.yaml")
    for name in ("own.log", "tree-ll.log"):
        shutil.copy(ROOT / "tests/data/samples/nccl-tests-16-ranks.log", folder / name)


def calibrate(folder: Path) -> None:
    shipped(folder)
    write(folder, topology(hosts=2, gpus=8), "cluster.yaml")
    shutil.copy(ROOT / "tests/data/samples/nccl-tests-16-ranks.log", folder / "all_reduce.log")
    (folder / "iperf3.json").write_text(json.dumps(iperf3_run()))
    (folder / "measurements.json").write_text(json.dumps([
        {"kind": "stream", "size_bytes": 10**9, "time_s": 0.5, "cores": 1.0}]))


def plans(folder: Path) -> None:
    """Two jobs on halves of eight hosts, and the whole of them as a third."""
    data = topology(hosts=8, fabric={"template": "leaf-spine", "leaves": 2, "spines": 4})
    halves = {"one": ["h-0", "h-1", "h-4", "h-5"], "two": ["h-2", "h-3", "h-6", "h-7"]}
    for name, hosts in halves.items():
        write_job(folder, data, hosts=hosts, flows="ring").rename(folder / f"{name}.yaml")
    write_job(folder, data, flows="ring").rename(folder / "job.yaml")
    (folder / "busy.yaml").write_text("rates: {leaf0->spine1: 4Gbps}\n")
    made = [sys.executable, "-m", "harp.cli.main", "plan", "one.yaml", "-o", "one.json"]
    subprocess.run(made, cwd=folder, check=True)


PAGES: dict[str, Callable[[Path], None]] = {
    "docs/start/tutorial.md": tutorial,
    "docs/use/topology.md": shipped,
    "docs/use/traces.md": traces,
    "docs/use/formats.md": formats,
    "docs/use/sweeps.md": sweeps,
    "docs/use/tuning.md": tuning,
    "docs/use/calibrate.md": calibrate,
    "docs/use/planned-paths.md": plans,
    "docs/use/deploy.md": lambda _: None,
    "docs/use/diagnose.md": lambda _: None,
}


@long
@pytest.mark.parametrize("page", long_except(
    PAGES, *(page for page in PAGES if "tuning" not in page)))
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    PAGES[page](tmp_path)
    here = [command for command in commands(page) if command not in ELSEWHERE]
    assert here
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HARP_CONF_FILE": "/dev/null"}
    for command in here:
        typed = command + SHORT * bool(SEARCHES.fullmatch(command))
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", typed], cwd=tmp_path,
                              env={**os.environ, "PATH": path, **home}, capture_output=True,
                              text=True, check=False)
        allowed = next((codes for start, codes in FINDS.items() if command.startswith(start)), {0})
        assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"


def test_torch_tests_that_run_elsewhere_are_on_a_page() -> None:
    written = {command for page in PAGES for command in commands(page)}
    assert set(ELSEWHERE) - written == set()
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []
