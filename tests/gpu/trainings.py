"""Trainings in one process on a GPU: in half precision, compiled, and in pages.

    python tests/gpu/trainings.py OUT [--device cpu] [--quick] [--only fp16,compile,pages]

fp16      six trainings with planted trouble (`tests.harp.ttf.amp.troubles`) end within a hundredth
          of full precision's loss by `harp.ttf.amp`; autocast and GradScaler stand beside it
compile   the twelve reports of `bench.ttf.recompile_reports` by `harp.ttf.compile`: results are
          those of torch.compile, one compilation beyond the fewest at most, and none at a second
          start
pages     steps a second of the example's GPT by `harp.angelptm` with less device memory than its
          states need, beside DeepSpeed's ZeRO-Offload and torchao's CPUOffloadOptimizer; and the
          largest model within two equal caps, beside ZeRO-Offload's 16 host bytes a parameter

What was found is written to the file OUT, as JSON: `lines` for a log and `problems`. A peer that is
not here, or fails, is a line with its error. Needs torch and harp; run.py starts it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for bench and tests; harp is installed

import torch

from bench.angelptm import loops
from bench.angelptm.capacity import job_of_one
from bench.ttf import compile_loops
from bench.ttf.recompile_reports import REPORTS
from harp.angelptm import initialize
from tests.harp.ttf.amp.troubles import TROUBLES, Training

if TYPE_CHECKING:
    from collections.abc import Callable

WITHIN, SHARE = 1.01, 0.95
"""Most of full precision's loss, and least of a healthy training's steps in half precision."""
OFF = 1e-2
"""Most that results of two ways to compute may differ by, of their size."""
STEPS, QUICK_STEPS = 300, 100
"""Of a training that is compiled, or has trouble."""
QUICK_REPORTS = ("counter",)
ZERO_OFFLOAD = 16
"""Host bytes a parameter of ZeRO-Offload: 4 of each master and moment, 2 of each gradient and of
the parameter (Ren and others, USENIX ATC 2021)."""


class Findings:
    """Lines for the log, and what is not as it should be."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.problems: list[str] = []

    def say(self, line: str) -> None:
        """Keep a line, and show it."""
        self.lines.append(line)
        print(line, flush=True)

    def expect(self, holds: bool, problem: str) -> None:
        """Keep a problem, if there is one."""
        if not holds:
            self.problems.append(problem)
            print(f"problem: {problem}", flush=True)


def fp16(found: Findings, device: str, *, quick: bool) -> None:
    """Train with planted trouble."""
    for trouble in TROUBLES[-1:] if quick else TROUBLES:
        steps = QUICK_STEPS if quick else STEPS
        full, alone = (Training(trouble, 1, device).run(how, steps) for how in
                       ("full", "autocast"))
        training = Training(trouble, 1, device)
        ours = training.run("ours", steps)
        share = training.controller.half_share
        found.say(f"fp16 {trouble}: loss {ours:.5g}, {ours / full:.4f} of full precision's; by "
                  f"autocast and GradScaler alone {alone / full:.4f}; {share:.0%} of steps half")
        found.expect(ours <= WITHIN * full, f"fp16 {trouble}: {ours / full:.4f} of full "
                     f"precision's loss, {WITHIN} at most is right")
        found.expect(trouble != "healthy" or share >= SHARE,
                     f"fp16 healthy: {share:.0%} of steps in half precision, {SHARE:.0%} at least "
                     "is right")


def compiled(found: Findings, device: str, *, quick: bool) -> None:
    """Run the reports; tensors that name no device are made on this one."""
    torch.set_default_device(device)
    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        for report in QUICK_REPORTS if quick else REPORTS:
            run = [compile_loops.run(report, how, steps, f"{folder}/{report}")
                   for how in ("default", "ours", "ours")]
            default, ours, again = run
            found.say(f"compile {report}: {ours['seconds']:.2f} s, torch.compile "
                      f"{default['seconds']:.2f} s; {ours['graphs']} graphs, torch.compile "
                      f"{default['graphs']}; at a second start {again['compiled']} compiled, "
                      f"{again['seconds']:.2f} s")
            off = abs(ours["found"] - default["found"])
            found.expect(off <= OFF * abs(default["found"]),
                         f"compile {report}: {ours['found']:g}, by torch.compile "
                         f"{default['found']:g}")
            found.expect(ours["graphs"] <= REPORTS[report].fewest + 1,
                         f"compile {report}: {ours['graphs']} graphs, {REPORTS[report].fewest} "
                         "and one at most are right")
            found.expect(not again["compiled"],
                         f"compile {report}: a second start compiled {again['compiled']} graphs")
    torch.set_default_device("cpu")


class Gpt:
    """The example's GPT in 16 bits, its tokens and what is measured of a training."""

    def __init__(self, device: str, *, quick: bool) -> None:
        layers, width = (2, 64) if quick else (24, 1024)
        torch.manual_seed(0)
        self.device, self.steps = device, 3 if quick else 20
        self.model = loops.example().GPT(layers, width, max(1, width // 64))
        self.parameters = sum(one.numel() for one in self.model.parameters())
        self.tokens = torch.randint(0, 1024, (4, 257)).to(device)

    def rate(self, step: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
        """Give steps a second and the last loss; `step` gets tokens and makes one."""
        for _ in range(5):
            step(self.tokens)
        wait_for(self.device)
        begin = time.perf_counter()
        for _ in range(self.steps):
            loss = step(self.tokens)
        wait_for(self.device)
        return self.steps / (time.perf_counter() - begin), float(loss)


def wait_for(device: str) -> None:
    """Wait until a device has done what it was given."""
    if device != "cpu":
        torch.accelerator.synchronize()


def by_engine(engine: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Make steps by DeepSpeed's calls."""
    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = loops.loss_of(engine(tokens[:, :-1]), tokens)
        engine.backward(loss)
        engine.step()
        return loss.detach()
    return step


def harp_rate(device: str, *, quick: bool, share: float = 1.0) -> tuple[float, float]:
    """Train in pages, of whose bytes the device holds a share."""
    gpt = Gpt(device, quick=quick)
    caps = {} if share == 1 else {"device_bytes": int(16 * share * gpt.parameters) + (128 << 20)}
    engine, *_ = initialize(model=gpt.model, config={
        "optimizer": {"type": "AdamW"}, "bf16": {"enabled": True},
        "angelptm": {**caps, "device": "cpu" if device == "cpu" else "accelerator"}})
    rate = gpt.rate(by_engine(engine))
    engine.destroy()
    return rate


def deepspeed_rate(device: str, *, quick: bool) -> tuple[float, float]:
    """Train by ZeRO-Offload: parameters and gradients on the device, the rest on the host."""
    import deepspeed

    gpt = Gpt(device, quick=quick)
    job_of_one()
    engine, *_ = deepspeed.initialize(
        model=gpt.model, model_parameters=gpt.model.parameters(), config={
            "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW"},
            "bf16": {"enabled": True}, "zero_optimization": {
                "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}})
    return gpt.rate(by_engine(engine))


def torchao_rate(device: str, *, quick: bool) -> tuple[float, float]:
    """Train with torchao's optimizer on the host, gradients with it."""
    from torchao.optim import CPUOffloadOptimizer

    gpt = Gpt(device, quick=quick)
    model = gpt.model.to(device, torch.bfloat16)
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=True,
                                    fused=True)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = loops.loss_of(model(tokens[:, :-1]), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return gpt.rate(step)


def pages(found: Findings, device: str, *, quick: bool) -> None:
    """Train beyond the device's memory."""
    resident, right = harp_rate(device, quick=quick)
    ours, loss = harp_rate(device, quick=quick, share=0.3)
    found.say(f"pages: {ours:.3g} steps/s with room for 0.3 of the states, {resident:.3g} with "
              f"all; losses {loss:.5g} and {right:.5g}")
    found.expect(abs(loss - right) <= OFF * right,
                 f"pages: the loss is {loss:g}, with all states on the device {right:g}")
    peers: dict[str, Callable[..., tuple[float, float]]] = {
        "torchao CPUOffloadOptimizer": torchao_rate, "DeepSpeed ZeRO-Offload": deepspeed_rate}
    for name, peer in peers.items():
        try:
            rate, loss = peer(device, quick=quick)
        except Exception as error:  # whatever a peer raises is its line
            said = (str(error).splitlines() or [""])[0]
            found.say(f"pages: {name} does not run: {type(error).__name__}: {said}")
            continue
        found.say(f"pages: {name} {rate:.3g} steps/s, loss {loss:.5g}; harp {ours / rate:.2f} "
                  "times as fast, 1.0 or more is wanted")
    split(found, device, *((32 << 20, 256) if quick else (1 << 30, 1024)))


def split(found: Findings, device: str, cap_bytes: int, width: int) -> None:
    """Find the largest model within two equal caps, and what the device really held."""
    if device != "cpu":
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
    largest = loops.largest(width, cap_bytes, "cpu" if device == "cpu" else "accelerator")
    ratio = largest / (cap_bytes / ZERO_OFFLOAD)
    found.say(f"pages: {largest / 1e6:.1f} M parameters within {cap_bytes >> 20} MiB of the device "
              f"and as much of the host, {ratio:.2f} times ZeRO-Offload's; 1.7 is wanted")
    if device == "cpu":
        return
    held = torch.accelerator.max_memory_allocated() - before
    found.say(f"pages: the device held {held >> 20} MiB at most, activations included")
    found.expect(held <= cap_bytes + (64 << 20),
                 f"pages: the device held {held >> 20} MiB under a cap of {cap_bytes >> 20} MiB")


WORK: dict[str, Callable[..., None]] = {"fp16": fp16, "compile": compiled, "pages": pages}


def main() -> None:
    """Do all, or what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="little of each")
    parser.add_argument("--only", default=",".join(WORK), help="of " + ", ".join(WORK))
    wish = parser.parse_args()
    if wish.device == "cpu":
        torch.set_num_threads(1)
    found = Findings()
    for name in wish.only.split(","):
        begin = time.perf_counter()
        WORK[name](found, wish.device, quick=wish.quick)
        found.say(f"{name}: {time.perf_counter() - begin:.0f} s")
        wish.out.write_text(json.dumps(vars(found)))


if __name__ == "__main__":
    main()
