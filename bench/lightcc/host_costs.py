"""Costs of one host of lightcc.yaml, measured for the simulator apart from the judged rows.

All training ranks run each measurement at once, so that they share cores and memory as in a step:
a step without communication, one selection, scatter and cast, an all-reduce between the ranks of a
host, and one stream between the hosts on the shaped line. `calibrate` returns the changes to the
file (``sim.run --set``). Rows ddp-sim-* compare the simulator's answer for them with the measured
steps, which combine buckets, overlap, plans and four ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sim.schema.topology_model import Topology

    Ask = Callable[..., Sequence[Mapping[str, float]]]

MEMORY_BYTES = 25 << 20
STREAM_BYTES = 8 << 20
KERNELS = {"select": "selection_per_element", "scatter": "scatter_per_element",
           "cast": "cast_per_element"}
STACKS = {"host-tcp": "gloo", "host-harp": "lightcc"}
"""Backend of each stack of lightcc.yaml."""
ELEMENTS = 4 << 20
"""Elements among which a rank selects in a step of lightcc.yaml, on two hosts of two ranks."""
SECONDS = 0.2
"""Of each measurement of a kernel."""


def calibrate(ask: Ask, topology: Topology, training: Mapping[str, Any], elements: int,
              ) -> list[str]:
    """Measure, and give the changes of the file.

    Args:
        ask: makes all ranks run a command, and gives their answers.
        topology: lightcc.yaml; a stack of the name of each backend, and a framework ``host``.
        training: what ``do="train"`` needs beside backend and hook.
        elements: gradients of a rank.
    """
    alone_s = _each_s(ask(do="train", backend="gloo", light={}, hook="alone", seconds=60, most=3,
                          **training))
    assert set(STACKS) <= set(topology.stacks)
    changes = {"frameworks.host.copy_per_element":
               _ns(max(alone_s - training["step_s"], 0.0) / elements),
               **_memory_costs(ask), **_stream_rates(ask)}
    return [f"{key}={value}" for key, value in changes.items()]


def costs_of_vector(ask: Ask) -> list[str]:
    """Give the changes of lightcc.yaml, but for the line, where a vector alone is averaged."""
    changes = {"frameworks.host.copy_per_element": "0ns",  # into a bucket, as DDP does
               "hosts[0].gpus.samples_per_s": "1e9", **_memory_costs(ask), **_stream_rates(ask)}
    return [f"{key}={value}" for key, value in changes.items()]


def costs_of_outer(ask: Ask) -> list[str]:
    """Give the changes of outer.yaml, but for the step and the line."""
    return [f"{key}={value}" for key, value in _memory_costs(ask).items()]


def costs_of_kernels(ask: Ask) -> list[str]:
    """Give the changes of torchft.yaml: replicas have hosts of their own."""
    return [f"{key}={value}" for key, value in _kernel_costs(ask).items()]


def _kernel_costs(ask: Ask) -> dict[str, str]:
    changes = {}
    for kernel, parameter in KERNELS.items():
        answers = ask(do=kernel, elements=ELEMENTS, seconds=SECONDS, most=100)
        changes[f"frameworks.host.{parameter}"] = _ns(_slowest_s(answers) / ELEMENTS)
    return changes


def _memory_costs(ask: Ask) -> dict[str, str]:
    """Measure kernels, and the memory between the ranks of a host."""
    changes = _kernel_costs(ask)
    memory_s = _slowest_s(ask(do="memory", nbytes=MEMORY_BYTES, seconds=SECONDS, most=100))
    changes["hosts[0].nvlink.rate"] = f"{MEMORY_BYTES / memory_s / 1e9:.3f}GB/s"
    return changes


def _stream_rates(ask: Ask) -> dict[str, str]:
    """Measure one stream between the hosts, by each stack."""
    changes = {}
    for stack, backend in STACKS.items():
        stream_s = _each_s(ask(do="stream", backend=backend, nbytes=STREAM_BYTES, seconds=1,
                               most=5))
        changes[f"stacks.{stack}.flow_rate"] = f"{8 * STREAM_BYTES / stream_s / 1e6:.1f}Mbps"
    return changes


def _each_s(answers: Sequence[Mapping[str, float]]) -> float:
    return answers[0]["seconds"] / answers[0]["times"]


def _slowest_s(answers: Sequence[Mapping[str, float]]) -> float:
    return max(answer["seconds"] / answer["times"] for answer in answers)


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:.4f}ns"
