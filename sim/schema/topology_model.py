"""The whole topology file as one frozen model; `sim.schema.load` makes it from a file.

`packet_keys` lists the keys that only fidelity `packet` reads (one of them `lab` as well).
"""

import hashlib
import json
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema

from sim.schema.base import Model, Name
from sim.schema.gpu_kinds import Reached
from sim.schema.hosts import HostGroup
from sim.schema.input_errors import Path, Problem, TopologyError, show
from sim.schema.network_keys import Fabric, Vpc
from sim.schema.parameters import FrameworkSet, StackSet
from sim.schema.price_keys import Prices
from sim.schema.scenario_keys import (
    AnyExpect,
    Background,
    Expect,
    Fault,
    Job,
    Scenario,
    Workload,
)
from sim.schema.source import Source

SMALLEST, LARGEST = Fraction(1, 100_000), Fraction(1)
_ALLOWED = "a share such as 1/100 or 0.01, from 1/100000 to 1"


def _read_scale(given: Any) -> float:
    try:
        scale = Fraction(str(given))
    except (ValueError, ZeroDivisionError):
        raise Problem(f"{show(given)} is no share", found=given, allowed=_ALLOWED) from None
    if not SMALLEST <= scale <= LARGEST:
        raise Problem(f"{show(given)} is out of range", found=given, allowed=_ALLOWED)
    return float(scale)


Scale = Annotated[float, BeforeValidator(_read_scale), WithJsonSchema(
    {"type": ["number", "string"], "examples": ["1/100"]})]


class Lab(Model):
    """Settings of `--fidelity lab` beside the cluster."""

    scale: Scale = 0.01
    """Share of their rates at which links run; a step takes as many times as long."""


PACKET_KEYS: tuple[Path, ...] = (("background", "congestion"), ("fabric", "switch"),
                                 ("hosts", "nics", "ring"), ("scenarios", "congestion"),
                                 ("vpc", "police"))
"""Without the numbers of lists."""
LAB_TOO = "scenarios.congestion"
"""The one that the laboratory reads as well."""


def is_of_packet(path: Path) -> bool:
    """Whether what stands at ``path`` is for fidelity packet alone."""
    keys = tuple(part for part in path if not isinstance(part, int))
    return any(keys[:len(known)] == known for known in PACKET_KEYS)


def packet_keys(plain: Any) -> list[str]:
    """Those that a file has, as it names them, each once."""
    return [".".join(map(str, known)) for known in PACKET_KEYS if any(_at(plain, known))]


def _at(value: Any, path: Path) -> Iterator[bool]:
    if isinstance(value, list):
        for child in value:
            yield from _at(child, path)
    elif not path:
        yield True
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])


class Topology(Model):
    """A cluster, what runs on it, the scenarios to compare and the figures to hold them against."""

    name: Name
    """Name of the cluster."""
    description: str = ""
    """The cluster in a sentence, and why it is interesting."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1, strict=True)] = 1
    """Seed of everything that is random."""
    hosts: Annotated[tuple[HostGroup, ...], Field(min_length=1, max_length=256)]
    """Groups of equal hosts."""
    vpc: Vpc | None = None
    """Limits of the cloud's virtual network; none where not given."""
    fabric: Fabric
    """The network between the hosts."""
    stacks: dict[str, StackSet] = Field(default_factory=dict, max_length=64)
    """Host stacks of this file's own, by name."""
    frameworks: dict[str, FrameworkSet] = Field(default_factory=dict, max_length=64)
    """Framework costs of this file's own, by name."""
    workload: Workload = Field(default_factory=lambda: Workload(model="vgg16", batch=1))
    """The training; a file without one is for --collective alone."""
    jobs: Annotated[tuple[Job, ...], Field(max_length=4096)] = ()
    """Jobs at once on the fabric; one on all hosts where not given."""
    background: Annotated[tuple[Background, ...], Field(max_length=64)] = ()
    """Traffic that may be beside the jobs; a scenario names what runs beside its own."""
    scenarios: Annotated[tuple[Scenario, ...], Field(min_length=1, max_length=256)] = Field(
        default_factory=lambda: (Scenario(name="TCP", stack="kernel-tcp"),))
    """Variants to compare, a row each; kernel TCP alone where not given."""
    faults: Annotated[tuple[Fault, ...], Field(max_length=4096)] = ()
    """Possible faults; a scenario names those that strike it."""
    figures: Annotated[tuple[AnyExpect, ...], Field(max_length=4096)] = Field((), alias="expect")
    """Published or measured figures."""
    prices: Prices | None = None
    """Prices of hosts; with them each row has a cost."""
    lab: Lab = Lab()
    """Settings of `--fidelity lab`."""
    fitted_on: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")] | None = None
    """Fingerprint of the cluster and workload that the figures under `expect` come from; on any
    other the answers are not compared with them. `python -m sim.calibrate` prints it."""

    _source: Source | None = PrivateAttr(None)

    @cached_property
    def expect(self) -> tuple[Expect, ...]:
        """Figures of training."""
        return tuple(figure for figure in self.figures if isinstance(figure, Expect))

    def require_workload(self) -> None:
        """Raise TopologyError where the file does not say what is trained."""
        if "workload" not in self.model_fields_set and not (
                self.jobs and all(job.workload for job in self.jobs)):
            raise self.error(Problem("has no workload, so that nothing can be trained",
                                     path=("workload",), at_key=True,
                                     allowed="workload: {model: ..., batch: ...}, workload: "
                                     "{trace: ...}, or collectives (--collective)"))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of all hosts, in the order of the file, which is the order of ranks."""
        return tuple(name for group in self.hosts for name in group.names)

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole cluster."""
        return sum(group.count * group.gpus.count for group in self.hosts)

    def gpu_counts(self, scenario: Scenario) -> tuple[int, ...]:
        """Numbers of GPUs at which ``scenario`` runs; with jobs, once on the whole cluster."""
        return scenario.gpus or (self.gpu_count,)

    @property
    def reached(self) -> Reached | None:
        """Share of the data sheet that GPUs given by model alone reach.

        None if any has a speed of its own, or they differ.
        """
        found = {group.gpus.reached for group in self.hosts}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def gpu_totals(self) -> tuple[int, ...]:
        """GPUs of the first host, the first two, the first three ..."""
        return tuple(accumulate(group.gpus.count for group in self.hosts
                                for _ in range(group.count)))

    @cached_property
    def _job_gpus(self) -> dict[str, int]:
        gpus = {name: group.gpus.count for group in self.hosts for name in group.names}
        return {job.name: sum(gpus.get(host, 0) for host in job.hosts) for job in self.jobs}

    def jobs_of(self, scenario: Scenario) -> tuple[Job, ...]:
        """Jobs that ``scenario`` runs, in the order of the file."""
        return tuple(job for job in self.jobs
                     if scenario.jobs is None or job.name in scenario.jobs)

    def workloads_of(self, scenario: Scenario) -> tuple[Workload, ...]:
        """Workloads of the jobs of ``scenario``, each once."""
        own = [job.workload or self.workload for job in self.jobs_of(scenario)]
        return tuple(dict.fromkeys(own or [self.workload]))

    def background_of(self, scenario: Scenario) -> tuple[Background, ...]:
        """Traffic beside the jobs of ``scenario``, in the order of the file."""
        return tuple(source for source in self.background if source.name in scenario.background)

    def rows(self, scenario: Scenario) -> tuple[tuple[str | None, int], ...]:
        """Job (None where the file lists none) and number of GPUs of each row of ``scenario``."""
        if self.jobs:
            return tuple((job.name, self._job_gpus[job.name]) for job in self.jobs_of(scenario))
        return tuple((None, gpus) for gpus in self.gpu_counts(scenario))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of what published figures depend on: hosts, VPC, fabric, workload and jobs.

        The GPUs' speed may be fitted itself, and names are but names.
        """
        kept = self.model_dump(mode="json", by_alias=True, exclude_defaults=True,
                               include={"hosts", "vpc", "fabric", "workload", "jobs"})
        for group in kept["hosts"]:
            for speed in ("effective", "samples_per_s", "utilisation"):
                group["gpus"].pop(speed, None)
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def is_elsewhere(self) -> bool:
        """Whether the cluster is not the one that the figures under ``expect`` come from."""
        return self.fitted_on not in (None, self.fingerprint)

    @property
    def sha256(self) -> str:
        """Hash of the file's bytes; empty where the topology comes from no file."""
        return self._source.sha256 if self._source else ""

    @property
    def text(self) -> str:
        """The file as given, without changes; empty where the topology comes from no file."""
        return self._source.text if self._source else ""

    @property
    def folder(self) -> str:
        """Folder of the file; empty where the topology comes from no file."""
        return self._source.folder if self._source else ""

    @property
    def plain(self) -> dict[str, Any] | None:
        """The file as plain data; None where the topology comes from no file."""
        plain: dict[str, Any] | None = self._source.root.plain() if self._source else None
        return plain

    @property
    def changes(self) -> tuple[str, ...]:
        """Values that ``--set`` put in place of the file's."""
        return self._source.changes if self._source else ()

    def error(self, problem: Problem) -> TopologyError:
        """Error at a place of this file, for what only a later stage can find wrong."""
        if self._source is None:
            return TopologyError(self.name, problem)
        return self._source.first([problem])
