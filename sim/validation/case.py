"""A published measurement as a file: source, cluster, scenarios and figures.

A case is a YAML file in ``sim/validation/cases``::

    source: "NVIDIA/nccl issue 450 (2021)"
    topology: {name: ..., hosts: [...], scenarios: [...]}   # as in topologies/
    figures:
      - {scenario: 4 channels, size: 128MiB, busbw: 5GB/s}   # nccl-tests
      - {scenario: VGG-16, gpus: 16, samples_per_s: 1308.7}  # training
      - {scenario: VGG-16, gpus: 8, samples_per_s: 7e2, first: [1.1, 0.8, 1.2]}
    open: {"hosts[0].memory": [77GB/s, 128GB/s]}

A topology without ``fabric`` has one switch that never blocks, one without ``workload`` runs
collectives only. ``open`` lists values that the source does not give: each draw takes one of them
at random, and the prediction itself uses the value in the topology.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, model_validator

from sim.schema.base import Count, Flag, Line, Model
from sim.schema.checks import check
from sim.schema.input_errors import Problem, unknown
from sim.schema.load import checked
from sim.schema.parameters import PLAIN_VALUES
from sim.schema.scenario_keys import Expect, ExpectCollective
from sim.schema.source import Source
from sim.schema.topology_model import Topology
from sim.schema.units import Period, PositiveBytes, PositiveShare, Rate

FOLDER = Path(__file__).parent / "cases"
TOPOLOGIES = Path(__file__).parent.parent.parent / "topologies"
QUANTITIES = ("samples_per_s", "step", "busbw", "algbw", "time")
"""Quantities of a figure; exactly one of them."""
Ratio = Annotated[float, Strict(), Field(gt=0, le=1e3)]
_FABRIC = {"template": "single-switch"}
_WORKLOAD = {"model": "vgg16", "batch": 1}


class Figure(Model):
    """One published number."""

    scenario: Line
    """Name of the scenario that it is about."""
    gpus: Count | None = None
    """GPUs of a training row; all where not given."""
    collective: Literal["allreduce", "reduce-scatter", "allgather", "broadcast",
                        "alltoall"] = "allreduce"
    """The collective that was timed, where size is given."""
    algorithm: Literal["nccl", "ring", "tree"] | None = None
    """Its algorithm; where not given, the scenario's."""
    protocol: Literal["Simple"] | None = None
    """NCCL's protocol where it was forced; else what NCCL would choose for the algorithm."""
    size: PositiveBytes | None = None
    """Bytes of a collective; without it the figure is one of training."""
    samples_per_s: Annotated[float, Strict(), Field(ge=1e-6, le=1e15)] | None = None
    """Samples/s of all GPUs."""
    step: Period | None = None
    """Time of one training step."""
    busbw: Rate | None = None
    """Bus bandwidth, as nccl-tests counts it."""
    algbw: Rate | None = None
    """Size over time."""
    time: Period | None = None
    """Time of one collective."""
    within: PositiveShare = 0.25
    """Largest relative error that counts as agreement."""
    fits: Flag = False
    """Whether parameters of its scenario's stack are fitted to it."""
    first: tuple[Ratio, Ratio, Ratio] | None = None
    """Prediction before anybody here had used the figure, by the defaults and shipped
    margins of that day: itself, P10 and P90 over publication, all as speeds. It stays."""
    note: Line = ""
    """Why the prediction misses, where it does."""
    apart: Line = ""
    """Words of the source that call this figure too low for its cluster, or the cluster wrongly set
    up. Such a row is listed apart and counts in no summary but its own, and in no margin."""

    @model_validator(mode="after")
    def _one_quantity(self) -> "Figure":
        given = [name for name in QUANTITIES if getattr(self, name) is not None]
        allowed = QUANTITIES[2:] if self.size is not None else QUANTITIES[:2]
        if len(given) != 1 or given[0] not in allowed:
            raise Problem(f"gives {', '.join(given) or 'no quantity'}",
                          allowed=f"one of {', '.join(allowed)}"
                          f"{' beside size' if self.size is not None else ', or a size'}")
        return self

    @property
    def quantity(self) -> str:
        """The one of `QUANTITIES` that it gives."""
        return next(name for name in QUANTITIES if getattr(self, name) is not None)

    @property
    def value(self) -> float:
        """The published number: samples/s, seconds or bits/s."""
        return float(getattr(self, self.quantity))


class Case(Model):
    """A source, its cluster and its figures."""

    source: Annotated[Line, Field(min_length=1)]
    """Publisher of the figures, place and date."""
    topology: Topology
    """The cluster and the scenarios."""
    figures: Annotated[tuple[Figure, ...], Field(min_length=1)]
    """The published figures."""
    open: dict[str, tuple[str | int | float, ...]] = Field(default_factory=dict, max_length=16)
    """Keys of the topology that the source leaves open, and values that they may have."""
    note: Line = ""
    """Remarks on the source."""
    apart: Line = ""
    """Such words about all of its figures."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("topology"), dict):
            given = data["topology"]
            fabric = given.get("fabric", {})
            if isinstance(fabric, dict) and not {"template", "links"} & set(fabric):
                given = given | {"fabric": _FABRIC | fabric}
            return data | {"topology": {"workload": _WORKLOAD} | given}
        return data


def load_case(path: Path, changes: Mapping[str, object] | None = None,
              data: bytes | None = None) -> Case:
    """Read a case, with ``changes`` of its topology's keys; raises TopologyError.

    ``data`` are the file's bytes where it was read elsewhere.
    """
    given = changes or {}
    source = _source(path, data, [f"topology.{key}={value}" for key, value in given.items()])
    case = source.validate(Case, PLAIN_VALUES | {"folder": source.folder})
    found = [problem.under("topology") for problem in check(case.topology)]
    names = [scenario.name for scenario in case.topology.scenarios]
    found += [unknown("scenario", figure.scenario, names, ("figures", number, "scenario"))
              for number, figure in enumerate(case.figures) if figure.scenario not in names]
    if found:
        raise source.first(found)
    return case


def case_files(folder: Path = FOLDER) -> list[Path]:
    """Return the files of all cases, in order of their names."""
    return sorted(folder.glob("*.yaml"))


def published_files() -> list[Path]:
    """Return the files of all cases, and of the shipped topologies that expect published rows."""
    return case_files() + sorted(path for path in TOPOLOGIES.glob("*.yaml")
                                 if "expect:" in path.read_text("utf-8"))


def _source(path: Path, data: bytes | None, changes: Sequence[str] = ()) -> Source:
    return Source.read(path, changes) if data is None else Source.parse(data, str(path), changes)


def load_published(path: Path, data: bytes | None = None) -> list[Case]:
    """Cases of a file of either kind: one, or one for each source that a topology file names."""
    source = _source(path, data)
    plain = source.root.plain()
    if not isinstance(plain, dict) or "topology" in plain:
        return [load_case(path, data=data)]
    topology = checked(source)
    by_source: dict[str, list[Figure]] = {}
    for expect in () if topology.is_elsewhere else topology.figures:
        if expect.kind != "fitted":
            by_source.setdefault(expect.source, []).append(_figure_of(expect, topology))
    return [Case.model_construct(source=source, topology=topology, figures=tuple(figures))
            for source, figures in by_source.items()]


def _figure_of(expect: Expect | ExpectCollective, topology: Topology) -> Figure:
    if isinstance(expect, Expect):
        jobs = [job.name for job in topology.jobs]
        if expect.job is not None and jobs.index(expect.job):
            raise topology.error(Problem(f"figures of job {expect.job} cannot be scored",
                                         path=("expect", topology.figures.index(expect), "job"),
                                         allowed=f"those of the first job, {jobs[0]}"))
        return Figure.model_construct(scenario=expect.scenario, gpus=expect.gpus,
                                      samples_per_s=expect.images_per_s, within=expect.within)
    return Figure.model_construct(
        scenario=expect.scenario, collective=expect.collective, algorithm=expect.algorithm,
        size=expect.size, busbw=expect.busbw, algbw=expect.algbw, time=expect.time,
        within=expect.within)
