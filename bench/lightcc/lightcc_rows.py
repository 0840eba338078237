"""Speed of LightCC against gloo, MPI and oneCCL, and of DDP steps against the simulator.

Ranks are processes of this machine that live through all rounds. Each is in a group of LightCC and
in one of gloo, which move the same memory in turn (torch_rank.py). MPI's ranks are other
processes (mpi_rank.py): mpi4py with an Open MPI or MPICH on the PATH or beside the interpreter;
oneccl.py describes oneCCL's. Rows of a missing library are left out. Rows of training run
lightcc.yaml, which the simulator reads as well: two namespaces of two ranks each, DDP, layers that
sleep as long as a GPU would compute, and real gradients. Needs root.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arms import ROOT, Bench, Sample, alone, build, read_line
from bench.comparison import ArmRow, compare
from bench.lightcc import oneccl
from bench.lightcc.host_costs import calibrate, costs_of_vector
from bench.rows import by_id
from bench.subject import BenchError
from lab.namespace import Namespace
from lab.veth import veth_pair
from sim.schema import load
from sim.workloads.models import get_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.comparison import Arms, Group

SCENARIO = Path(__file__).with_name("lightcc.yaml")
VECTOR = Path(__file__).with_name("vector.yaml")
MOST = 2000
"""Most calls in a measurement."""
STEPS = 3
"""Steps of training in a measurement."""
WAIT_S = 120.0
AR_BYTES = 25 << 20
SMALL = {"8B": 8, "256B": 256, "4KiB": 4096}
ALLTOALL_BYTES = 4 << 20
VECTORS = {"gloo": "gloo", "2D, float16": "2d-fp16", "8 bits": "2d-int8"}
"""Scenario of lightcc.yaml for an arm that averages a vector between two hosts."""
HOOKS = {"alone": "alone", "2d-fp16": "fp16", "2d-int8": "average_gradients",
         "2d-topk": "average_gradients"}


class Ranks:
    """Processes that obey the same commands at once."""

    def __init__(self, processes: Sequence[subprocess.Popen[Any]]) -> None:
        self._processes = processes
        for process in processes:
            if read_line(process, WAIT_S).strip() != "ready":
                process.kill()
                said = process.communicate()[1].strip() or f"nothing was said for {WAIT_S:g} s"
                raise BenchError(f"a rank did not start: {said}")

    def ask(self, *, patience_s: float = WAIT_S, **what: Any) -> list[dict[str, Any]]:
        """Send a command to all, and return their answers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
        answers = [read_line(process, patience_s) for process in self._processes]
        for process, answer in zip(self._processes, answers, strict=True):
            if not answer:
                try:
                    ended = f"ended with status {process.wait(1)}"
                except subprocess.TimeoutExpired:
                    ended = f"did not answer within {patience_s:g} s"
                process.kill()
                said = process.communicate()[1][-2000:].strip() or "it said nothing"
                raise BenchError(f"a rank {ended}: {said}")
        return [json.loads(answer) for answer in answers]


def module(name: str) -> tuple[str, str]:
    """Return the interpreter's words that run a module: of this folder, or by its whole name."""
    return "-m", name if "." in name else f"bench.lightcc.{name}"


def popen(space: Namespace, *words: str | Path, **variables: object) -> subprocess.Popen[Any]:
    """Start a program that reads commands from stdin."""
    return space.start("env", *(f"{name}={value}" for name, value in variables.items()), *words,
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, cwd=ROOT)


def free_port(space: Namespace, address: str) -> int:
    """Find a TCP port that nobody has."""
    with space.entered(), socket.socket() as asking:
        asking.bind((address, 0))
        return int(asking.getsockname()[1])


def torch_ranks(spaces: Sequence[Namespace], master: str, module_name: str = "torch_rank",
                **variables: object) -> Ranks:
    """Start a rank of one of the modules for each namespace that is named."""
    port = free_port(spaces[0], master)
    return Ranks([popen(space, sys.executable, *module(module_name), RANK=rank,
                        WORLD_SIZE=len(spaces), MASTER_ADDR=master, MASTER_PORT=port, **variables)
                  for rank, space in enumerate(spaces)])


def mpi_launcher() -> str | None:
    """Find mpirun, if mpi4py is there to use it."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    return found if importlib.util.find_spec("mpi4py") else None


def mpi_ranks(space: Namespace, ranks: int, mpirun: str) -> Ranks:
    """Start MPI's ranks, which share memory."""
    # Open MPI asks for these where there are fewer cores than ranks, and of root; MPICH does not.
    return Ranks([popen(space, mpirun, "-n", str(ranks), sys.executable,
                        *module("mpi_rank"), OMPI_ALLOW_RUN_AS_ROOT=1,
                        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, PRTE_MCA_rmaps_default_mapping_policy=
                        ":oversubscribe", OMPI_MCA_mpi_yield_when_idle=1)])


# Figures

def us(_: int, answers: Sequence[dict[str, float]]) -> float:
    """Time of one."""
    return 1e6 * answers[0]["seconds"] / answers[0]["times"]


def gb_s(nbytes: int, answers: Sequence[dict[str, float]]) -> float:
    """Bytes over time."""
    return nbytes * 1e-9 * answers[0]["times"] / answers[0]["seconds"]


def quantised_gb_s(answers: Sequence[dict[str, float]]) -> float:
    """Bytes of float32 that go by, over time: values, error twice, sum twice."""
    return gb_s(5 * 100_000_000, answers)


def sampled(answers: Sequence[dict[str, float]], value: float) -> Sample:
    """Make a sample of all ranks' answers."""
    cpu_s = sum(answer.get("cpu_s", 0.0) for answer in answers)
    return Sample(value, cpu_s / answers[0]["seconds"])


# Places

def one_host(ranks: int) -> Group:
    """Ranks of one host: allreduce and all-to-all, by LightCC, gloo and MPI."""
    works: dict[str, tuple[str, int, Callable[..., float]]] = {
        "25 MiB": ("allreduce", AR_BYTES, gb_s)}
    if ranks == 4:
        works |= {name: ("allreduce", size, us) for name, size in SMALL.items()}
        works["all-to-all"] = ("alltoall", ALLTOALL_BYTES, gb_s)

    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        with ExitStack() as stack:
            space = stack.enter_context(closing(Namespace()))
            torches = torch_ranks([space] * ranks, "127.0.0.1")
            mpirun = mpi_launcher()
            mpis = mpi_ranks(space, ranks, mpirun) if mpirun else None

            def arm(to: Ranks, do: str, nbytes: int, unit: Callable[..., float],
                    **more: Any) -> Callable[[], Sample]:
                def take() -> Sample:
                    answers = to.ask(nbytes=nbytes, seconds=bench.seconds / 2, most=MOST, **more)
                    return sampled(answers, unit(nbytes, answers))
                if to is torches:
                    more |= {"do": do}
                return take

            arms: Arms = {}
            for name, work in works.items():
                arms |= {f"{backend}, {name}": arm(torches, *work, backend=backend, light={})
                         for backend in ("lightcc", "gloo")}
                if work[-1] is us:
                    arms[f"LightCC, {name}"] = arm(torches, "allreduce_by_own_call", *work[1:])
                if mpis and work[0] == "allreduce":
                    arms[f"MPI, {name}"] = arm(mpis, *work)
            if oneccl.is_there():
                command = oneccl.command(ranks, AR_BYTES, bench.seconds / 2)
                arms["oneCCL, 25 MiB"] = lambda: alone(command, lambda got: gb_s(AR_BYTES, [got]))
            yield arms
    return group


@contextmanager
def kernels(bench: Bench) -> Iterator[Arms]:
    """Loops of one core."""
    with closing(Namespace()) as space:
        worker = Ranks([popen(space, "taskset", "-c", str(bench.cpus[1]), sys.executable,
                              *module("kernels"))])
        triad = build("triad")

        def arm(do: str, unit: Callable[..., float]) -> Callable[[], Sample]:
            def take() -> Sample:
                answers = worker.ask(do=do, seconds=bench.seconds)
                return sampled(answers, unit(3 * 100_000_000, answers))
            return take

        yield {"HARP chunks": arm("chunk_topk", us), "HARP exact": arm("exact_topk", us),
               **{f"HARP {bits} bits": arm(f"quant_{bits}", lambda _, answers: quantised_gb_s(
                   answers)) for bits in (8, 4)},
               "HARP topk": arm("topk", us), "torch.topk": arm("torch_topk", us),
               "HARP sum": arm("total", gb_s),
               "triad": lambda: alone([triad, str(bench.cpus[1]), str(bench.seconds / 2)],
                                      lambda got: float(got["bytes"]) * 1e-9 / got["seconds"])}


def simulated(changes: Sequence[str], scenario: Path = SCENARIO) -> dict[str, float]:
    """Give the simulator's steps a second, by scenario, on the host that was measured."""
    sets = [word for change in changes for word in ("--set", change)]
    done = subprocess.run([sys.executable, "-m", "sim.run", scenario, "--quiet", "--draws", "0",
                           "--json", "-", *sets], capture_output=True, text=True, check=False,
                          cwd=ROOT)
    if done.returncode:
        raise BenchError(f"the simulator failed: {done.stderr.strip()}")
    return {row["name"]: 1e3 / row["step_ms"] for row in json.loads(done.stdout)["scenarios"]}


@contextmanager
def training(_: Bench) -> Iterator[Arms]:
    """Two hosts of two ranks; a figure of CPU belongs to the run before it."""
    file = load(SCENARIO)
    host, = file.hosts
    assert host.gpus.samples_per_s is not None
    last: dict[str, list[dict[str, float]]] = {}
    with veth_pair() as (a, b):
        for end in (a, b):
            end.congestion("cubic")
            end.shape(int(host.nics[0].rate))
        ranks = torch_ranks([a.space, a.space, b.space, b.space], a.ipv4,
                            GLOO_SOCKET_IFNAME=a.device, HARP_IFNAME=a.device)
        assert a.device == b.device

        work: dict[str, Any] = {"model": file.workload.model,
                                "step_s": 1 / host.gpus.samples_per_s}

        def arm(name: str, light: dict[str, str]) -> Callable[[], Sample]:
            def take() -> Sample:
                last[name] = ranks.ask(
                    do="train", backend="gloo" if name == "gloo" else "lightcc", light=light,
                    hook=HOOKS.get(name, ""), seconds=60, most=STEPS, **work)
                return sampled(last[name], STEPS / last[name][0]["seconds"])
            return take

        arms: Arms = {"alone": arm("alone", {})}
        for scenario in file.scenarios:
            settings = {key: str(value) for key, value in scenario.light_settings.items()}
            if scenario.allreduce == "2d":
                settings = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": str(host.gpus.count)}
            arms[scenario.name] = arm(scenario.name, settings)
        elements = sum(tensor.elements for tensor in get_model(file.workload.model).tensors)

        def predict(name: str) -> Callable[[], Sample]:
            def take() -> Sample:
                if name not in predicted:  # a round measures the host anew, beside its own steps
                    predicted.update(simulated(calibrate(ranks.ask, file, work, elements)))
                return Sample(predicted.pop(name))
            return take

        predicted: dict[str, float] = {}
        cpu: Arms = {f"CPU, {name}": _cpu_of(name, arms[name], last) for name in ("ring", "gloo")}
        predictions = {f"sim, {scenario.name}": predict(scenario.name)
                       for scenario in file.scenarios}
        yield {**arms, **cpu, **predictions}


@contextmanager
def two_hosts(bench: Bench) -> Iterator[Arms]:
    """Two hosts of two ranks over 1 Gb/s: an allreduce of 25 MiB in ever fewer bits."""
    with veth_pair() as (a, b):
        for end in (a, b):
            end.congestion("cubic")
            end.shape(1_000_000_000)
        ranks = torch_ranks([a.space, a.space, b.space, b.space], a.ipv4,
                            GLOO_SOCKET_IFNAME=a.device, HARP_IFNAME=a.device)

        def arm(do: str, **more: Any) -> Callable[[], Sample]:
            def take() -> Sample:
                answers = ranks.ask(do=do, nbytes=AR_BYTES, seconds=bench.seconds, most=MOST,
                                    **more)
                return sampled(answers, 1e-3 * us(AR_BYTES, answers))
            return take

        def predict(name: str) -> Callable[[], Sample]:
            def take() -> Sample:
                if name not in predicted:
                    predicted.update(simulated([
                        f"workload.model={VECTOR}", "hosts[0].nics[0].rate=1Gbps",
                        *costs_of_vector(ranks.ask)]))
                return Sample(1e3 / predicted.pop(name))
            return take

        predicted: dict[str, float] = {}
        two_d = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_INTRA_SIZE": "2"}
        yield {**{f"sim, {name}": predict(scenario) for name, scenario in VECTORS.items()},
               "gloo": arm("allreduce", backend="gloo", light={}),
               "2D, float16": arm("allreduce_as_float16", backend="lightcc", light=two_d),
               "ring, float16": arm("allreduce_as_float16", backend="lightcc", light={}),
               **{f"{bits} bits": arm("allreduce_in_bits", bits=bits, intra=2)
                  for bits in (8, 4)}}


def _cpu_of(name: str, run: Callable[[], Sample],
            last: dict[str, list[dict[str, float]]]) -> Callable[[], Sample]:
    def take() -> Sample:
        if name not in last:
            run()
        return Sample(1e3 * sum(answer["cpu_s"] for answer in last.pop(name)) / STEPS)
    return take


# Rows

ONE_HOST = {ranks: one_host(ranks) for ranks in (2, 4)}


def allreduce_rows() -> Iterator[ArmRow]:
    """Give a row for each reference."""
    for ranks, group in ONE_HOST.items():
        row = ArmRow(f"ar-25m-{ranks}", f"allreduce of 25 MiB, {ranks} ranks", group,
                     "lightcc, 25 MiB", unit="GB/s", against=("gloo, 25 MiB",), target=2.0)
        yield row
        for other in ("MPI", "oneCCL"):
            yield replace(row, id=f"{row.id}-{other.lower()}", against=(f"{other}, 25 MiB",),
                          target=1.0)
    for name in SMALL:
        row = ArmRow(f"ar-{name}", f"allreduce of {name}, 4 ranks", ONE_HOST[4], f"lightcc, {name}",
                     unit="µs", against=(f"gloo, {name}",), target=0.3, lower=True)
        yield row
        by_mpi = replace(row, id=f"{row.id}-mpi", against=(f"MPI, {name}",), target=1.2)
        yield replace(by_mpi, what=f"{row.what}, no torch", value=f"LightCC, {name}")
        yield replace(by_mpi, id=f"ar-{name}-torch-mpi", target=0.0)


def training_rows() -> Iterator[ArmRow]:
    """Give the rows of DDP."""
    def row(name: str, what: str, value: str, against: str, **more: Any) -> ArmRow:
        return ArmRow(f"ddp-{name}", what, training, value, unit="steps/s", against=(against,),
                      **more)

    yield row("2d-topk", "DDP, 2D and top-k", "2d-topk", "gloo", target=4.2)
    yield row("alone", "DDP that averages nothing: their floor", "alone", "gloo", target=0.0)
    yield row("ring", "DDP, HARP's ring", "ring", "gloo", target=1.0)
    yield replace(row("ring-cpu", "the same, CPU of all ranks in a step", "CPU, ring", "CPU, gloo",
                      target=1.0, lower=True), unit="ms")
    yield row("2d", "DDP, dense 2D, beside 2D and top-k", "2d", "2d-topk", target=0.0)
    yield row("2d-fp16", "DDP, 2D of float16, beside 2D and top-k", "2d-fp16", "2d-topk",
              target=0.0)
    yield row("2d-int8", "DDP, 2D and LIGHT_BITS 8, beside 2D of float16", "2d-int8", "2d-fp16",
              target=0.0)
    for name in ("gloo", "ring", "2d", "2d-fp16", "2d-int8", "2d-topk"):
        yield row(f"sim-{name}", f"simulated {name}", f"sim, {name}", name,
                  within=0.15)


ROWS = by_id((
    *training_rows(), *allreduce_rows(),
    ArmRow("topk", "largest 1 % of 25 M float32, one core", kernels, "HARP topk", unit="µs",
           against=("torch.topk",), target=0.2, lower=True),
    ArmRow("sum", "sum of float32, one core", kernels, "HARP sum", unit="GB/s", against=("triad",),
           target=0.8),
    ArmRow("quant-8", "25 M float32 to 8 bits and added, one core", kernels, "HARP 8 bits",
           unit="GB/s", against=("triad",), target=0.5),
    ArmRow("quant-4", "the same with 4 bits", kernels, "HARP 4 bits", unit="GB/s",
           against=("triad",), target=0.5),
    ArmRow("chunk-topk", "1 of 64 in chunks of 4,096 of 25 M float32", kernels, "HARP chunks",
           unit="µs", against=("HARP exact",), target=0.5, lower=True),
    ArmRow("int8-25m", "allreduce of 25 MiB as int8, two hosts, 1 Gb/s", two_hosts, "8 bits",
           unit="ms", against=("ring, float16",), target=1 / 1.8, lower=True),
    ArmRow("int8-25m-2d", "the same beside 2D of float16", two_hosts, "8 bits", unit="ms",
           against=("2D, float16",), target=0.0, lower=True),
    ArmRow("int8-25m-gloo", "the same beside gloo's float32", two_hosts, "8 bits", unit="ms",
           against=("gloo",), target=1 / 3.5, lower=True),
    *(ArmRow(f"sim-{name}", f"simulated {arm}, 25 MiB, two hosts, 1 Gb/s", two_hosts,
             f"sim, {arm}", unit="ms", against=(arm,), within=0.15)
      for name, arm in (("int8-25m", "8 bits"), ("fp16-25m", "2D, float16"),
                        ("gloo-25m", "gloo"))),
    ArmRow("a2a", "all-to-all, uneven, 4 ranks, 4 MiB to each", ONE_HOST[4], "lightcc, all-to-all",
           unit="GB/s", against=("gloo, all-to-all",), target=2.0),
))


def available() -> dict[str, ArmRow]:
    """Leave out what is compared with MPI and oneCCL where there are none."""
    missing = [*([] if mpi_launcher() else ["-mpi"]),
               *([] if oneccl.is_there() else ["-oneccl"])]
    return {name: row for name, row in ROWS.items() if not name.endswith(tuple(missing))}


SUBJECT = compare(__doc__, ROWS, known=available)
