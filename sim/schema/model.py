"""The whole topology file as one frozen model; `sim.schema.load` makes it from a file."""

import hashlib
import json
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from sim.schema.background import Background
from sim.schema.base import Model, Name
from sim.schema.errors import Problem, TopologyError
from sim.schema.fabric import Fabric
from sim.schema.faults import Fault
from sim.schema.hosts import HostGroup
from sim.schema.lab import Lab
from sim.schema.parameters import FrameworkSet, StackSet
from sim.schema.scenario import Expect, Job, Scenario, Workload
from sim.schema.source import Source
from sim.schema.vpc import Vpc


class Topology(Model):
    """A cluster, what runs on it, the scenarios to compare and the figures to hold them against."""

    name: Name
    """Name of the cluster."""
    description: str = ""
    """What it is and why it is interesting."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1, strict=True)] = 1
    """Seed of everything that is random."""
    hosts: Annotated[tuple[HostGroup, ...], Field(min_length=1, max_length=256)]
    """Groups of equal hosts."""
    vpc: Vpc | None = None
    """What the cloud's virtual network imposes; nothing where not given."""
    fabric: Fabric
    """What joins the hosts."""
    stacks: dict[str, StackSet] = Field(default_factory=dict, max_length=64)
    """Host stacks of this file's own, by name."""
    frameworks: dict[str, FrameworkSet] = Field(default_factory=dict, max_length=64)
    """Framework costs of this file's own, by name."""
    workload: Workload
    """What is trained."""
    jobs: Annotated[tuple[Job, ...], Field(max_length=4096)] = ()
    """Jobs at once on the fabric; one on all hosts where not given."""
    background: Annotated[tuple[Background, ...], Field(max_length=64)] = ()
    """Traffic that may be beside the jobs; a scenario names what runs beside its own."""
    scenarios: Annotated[tuple[Scenario, ...], Field(min_length=1, max_length=256)]
    """What is compared."""
    faults: Annotated[tuple[Fault, ...], Field(max_length=4096)] = ()
    """What may break; a scenario names those that strike it."""
    expect: Annotated[tuple[Expect, ...], Field(max_length=4096)] = ()
    """Published or measured figures."""
    lab: Lab = Lab()
    """How `--fidelity lab` runs it."""
    fitted_on: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")] | None = None
    """Fingerprint of the cluster and workload that the figures under `expect` come from; on any
    other they are not held against the answers. `python -m sim.calibrate` tells it."""

    _source: Source | None = PrivateAttr(None)

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
        told = self.model_dump(mode="json", by_alias=True, exclude_defaults=True,
                               include={"hosts", "vpc", "fabric", "workload", "jobs"})
        for group in told["hosts"]:
            for speed in ("effective", "samples_per_s"):
                group["gpus"].pop(speed, None)
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def is_elsewhere(self) -> bool:
        """Whether the cluster is not the one that the figures under ``expect`` come from."""
        return self.fitted_on not in (None, self.fingerprint)

    @property
    def sha256(self) -> str:
        """Hash of the file's bytes; empty where the topology comes from no file."""
        return self._source.sha256 if self._source else ""

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
