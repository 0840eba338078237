"""``make test-gpu``: real NCCL over HARP, LightCC and trainings, where there is a CUDA GPU.

    python -m tests.gpu.run [--evidence FOLDER] [--seconds 300] [--networks socket,harp-auto]
    python -m tests.gpu.run --rehearse      # over gloo and LightCC on CPUs: tries the ranks

Two ranks on one GPU that seem to be on two hosts run collectives and train over NCCL's Socket
transport, over HARP's ports, by LightCC's staging and by its hook over NCCL; their losses must be
the same to the last bit. Kernels of both share the GPU by turns, so it shows that HARP is right,
not that it is fast. Then one process trains in half precision, compiled and in pages
(trainings.py). What was found is written to docs/evidence/, with versions and hardware.

Without a GPU, or a python that has torch with CUDA (this one, python3, or the one that TORCH_PYTHON
names), it says so and ends with status 0. LightCC and trainings need harp in that python as well,
and are left out with a line where it is not. This file needs Python and a C compiler only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from lab import nccl_pair
from lab.namespace import why_unusable
from tests.gpu import launch
from tests.support import ROOT

HAS_TORCH = "import torch"
HAS_CUDA = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"
TOLD = ("NET/HARP", "NET/Plugin", "Using network", "NCCL version", "via NET")
"""Which lines of NCCL's log are evidence."""
TRAININGS = 4
"""Time of the trainings of one process, in that of a job."""


def torch_python(wanted: str) -> tuple[str, str]:
    """Find a python whose torch has what is wanted, or say why there is none."""
    asked = os.environ.get("TORCH_PYTHON")
    why = "no python here has torch (TORCH_PYTHON=/path/to/python names one that has)"
    for python in [asked] if asked else [sys.executable, "python3"]:
        try:
            done = subprocess.run([python, "-c", wanted], capture_output=True, check=False,
                                  timeout=300)
        except OSError as error:
            return "", f"{python} cannot be run: {error.strerror}"
        if done.returncode == 0:
            return python, ""
        if done.returncode == 3:
            why = f"the torch of {python} sees no CUDA GPU"
    return "", why


def why_no_harp(python: str) -> str:
    """Say why harp cannot be imported, or nothing."""
    with tempfile.TemporaryDirectory() as elsewhere:  # this folder has harp, but not its library
        done = subprocess.run([python, "-c", "import harp._cnet"], capture_output=True, text=True,
                              check=False, cwd=elsewhere, timeout=300)
    if not done.returncode:
        return ""
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"{python} cannot import harp ({said}); {python} -m pip install {ROOT} puts it there"


def train(python: str, seconds: float, *, rehearse: bool) -> tuple[list[str], list[str]]:
    """Run the trainings of one process; gives lines for the log, and problems."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "found.json", Path(folder) / "log"
        code: int | None = None
        with log.open("w") as file, suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                [python, ROOT / "tests" / "gpu" / "trainings.py", out,
                 *(("--device", "cpu", "--quick") if rehearse else ())],
                stdout=file, stderr=file, check=False, cwd=folder, timeout=seconds).returncode
        found = json.loads(out.read_text()) if out.exists() else {"lines": [], "problems": []}
        problems = list(found["problems"])
        if code != 0:
            how = f"did not end in {seconds:.0f} s" if code is None else f"ended with status {code}"
            problems.append(f"trainings: {how}")
            print(f"-- trainings\n{log.read_text(errors='replace')[-4000:]}")
    return found["lines"], problems


def main(arguments: list[str] | None = None) -> int:
    """Run all networks; the status is 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--evidence", type=Path, default=ROOT / "docs" / "evidence")
    parser.add_argument("--seconds", type=float, default=300, help="that a job may take")
    parser.add_argument("--networks", default="", help="those with these names alone, by commas")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU")
    wish = parser.parse_args(arguments)
    python, why = torch_python(HAS_TORCH if wish.rehearse else HAS_CUDA)
    if not python:
        print(f"test-gpu: skipped: {why}.")
        return 0
    rehearsed = [launch.REHEARSAL, launch.LIGHTCC, launch.HOOK_REHEARSAL]
    plugin = Path() if wish.rehearse else nccl_pair.harp(("-O2",))
    networks = rehearsed if wish.rehearse else launch.networks(plugin)
    if wish.networks:
        networks = [one for one in networks if one.name in wish.networks.split(",")]
    jobs: list[launch.Ended] = []
    lines: list[str] = []
    good, no_harp = True, why_no_harp(python)
    for network in networks:
        if network.needs_harp and no_harp:
            lines.append(f"{network.name}: not tried: {no_harp}")
            print(lines[-1])
            continue
        if network.needs_root and why_unusable():
            lines.append(f"{network.name}: not tried: {why_unusable()}")
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            job = launch.run(network, [python, ROOT / "tests" / "gpu" / "rank.py"],
                             Path(folder) / "job", timeout_s=wish.seconds)
        problems = job.problems(jobs[0] if jobs else None)
        jobs.append(job)
        good = good and not problems
        lines += problems or [f"{network.name}: all as it should be, "
                              f"{time.monotonic() - begin:.0f} s"]
        print("\n".join(problems) or lines[-1], flush=True)
        if problems:
            print("\n".join(f"-- rank {rank}\n{log[-4000:]}" for rank, log in enumerate(job.logs)))
    if not wish.networks and no_harp:
        lines.append(f"trainings: not tried: {no_harp}")
        print(lines[-1])
    elif not wish.networks:
        found, problems = train(python, TRAININGS * wish.seconds, rehearse=wish.rehearse)
        good = good and not problems
        lines += [*found, *problems]
        print("\n".join([*found, *problems]))
    if not wish.rehearse:
        print(f"test-gpu: {write(wish.evidence, jobs, lines + perf(plugin))}")
    return int(not good)


def perf(plugin: Path) -> list[str]:
    """Run nccl-tests' all_reduce_perf (built with MPI), if it is here; its table for the log."""
    if not (shutil.which("all_reduce_perf") and shutil.which("mpirun")):
        return ["all_reduce_perf: not here, or without mpirun"]
    settings = {**launch.ONE_GPU, "NCCL_NET_PLUGIN": str(plugin), "NCCL_NET": "HARP",
                "HARP_PORT": "udp", "HARP_IFNAME": "=lo", "NCCL_SOCKET_IFNAME": "=lo",
                "HARP_CONF_FILE": "/dev/null", "NCCL_TESTS_DEVICE": "0"}
    host = 'NCCL_HOSTID=harp-host-$OMPI_COMM_WORLD_RANK exec all_reduce_perf "$@"'
    done = subprocess.run(
        ["mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe",
         *(word for name in settings for word in ("-x", name)),
         "sh", "-c", host, "sh", "-b", "8", "-e", "64M", "-f", "8", "-g", "1"],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=300)
    table = [line for line in done.stdout.splitlines() if line.startswith((" ", "#"))]
    return [f"all_reduce_perf: status {done.returncode}", *table]


def write(folder: Path, jobs: list[launch.Ended], lines: list[str]) -> Path:
    """Keep what was found, under today's date."""
    now = datetime.datetime.now(datetime.timezone.utc)
    known = next((job.found[0]["versions"] for job in jobs if job.found), {})
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True, check=False).stdout.strip()
    text = [f"NCCL over HARP, {now:%Y-%m-%d %H:%M} UTC, commit {commit or 'unknown'}",
            *(f"{name}: {value}" for name, value in known.items()), "", *lines]
    for job in jobs:
        text += ["", f"-- {job.network.name}, statuses {job.codes}"]
        text += [f"seconds of rank {rank}: {found['seconds']}"
                 for rank, found in enumerate(job.found)]
        if job.found:
            losses = [float.fromhex(loss) for loss in job.found[0]["losses"]]
            text.append(f"losses of rank 0: {losses[0]:.6f} ... {losses[-1]:.6f}, "
                        f"{len(losses)} steps")
        text += [line for line in job.logs[0].splitlines() if any(told in line for told in TOLD)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"nccl-{now:%Y-%m-%d}.txt"
    path.write_text("\n".join(text) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
