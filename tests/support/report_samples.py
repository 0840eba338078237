"""Reports that look like real ones, for the tests of sim/report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.records.busbw import collective_row
from sim.records.results import (
    Breakdown,
    Cause,
    CollectiveReport,
    CollectiveRow,
    Cost,
    Expectation,
    Interval,
    Limit,
    LinkUse,
    Memory,
    Origin,
    Report,
    ScenarioResult,
    Span,
    TimeInterval,
    UsedParameter,
    Warned,
)

VGG_LAYERS_MB = [0.007, 0.15, 0.3, 0.6, 1.2, 2.4, 2.4, 4.7, 9.4, 9.4, 9.4, 9.4, 9.4, 411, 67, 16.4]
SOURCE = "Tencent's TACO Train documentation, VGG16 table"
# (scenario, images/s at 1, 8 and 16 GPUs, published at 16 GPUs, selection and per-message time)
SCENARIOS = [
    ("Horovod+TCP", (251, 1977, 846), 847, 0.0, 0.004),
    ("Horovod+HARP", (251, 1977, 1652), 1644, 0.0, 0.002),
    ("LightCC+HARP", (251, 1977, 3478), 3562, 0.021, 0.006),
]


def timeline(step_s: float, forward_s: float, backward_s: float, selection_s: float, *,
             hosts: int, gpus: int) -> tuple[Span, ...]:
    """A forward pass, a backward pass layer by layer, and transfers that follow its gradients."""
    spans = []
    layers = VGG_LAYERS_MB[::-1]
    update_s = 0.002
    transfer_s = step_s - forward_s - backward_s * 0.2 - selection_s - 2 * update_s
    for host in range(hosts):
        for gpu in range(gpus):
            track = f"gn10xp-{host}/gpu{gpu}"
            spans.append(Span(track, "forward", "forward", 0.0, forward_s))
            start = forward_s
            for index in range(len(layers)):
                end = start + backward_s / len(layers)
                spans.append(Span(track, f"layer {15 - index}", "backward", start, end))
                start = end
            spans.append(Span(track, "update", "update", step_s - update_s, step_s))
            if selection_s:
                spans.append(Span(track, "top-k", "selection", start, start + selection_s))
        if hosts == 1:
            continue
        start = forward_s + backward_s * 0.2
        for index, megabytes in enumerate(layers):
            ready = forward_s + backward_s * (index + 1) / len(layers)
            start = max(start, ready)
            end = min(start + transfer_s * megabytes / sum(layers), step_s - update_s)
            spans.append(Span(f"gn10xp-{host}/gpu0/stream0", f"bucket {index}", "transfer",
                              start, max(start, end)))
            start = max(start, end)
    return tuple(spans)


def link_use(step_s: float, load: float) -> LinkUse:
    """Eight resources whose load rises with the backward pass and ends before the step does."""
    names = tuple(f"gn10xp-{host}/{what}" for host in range(2)
                  for what in ("eth0 out", "eth0 in", "cores", "vnic0"))
    times = np.linspace(0.0, step_s, 41)
    middle = (times[1:] + times[:-1]) / 2
    busy = (middle > 0.2) & (middle < step_s - 0.01)
    scale = np.array([1.0, 1.0, 0.6, 0.3, 0.97, 0.97, 0.55, 0.28]) * load
    return LinkUse(names, times, scale[:, None] * busy[None, :])


def cell(name: str, gpus: int, rate: float, expect: float | None, kind: str, *,
         selection_s: float = 0.0, message_s: float = 0.0, load: float = 0.5,
         job: str = "") -> ScenarioResult:
    """One row of VGG16 on eight-GPU hosts."""
    step = 128 * gpus / rate
    one = 128 / 251
    compute = one if gpus == 1 else 128 * 8 / 1977
    alone = gpus <= 8
    latency = 0.0 if alone else 0.0005
    parts = (0.0, 0.0) if alone else (selection_s, message_s)
    transfer = max(0.0, step - compute - sum(parts) - latency)
    within = 0.08 if kind == "predicted" else 0.02
    interval = (Interval(0.96 * rate, 1.01 * rate, 1.05 * rate, 0.03, 0.06, 0.095, 24)
                if kind == "predicted" else None)
    causes = (Cause("horovod.overlap", 0.1, 0.9, 0.97 * rate, 1.04 * rate),
              Cause("source ports", None, None, 0.98 * rate, rate)) if interval else ()
    return ScenarioResult(
        name=name, gpus=gpus, job=job, images_per_s=rate, step_s=step,
        breakdown=Breakdown(step - transfer - sum(parts) - latency, transfer, parts[0], latency,
                            parts[1]),
        efficiency=rate / (gpus * 251),
        expect=None if expect is None else Expectation(expect, kind, within, SOURCE),  # type: ignore[arg-type]
        interval=interval,
        causes=causes,
        limits=(Limit("compute", compute), *([] if alone else [Limit("stack cores", transfer)])),
        spans=timeline(step, 0.17, compute - 0.175, parts[0], hosts=max(1, gpus // 8),
                       gpus=min(gpus, 8)),
        links=None if alone else link_use(step, load),
        cost=Cost("USD", 20.0 * max(1, gpus // 8), 1e8, "1e+08 samples"),
    )


ORIGIN = Origin("0" * 64, ("seed=1",), (
    UsedParameter("taco-harp.cores", 1.0, 1.0, 8.0, "assumed", "nobody"),))


def taco() -> Report:
    """The nine published cells and the six scenarios that were never published."""
    rows = []
    for name, (one, eight, sixteen), published, selection, message in SCENARIOS:
        kind = "predicted" if selection else "fitted"
        rows += [cell(name, 1, one, 251, "fitted"), cell(name, 8, eight, 1977, "fitted"),
                 cell(name, 16, sixteen, published, kind, selection_s=selection,
                      message_s=message, load=0.15 if "TCP" in name else 0.4)]
    more = [("2D+TCP", 1290, 0.0), ("2D+fp16+TCP", 2010, 0.0), ("top-k flat+TCP", 2730, 0.05),
            ("2D+HARP", 2405, 0.0), ("2D+fp16+HARP", 3015, 0.0), ("top-k flat+HARP", 2990, 0.05)]
    rows += [cell(name, 16, rate, None, "", selection_s=selection, message_s=0.003)
             for name, rate, selection in more]
    return Report("taco-vgg16-v100-25g", 1, tuple(rows), (), ORIGIN)


def two_jobs() -> Report:
    """Two jobs on one fabric, one row outside its tolerance, one with a note."""
    good = cell("ecmp", 16, 1000, 1010, "measured", job="a")
    bad = cell("ecmp", 16, 700, 1010, "measured", job="b")
    noted = ScenarioResult("plan", 16, "b", 990.0, good.step_s, good.breakdown,
                           tokens_per_s=990.0 * 1024, mfu=0.41,
                           memory=Memory(14 << 30, 14 << 30, 84 << 30, 5 << 30, 1 << 30),
                           notes=("A fault stalled 4 flows for 50 ms.",))
    return Report("two-jobs", 7, (good, bad, noted), ("All routes were planned in 0.1 s.",),
                  warnings=(Warned("seed", 3, "x.yaml:3:1: seed: has no effect on any row"),))


def _timed(row: CollectiveRow) -> CollectiveRow:
    return replace(row, interval=TimeInterval(0.8 * row.time_s, row.time_s, 1.3 * row.time_s, 24),
                   causes=(Cause("kernel-tcp.cost_per_byte", 3e-10, 6e-10, 1.2 * row.busbw,
                                 0.8 * row.busbw),))


def collective() -> CollectiveReport:
    """Three algorithms over a few sizes; the ring is best for large ones, the tree for small."""
    rows = [_timed(collective_row("allreduce", name, ranks=16, size_bytes=8 * 8**k,
                                  time_s=latency + 8 * 8**k / rate,
                                  limits=(Limit("NIC", 8 * 8**k / rate),
                                          Limit("latency", latency))))
            for name, latency, rate in (("ring", 60e-6, 1.5e9), ("tree", 16e-6, 1.0e9),
                                        ("2d", 40e-6, 2.6e9))
            for k in range(10)]
    return CollectiveReport("taco-vgg16-v100-25g", 1, "allreduce", 16, "float", tuple(rows), ORIGIN)
