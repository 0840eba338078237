"""AngelPTM's parts and steps, beside torch, DeepSpeed, fio and training with all on the device.

Rows ending in -sim hold a prediction against the row that it is of. Nothing is fitted: inputs are
the plan, and rates that are measured in the same round.

Rows io and io-write need Debian's fio, and are left out without it. Rows that end in -ds install
DeepSpeed into build/deepspeed; io-ds and io-write-ds need Debian's libaio-dev, too. If a peer does
not run, its row has the peer's error. Pages on disk lie in build/. Row pipe: five models in 2 to 8
stages, the quartile of 35 ratios; none may be above 1. Needs root.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.angelptm import control_group, peer
from bench.angelptm.experts import two_hosts
from bench.angelptm.sizes import (
    CAP_BYTES,
    CAP_WIDTH,
    COPY_BYTES,
    DEVICE_BYTES,
    HOST_BYTES,
    LAYERS,
    LINK_BYTES,
    MICROBATCHES,
    PAGE_BYTES,
    PAGES,
    PARAMETERS,
    QUARTER_BYTES,
    TOKENS,
    WIDTH,
)
from bench.arms import ROOT, Bench, Sample
from bench.comparison import ArmRow, compare
from bench.lightcc.lightcc_rows import Ranks, popen, sampled, simulated
from bench.rows import by_id
from bench.subject import BenchError
from harp.angelptm.page_plan import Capacities, CapacityError, first_placement
from harp.angelptm.pages import Layout
from lab.namespace import Namespace
from sim.step.stages import waits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.comparison import Arms

FOLDER = ROOT / "build"
TOPOLOGY = ROOT / "topologies" / "offload-cpu-gpt.yaml"
PIPE_RANK = (sys.executable, "-m", "bench.angelptm.pipe_rank")
RAM_BYTES = 4 << 30
"""Of the host: more than all states that are measured."""
STATES = 16
"""Bytes of a parameter's states: two of 2 in 16 bits, and master and moments of 4 (ZeRO, arXiv
1910.02054, section 3.1)."""


def fio(rw: str, seconds: float) -> Sample:
    """Read or write blocks of a page, eight under way, as fio does it."""
    file = FOLDER / "fio.pages"
    command = ["fio", "--name=pages", f"--filename={file}", f"--rw={rw}", "--bs=4m",
               "--iodepth=8", "--ioengine=io_uring", "--direct=1", f"--size={PAGES * 4}m",
               "--time_based", f"--runtime={max(seconds, 1):g}", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise BenchError(f"fio: {done.stderr.strip()}")
    job = json.loads(done.stdout)["jobs"][0]
    return Sample(job[rw]["bw_bytes"] * 1e-9)


def per_second(seconds: float) -> float:
    """Give an optimizer's rate, in billions of parameters a second."""
    return PARAMETERS * 1e-9 / seconds


def pages_gb_s(seconds: float) -> float:
    """Give the rate of a round over all pages."""
    return PAGES * PAGE_BYTES * 1e-9 / seconds


def nvme(what: str, seconds: float) -> Sample:
    """Read or write pages, eight under way, as DeepNVMe does it."""
    return Sample(pages_gb_s(peer.pages_moved(what, FOLDER, seconds)))


def deepspeed_adam(bench: Bench) -> Sample:
    """Make steps of DeepSpeed's optimizer."""
    return Sample(per_second(peer.adam_step(bench.cpus[1], bench.seconds)))


def ms(seconds: float) -> float:
    """Give milliseconds."""
    return 1e3 * seconds


def planned_parameters() -> int:
    """Count the parameters of the largest model whose states all have a place in the two caps.

    It grows by a layer at a time, in 16 bits, as `bench.angelptm.loops.largest` trains it.
    """
    pages, layers = CAP_BYTES // PAGE_BYTES, 0
    try:
        while True:
            layout = Layout((CAP_WIDTH ** 2,) * (layers + 1), 2, PAGE_BYTES)
            first_placement(layout.pages, Capacities(pages, pages))
            layers += 1
    except CapacityError:
        return layers * CAP_WIDTH ** 2


def pipeline_s(plan: Mapping[str, Any], unsplit_s: float, alone_s: float, copy_bytes_s: float,
               link_bytes_s: float) -> float:
    """Predict a step of a pipeline, as the simulator does: by its slowest stage.

    The stages divide the time of the unsplit batch as their operators' times say. It takes
    ``unsplit_s`` where all ranks of a host compute it at once, and ``alone_s`` at one rank: they
    share the host's memory, and a stage that waits leaves it to the others. The slowest stage waits
    for each microbatch's message from the stage before and from the one behind. Behind the last
    microbatch gradients are divided, a pass over memory, and those of tied weights exchanged.
    """
    forward, both = ([share * unsplit_s / MICROBATCHES for share in plan[name]]
                     for name in ("forward", "both"))
    slowest = max(range(len(both)), key=both.__getitem__)
    passes = (MICROBATCHES + waits_of(slowest, forward, both, MICROBATCHES)) * both[slowest]
    others = (unsplit_s / passes - 1) / (len(both) - 1)
    passes *= (alone_s + (unsplit_s - alone_s) * others) / unsplit_s
    messages = MICROBATCHES * ((slowest > 0) + (slowest < len(both) - 1))
    sent = messages * plan["sent_bytes"] + plan["tied_bytes"]
    return float(passes + sent / link_bytes_s + plan["gradient_bytes"] / copy_bytes_s)


@contextmanager
def one_process(bench: Bench) -> Iterator[Arms]:
    """Loops of a process of its own; the optimizer's on one core."""
    with closing(Namespace()) as space:
        words = (sys.executable, "-m", "bench.angelptm.loops", FOLDER)
        one = Ranks([popen(space, "taskset", "-c", str(bench.cpus[1]), *words)])
        all_cpus = Ranks([popen(space, *words)])

        def arm(to: Ranks, do: str, value: Callable[[float], float]) -> Callable[[], Sample]:
            def take() -> Sample:
                answers = to.ask(do=do, seconds=bench.seconds)
                return sampled(answers, value(answers[0]["seconds"] / answers[0]["times"]))
            return take

        def largest() -> float:
            return float(all_cpus.ask(do="largest")[0]["parameters"])

        def slower_alone() -> Sample:
            return max(arm(all_cpus, "step_resident", ms)(), arm(all_cpus, "disk_alone", ms)(),
                       key=lambda sample: sample.value)

        def predict(of: str, to: str, device: int, host: int) -> Sample:
            """Predict a step from what it computes and the rates that its engine has measured."""
            compute_ms = arm(all_cpus, "compute", ms)().value
            rates = all_cpus.ask(do="rates", of=of)[0]
            slows = all_cpus.ask(do="slows", seconds=bench.seconds)[0]["slows"]
            offload = {"to": to, "device": f"{device}B", "update": rates["update"],
                       "slows": max(slows, 0.0)}
            gpus = {"count": 1, "model": "CPU", "samples_per_s": 1e3 * TOKENS[0] / compute_ms}
            disk = {"capacity": "2GB", "read": f"{rates['disk'] * 1e-9:.4f}GB/s"}
            found = simulated([
                f"hosts[0].gpus={json.dumps(gpus)}",
                f"hosts[0].pcie.rate={rates['copy'] * 1e-9:.4f}GB/s",
                f"hosts[0].ram={host}B", f"hosts[0].disk={json.dumps(disk)}",
                f"scenarios[1].offload={json.dumps(offload)}"], TOPOLOGY)
            return Sample(1e3 / list(found.values())[1])

        yield {"HARP Adam": arm(one, "adam", per_second),
               "torch fused": arm(one, "torch_adam", per_second),
               "DeepSpeedCPUAdam": lambda: deepspeed_adam(bench),
               "HARP read": arm(all_cpus, "read", pages_gb_s),
               "fio read": lambda: fio("read", bench.seconds),
               "HARP write": arm(all_cpus, "write", pages_gb_s),
               "fio write": lambda: fio("write", bench.seconds),
               "DeepNVMe read": lambda: nvme("read", bench.seconds),
               "DeepNVMe write": lambda: nvme("write", bench.seconds),
               "a quarter": arm(all_cpus, "step_quarter", ms),
               "all resident": arm(all_cpus, "step_resident", ms),
               "clipping": arm(all_cpus, "step_clip", ms),
               "late updates": arm(all_cpus, "step_late", ms),
               "optimizer on disk": arm(all_cpus, "step_disk", ms),
               "compute or I/O alone": slower_alone,
               "simulated": partial(predict, "step_disk", "disk", DEVICE_BYTES, HOST_BYTES),
               "simulated, a quarter": partial(predict, "step_quarter", "host", QUARTER_BYTES,
                                               RAM_BYTES),
               "DeepSpeed NVMe": lambda: Sample(ms(peer.step_on_disk(
                   FOLDER, bench.seconds, LAYERS, WIDTH, *TOKENS))),
               "of the caps": lambda: Sample(STATES * largest() / (2 * CAP_BYTES)),
               "one space": lambda: Sample(largest() * 1e-6),
               "planned": lambda: Sample(planned_parameters() * 1e-6),
               # Arithmetic: its host has all but the 16-bit parameters, and is full first.
               "ZeRO-Offload's placement": lambda: Sample(CAP_BYTES / STATES * 1e-6)}


@contextmanager
def one_group(bench: Bench) -> Iterator[Arms]:
    """A control group with a limit, in which models train, each in a process of its own."""
    del bench
    yield {"HARP": lambda: Sample(control_group.largest("harp")),
           "DeepSpeed ZeRO-3": lambda: Sample(control_group.largest("deepspeed"))}


@contextmanager
def cut_models(bench: Bench) -> Iterator[Arms]:
    """Cuts of five models, by the times of their operators on one core."""
    with closing(Namespace()) as space:
        ranks = Ranks([popen(space, "taskset", "-c", str(bench.cpus[1]), *PIPE_RANK)])

        def take() -> Sample:
            answers = ranks.ask(do="cuts")
            return Sample(answers[0]["quartile"], more={"worst": answers[0]["worst"]})

        yield {"operators": take}


@contextmanager
def two_stages(bench: Bench) -> Iterator[Arms]:
    """Ranks of a pipeline over loopback, each with a CPU of its own."""
    with closing(Namespace()) as space:
        with space.entered(), socket.socket() as asking:
            asking.bind(("127.0.0.1", 0))
            port = asking.getsockname()[1]
        ranks = Ranks([popen(space, "taskset", "-c", str(cpu), *PIPE_RANK, RANK=rank,
                             WORLD_SIZE=len(bench.cpus), MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=port)
                       for rank, cpu in enumerate(bench.cpus)])

        def arm(do: str) -> Callable[[], Sample]:
            def take() -> Sample:
                answers = ranks.ask(do=do, seconds=bench.seconds)
                return sampled(answers, answers[0]["times"] / answers[0]["seconds"])
            return take

        def seconds(do: str) -> float:
            answer = ranks.ask(do=do, seconds=bench.seconds)[0]
            return float(answer["seconds"] / answer["times"])

        def predict() -> Sample:
            plans = ranks.ask(do="plan")
            plan = {**plans[0], "gradient_bytes": max(each["gradient_bytes"] for each in plans)}
            return Sample(1 / pipeline_s(plan, seconds("unsplit"), seconds("alone"),
                                         COPY_BYTES / seconds("copy"),
                                         LINK_BYTES / seconds("link")))

        yield {"operators": arm("operators"), "equal layers": arm("layers"),
               "predicted": predict}


ROWS = by_id((
    ArmRow("adam", "Adam over 64 M float32, one core", one_process, "HARP Adam", unit="G/s",
           against=("torch fused",)),
    ArmRow("adam-ds", "the same", one_process, "HARP Adam", unit="G/s",
           against=("DeepSpeedCPUAdam",)),
    ArmRow("io", "pages of 4 MiB read, 8 under way", one_process, "HARP read", unit="GB/s",
           against=("fio read",), target=0.95),
    ArmRow("io-write", "pages of 4 MiB written, 8 under way", one_process, "HARP write",
           unit="GB/s", against=("fio write",), target=0.95),
    ArmRow("io-ds", "the same, read", one_process, "HARP read", unit="GB/s",
           against=("DeepNVMe read",)),
    ArmRow("io-write-ds", "the same, written", one_process, "HARP write", unit="GB/s",
           against=("DeepNVMe write",)),
    ArmRow("resident", "step, device holds a quarter of parameters", one_process, "a quarter",
           unit="ms", against=("all resident",), target=1.1, lower=True),
    ArmRow("resident-sim", "simulated step, device holds a quarter", one_process,
           "simulated, a quarter", unit="ms", against=("a quarter",), within=0.15),
    ArmRow("clip", "the same with clipping: its updates wait", one_process, "clipping", unit="ms",
           against=("a quarter",), target=1.1, lower=True),
    ArmRow("disk", "step, moments on disk", one_process, "optimizer on disk", unit="ms",
           against=("compute or I/O alone",), target=1.2, lower=True),
    ArmRow("disk-late", "step, moments on disk, updates in the next", one_process,
           "late updates", unit="ms", against=("optimizer on disk",), target=1.0, lower=True),
    ArmRow("disk-ds", "the same", one_process, "optimizer on disk", unit="ms",
           against=("DeepSpeed NVMe",), target=0.769, lower=True),
    ArmRow("disk-sim", "simulated step, moments on disk", one_process, "simulated", unit="ms",
           against=("optimizer on disk",), within=0.15),
    ArmRow("cap", "states trained, of the caps of device and host", one_process, "of the caps",
           unit="", target=0.92),
    ArmRow("cap-split", "largest model, caps of 256 MiB each", one_process, "one space",
           unit="M", against=("ZeRO-Offload's placement",), target=1.7),
    ArmRow("cap-sim", "the same by the pages' bytes alone", one_process, "planned", unit="M",
           against=("one space",), within=0.15),
    ArmRow("cap-ds", "largest model in a control group of 1.5 GiB", one_group, "HARP", unit="M",
           against=("DeepSpeed ZeRO-3",), target=1.15, most_rounds=1),
    ArmRow("a2a", "top-8 of 64 experts, 2 hosts x 2 at 400 Mb/s", two_hosts, "HARP",
           unit="k tokens/s", against=("gloo, a copy an expert",), target=2.5,
           beside=("HARP, direct",)),
    ArmRow("a2a-rank", "the same", two_hosts, "HARP", unit="k tokens/s",
           against=("gloo, a copy a rank",), target=1.5),
    ArmRow("a2a-skew", "the same, the n-th expert 1/n as often", two_hosts, "HARP, Zipf",
           unit="ms", against=("busiest port",), target=1.1, lower=True),
    ArmRow("a2a-skew-sim", "the simulator's time of a2a-skew's plans", two_hosts,
           "simulator, Zipf", unit="ms", against=("HARP, Zipf",), within=0.15),
    ArmRow("a2a-sim", "the simulator's time of a2a's plans", two_hosts, "simulator",
           unit="ms", against=("HARP, plans",), within=0.15),
    ArmRow("pipe", "slowest stage over best cut between layers", cut_models, "operators",
           unit="", target=0.9, lower=True, limits={"worst": 1.0}),
    ArmRow("pipe-run", "GPT-2 in two stages, two CPUs", two_stages, "operators", unit="steps/s",
           against=("equal layers",), target=1.15, least_s=5.0),
    ArmRow("pipe-sim", "predicted steps of pipe-run", two_stages, "predicted", unit="steps/s",
           against=("operators",), within=0.15, least_s=5.0),
))


def available() -> dict[str, ArmRow]:
    """Leave out what is compared with fio, and models of transformers, where there are none."""
    missing = ([] if importlib.util.find_spec("transformers") else
               ["pipe", "pipe-run", "pipe-sim"])
    if not shutil.which("fio"):
        missing += ["io", "io-write"]
    return {name: row for name, row in ROWS.items() if name not in missing}


SUBJECT = compare(__doc__, ROWS, known=available)
