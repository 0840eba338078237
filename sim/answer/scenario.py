"""One scenario of a topology at one number of GPUs: build it, run it, return its results.

Stack, network, jobs and faults are built here for one run and not kept. The answer is the mean of
the simulated steps; the timeline is that of the last one.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from harp.angelptm.page_plan import CapacityError
from harp.collectives.choice import Rates
from harp.collectives.registry import make_plan
from harp.lightcc.settings import LightSettings
from sim.answer.clock import MOST_EVENTS, Clock, TooLongError
from sim.answer.cost import training_cost
from sim.answer.expectation import find_expect
from sim.answer.memory_fit import too_large
from sim.answer.timer import Timer
from sim.cluster.placement import place, rank_gpus
from sim.network.fidelity import make_network, wall_clock
from sim.network.interface import CutOffError, Site, TooLargeError
from sim.network.nccl import View
from sim.network.transport import Style
from sim.records.results import Memory, ScenarioResult, Span
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import channel_count
from sim.schema.parallel_keys import Parallel
from sim.schema.parameters import (
    FrameworkSet,
    StackSet,
    derives_from,
    givers,
    load_framework,
    load_stack,
)
from sim.step.compute import plan_pass
from sim.step.critical_path import mean_path
from sim.step.exposure import mean_breakdown
from sim.step.faults import Struck, check_links, strike
from sim.step.gpu_memory import count
from sim.step.groups import GROUPS, Groups
from sim.step.launches import launching
from sim.step.outer import OuterJob
from sim.step.paging import Exchanges, Tiers, paged
from sim.step.recipe import Recipe, Views
from sim.step.stages import slowest_stage
from sim.step.train import Job
from sim.workloads.gradient_buckets import megatron_bucket_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    import simpy
    from numpy.typing import NDArray

    from sim.answer.traced import TracedRun
    from sim.cluster.cluster import Cluster
    from sim.cluster.placement import Ranks
    from sim.network.interface import Capture
    from sim.records.results import Cost
    from sim.schema.hosts import HostGroup
    from sim.schema.input_errors import TopologyError
    from sim.schema.offload_keys import Offload
    from sim.schema.parameters import FrameworkCosts, HostStack
    from sim.schema.scenario_keys import Job as JobModel
    from sim.schema.scenario_keys import Scenario, Workload
    from sim.schema.topology_model import Topology
    from sim.step.compute import Pass
    from sim.traces.from_step import StepTraces
    from sim.workloads.model import Model


REACHED = "gpus.utilisation"
"""The share of their data sheet that GPUs reach, as a figure that may be changed."""
MOST_DRAWN = 8
"""Micro-steps that a picture or trace shows each; more are one that is repeated."""


MOST_TRACKS = 64
"""Largest job, in GPUs, with a track for each in a trace; a larger one has the first's only."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run; calibration and intervals change figures by ``set.parameter``."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """E.g. ``{"kernel-tcp.cost_per_byte": 1.9e-9, "horovod.overlap": 0.5}``; a figure of a set
    holds as well for the sets that take it from there."""
    seed: int | None = None
    """Chooses the source ports of flows; the file's where not given."""
    record_links: bool = False
    """Keep utilisation over time, for plots and traces."""
    name_limits: bool = True
    """Say what holds each transfer back."""
    fidelity: str = "flow"
    """Name of the network (`sim.network.fidelity`)."""
    capture: Capture | None = None
    """Link to capture into a file, for networks that have packets."""

    def stack(self, topology: Topology, name: str) -> HostStack:
        """A host stack with the changed figures."""
        stack = load_stack(name, topology.stacks)
        return stack.model_copy(update=self._changed(
            givers(name, topology.stacks, "stacks", StackSet), stack))

    def framework(self, topology: Topology, name: str) -> FrameworkCosts:
        """Framework costs with the changed figures."""
        costs = load_framework(name, topology.frameworks)
        return costs.model_copy(update=self._changed(
            givers(name, topology.frameworks, "frameworks", FrameworkSet), costs))

    def _changed(self, sources: Mapping[str, tuple[str, ...]],
                 owner: HostStack | FrameworkCosts) -> dict[str, object]:
        changed: dict[str, object] = {}
        for parameter, sets in sources.items():
            values = [self.figures[f"{of}.{parameter}"] for of in sets
                      if f"{of}.{parameter}" in self.figures]
            if values:
                changed[parameter] = getattr(owner, parameter).model_copy(
                    update={"value": values[0], "low": None, "high": None})
        return changed

    def speed(self, flops: NDArray[np.float64],
              reached: float | None = None) -> NDArray[np.float64]:
        """FLOP/s of the GPUs, all set to one figure where that is changed.

        Of those that are known by their data sheets alone, ``reached`` is the share in ``flops``.
        """
        share = self.figures.get(REACHED)
        if share is not None and reached is not None:
            flops = flops * (share / reached)
        changed = self.figures.get("gpus.effective")
        return flops if changed is None else np.full_like(flops, changed)


class Run:
    """One scenario at one number of GPUs, built and ready to run."""

    def __init__(self, cluster: Cluster, scenario: Scenario, gpus: int,
                 settings: Settings = Settings(), clock: Clock | None = None) -> None:
        topology = cluster.topology
        topology.require_workload()
        self.cluster, self.scenario, self.gpus, self.settings = cluster, scenario, gpus, settings
        self.env = wall_clock(settings.fidelity, topology) or clock or Clock()
        self.stack = settings.stack(topology, scenario.stack)
        self.style = Style.of(scenario, topology)
        self.network = make_network(settings.fidelity, self.env, Site(
            cluster, self.stack, self.style, settings.seed, records_use=settings.record_links,
            selects=bool(scenario.light and scenario.light.LIGHT_TOPK_ALLREDUCE),
            names_limits=settings.name_limits,
            background=topology.background_of(scenario),
            capture=settings.capture))
        self.jobs: list[Job] = []
        self.names: list[str] = []
        self.starts: list[float] = []
        self._alone_s: list[float] = []
        self._memory: list[Memory] = []
        self._models: list[Model] = []
        self._costs: list[Cost | None] = []
        self._tracks: list[list[str]] = []
        self._gpus: dict[str, tuple[int, float]] = {}
        self.notes: list[str] = []
        try:
            self._add_jobs()
            self._striking = self._faults()
        except BaseException:
            self.network.close()
            raise

    def _add_jobs(self) -> None:
        for job in self.cluster.topology.jobs_of(self.scenario) or (None,):
            self._add_job(job)
        if self.style.routing == "plan":
            for made in self.jobs:
                made.announce()

    def _add_job(self, job: JobModel | None) -> None:
        topology, scenario = self.cluster.topology, self.scenario
        workload = (job.workload if job and job.workload else None) or topology.workload
        names = list(topology.host_names)
        hosts = [names.index(host) for host in job.hosts] if job else list(range(len(names)))
        own = np.isin(self.cluster.host, hosts).sum()
        count = int(own) if job else self.gpus
        ranks = rank_gpus(self.cluster, hosts, count, channel_count(topology, scenario),
                          affinity=scenario.affinity)
        self._check_islands(ranks)
        gpus = ranks.gpus
        recipe = recipe_of(self.cluster, scenario, workload, ranks, self.settings)
        if scenario.allreduce == "nccl":
            recipe = replace(recipe, views=self._views(ranks))
        at = (self.cluster.flops if workload.precision == topology.workload.precision
              else self.cluster.flops_at(workload.precision))
        known = topology.reached
        speeds = self.settings.speed(at[gpus], known and known.value)
        flops = float(speeds.min())
        for gpu, speed in zip(gpus.tolist(), speeds.tolist(), strict=True):
            host, local = names[self.cluster.host[gpu]], self.cluster.local[gpu]
            self._gpus[f"{host}/{local}"] = len(self.jobs), speed / flops
        comm = self.network.communicator() if count > 1 else None
        tracks = [self.cluster.gpu_name(gpu) for gpu in gpus.tolist()]
        layout = recipe.layout
        memory = self._check_memory(recipe, ranks)
        if scenario.offload is not None:
            recipe, memory = self._page(recipe, memory, ranks, scenario.offload, flops)
        self._memory.append(memory)
        self._costs.append(training_cost(self.cluster, scenario, workload.network, ranks))
        stage = slowest_stage(recipe)
        whole, recipe = recipe, replace(recipe, model=stage.model)
        each = self._shows_each(workload)
        if each and workload.accumulation * len(recipe.model.layers) > MOST_EVENTS:
            raise topology.error(Problem(
                f"{workload.accumulation:,} micro-steps of {len(recipe.model.layers)} layers, each "
                "simulated", path=("workload", "accumulation"), found=workload.accumulation,
                allowed=f"a product of at most {MOST_EVENTS:,}, or no faults, jobs or traffic "
                "beside it, so that one stands for all"))
        work = plan_pass(recipe, flops * layout.tensor * layout.context)
        alone = work if layout == Parallel() else _plan_alone(whole, flops)
        alone_s = _alone_s(whole, alone, Groups(layout, count, ranks.host_group))
        if scenario.sync is None or ranks.host_group == count:
            made = Job(self.env, recipe, comm, count, work, tracks[0], bubble=stage.bubble,
                       alike=not each)
            made.lead = int(comm is not None and self.network.begins_cold)
        else:
            made = OuterJob(self.env, recipe, comm, count, work, tracks[0], bubble=stage.bubble,
                            alike=not each, policy=scenario.sync.policy, whole=workload.network,
                            island=ranks.host_group)
            self.notes.append(made.note)
        # Alone, a GPU would update as much; so only the network takes from efficiency.
        self._alone_s.append(alone_s + layout.split * made.update_s / recipe.accumulation)
        self._models.append(workload.network)
        made.counted = made.steps_of(scenario.steps)
        made.finds_paths = self.settings.name_limits
        self._tracks.append(tracks)
        self.jobs.append(made)
        self.names.append(job.name if job else "")
        self.starts.append(job.start if job else 0.0)

    def _shows_each(self, workload: Workload) -> bool:
        """Whether micro-steps may differ, or are so few that a picture can show each."""
        drawn = self.settings.record_links and workload.accumulation <= MOST_DRAWN
        return bool(drawn or self.scenario.faults or self.cluster.topology.jobs
                    or self.network.remembers)

    def _check_memory(self, recipe: Recipe, ranks: Ranks) -> Memory:
        """Count the memory of a step; raises TopologyError where the GPUs have less."""
        topology = self.cluster.topology
        sync = self.scenario.sync
        island = len(ranks.gpus) if sync is None else ranks.host_group
        groups = Groups(recipe.layout, island, ranks.host_group)
        memory = count(recipe, groups)
        if sync is not None and island < len(ranks.gpus):
            outer = sync.policy.state_bytes(-(-recipe.model.parameters // island))
            memory = replace(memory, optimizer=memory.optimizer + outer)
        ends = np.cumsum([group.count for group in topology.hosts])
        used = np.unique(np.searchsorted(ends, self.cluster.host[ranks.gpus], side="right"))
        limits = [topology.hosts[number].gpus.memory_bytes for number in used.tolist()]
        limit = min((each for each in limits if each is not None), default=None)
        if self.scenario.offload is None and limit is not None and memory.total > limit:
            number = [scenario.name for scenario in topology.scenarios].index(self.scenario.name)
            says, allowed = too_large(memory, recipe, groups, limit, topology, self.scenario)
            raise topology.error(Problem(f"{says}, on {len(ranks.gpus)} GPUs",
                                         path=("scenarios", number), allowed=allowed))
        return memory

    def _page(self, recipe: Recipe, memory: Memory, ranks: Ranks, offload: Offload,
              flops: float) -> tuple[Recipe, Memory]:
        """Plan the pages of a step; raises TopologyError where the tiers cannot hold them."""
        beside = (memory.activations or 0) + memory.buffers
        tiers = [_tiers(group, offload, beside, ranks.host_group)
                 for group in self.cluster.topology.hosts]
        number = [each.name for each in self.cluster.topology.scenarios].index(self.scenario.name)
        slowest = min(tiers, key=lambda each: (each.device, each.host, each.copy, each.disk_rate))
        try:
            paging = paged(recipe, flops, slowest, self._exchanges(ranks))
        except CapacityError as error:
            raise self.cluster.topology.error(Problem(
                f"{error}; activations and buffers take {beside / 2**30:.1f} GiB of the device",
                path=("scenarios", number, "offload"), at_key=True,
                allowed="more ram or disk, a larger device, or a smaller model")) from error
        return (replace(recipe, paging=paging),
                Memory(paging.device_bytes, 0, 0, memory.activations, memory.buffers))

    def _exchanges(self, ranks: Ranks) -> Exchanges | None:
        """Sharing of pages among ranks: as the runtime does, by one collective at a time."""
        count = len(ranks.gpus)
        stage = {"none": 1, "zero1": 1, "zero2": 2, "fsdp": 3}[self.scenario.layout.shard]
        return Exchanges(count, stage, partial(self._time_of, ranks)) if count > 1 else None

    def _time_of(self, ranks: Ranks, collective: str, nbytes: int) -> float:
        """Time of a collective on the idle network."""
        plan = make_plan(collective, ranks=len(ranks.gpus), nbytes=nbytes, unit_bytes=1,
                         group=ranks.host_group, chunk_bytes=nbytes)
        with closing(Timer(self.cluster, self.stack, self.scenario, ranks.placement,
                           seed=self.settings.seed)) as timer:
            return timer.seconds(plan)

    def _mfu(self, job: Job, number: int, images_per_s: float) -> float | None:
        """Share of the data sheet's FLOP/s that the model's own arithmetic takes, if it is known.

        Recomputation does not count (Chowdhery et al. 2022, PaLM, appendix B).
        """
        model, precision = self._models[number], job.recipe.precision
        if not model.tokens:
            return None
        groups = self.cluster.topology.hosts
        peaks = [group.gpus.peak(precision) for group in groups]
        known = [peak for peak, group in zip(peaks, groups, strict=True) if peak is not None
                 and (group.gpus.effective is None or group.gpus.effective <= peak)]
        if len(known) < len(peaks):
            return None
        flops = model.forward_flops + model.backward_flops
        return images_per_s * flops / (job.gpus * min(known))

    def _check_islands(self, ranks: Ranks) -> None:
        """Raise TopologyError where hosts cannot be islands that train by themselves."""
        sync, split = self.scenario.sync, self.scenario.layout.split
        if sync is None:
            return
        used = len(np.unique(self.cluster.host[ranks.gpus]))
        number = [each.name for each in self.cluster.topology.scenarios].index(self.scenario.name)
        if used * ranks.host_group != len(ranks.gpus):
            raise self.cluster.topology.error(Problem(
                f"{len(ranks.gpus)} GPUs on {used} hosts are no islands of one size",
                path=("scenarios", number, "sync"), allowed="as many GPUs on each host"))
        if ranks.host_group % split:
            raise self.cluster.topology.error(Problem(
                f"a copy of the model on {split} GPUs is no part of an island of "
                f"{ranks.host_group}", path=("scenarios", number, "sync"),
                allowed="parallel that splits the model over the GPUs of one host"))

    def _views(self, ranks: Ranks) -> Views:
        """NCCL's view of each group of the job."""
        island = len(ranks.gpus) if self.scenario.sync is None else ranks.host_group
        groups = Groups(self.scenario.layout, island, ranks.host_group)
        return {group: View.of(self.cluster, self.scenario, ranks.gpus[np.asarray(
            groups.of(group)[0])]) for group in GROUPS}

    def _faults(self) -> list[simpy.Process]:
        check_links(self.cluster)
        struck = Struck(self.env, self.network, self.cluster, [job.slow for job in self.jobs],
                        self._gpus, self.notes)
        return [self.env.process(strike(fault, struck)) for fault in self.cluster.topology.faults
                if fault.name in self.scenario.faults]

    def go(self) -> list[ScenarioResult]:
        """Simulate, and return one result for each job.

        With several jobs, each one that uses the network goes on until all have done their steps.
        """
        wanted = self.scenario.steps
        processes = [self.env.process(self._train(job, start_s, wanted))
                     for job, start_s in zip(self.jobs, self.starts, strict=True)]
        finished = self.env.all_of(processes)
        try:
            self.env.run(finished)
        except CutOffError as error:
            raise self._cut_off(str(error)) from error
        except (TooLongError, TooLargeError) as error:
            raise self._too_long(str(error)) from error
        finally:
            self.network.close()
        return [self._result(number) for number in range(len(self.jobs))]

    def _train(self, job: Job, start_s: float,
               wanted: int) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(start_s)
        alone = job.comm is None or job.recipe.host_group == job.gpus
        while any(len(other.steps_s) < other.steps_of(wanted)
                  for other in ([job] if alone else self.jobs)):
            repeats = self._repeats()
            yield from job.step()
            if repeats:
                job.repeat_step(job.steps_of(wanted) - len(job.steps_s))
            if self.settings.record_links and all(other.steps_s for other in self.jobs):
                self.network.forget(min(other.steps_s[:other.steps_of(wanted)][-1][0]
                                        for other in self.jobs))

    def _repeats(self) -> bool:
        """Whether the step that begins equals all after it, so that one simulation is enough.

        Steps differ only by other jobs, background traffic, later faults and tokens of a burst.
        """
        return (len(self.jobs) == 1 and not self.network.remembers
                and not any(fault.is_alive for fault in self._striking))

    def _too_long(self, reason: str) -> TopologyError:
        topology = self.cluster.topology
        number = [scenario.name for scenario in topology.scenarios].index(self.scenario.name)
        done = min(len(job.steps_s) for job in self.jobs)
        fewer = "fewer steps or jobs, or faults that flap less often"
        if self.scenario.alltoall in ("hierarchical", "once-per-host", "chosen"):
            # One step of one job can be too long where each host passes tokens on to its GPUs.
            fewer += ", or alltoall: direct"
        return topology.error(Problem(
            f"{reason}, in step {done + 1} of {self.scenario.steps}", path=("scenarios", number),
            allowed=fewer))

    def _cut_off(self, reason: str) -> TopologyError:
        topology = self.cluster.topology
        number = [scenario.name for scenario in topology.scenarios].index(self.scenario.name)
        return topology.error(Problem(
            f"training never ends: {reason}", path=("scenarios", number, "faults"),
            allowed="faults that end (for:), or a fabric with another path"))

    def _result(self, number: int) -> ScenarioResult:
        job, name = self.jobs[number], self.names[number]
        breakdown = mean_breakdown(job.breakdowns[job.lead:])
        batch = job.recipe.batch * job.recipe.accumulation
        images_per_s = job.replicas * batch / breakdown.step_s
        alone = job.recipe.batch / self._alone_s[number]
        step_s = job.steps_s[: job.steps_of(self.scenario.steps)][-1]
        return ScenarioResult(
            name=self.scenario.name, gpus=job.gpus, job=name, images_per_s=images_per_s,
            step_s=breakdown.step_s, breakdown=breakdown,
            efficiency=images_per_s / (job.gpus * alone), spans=self._spans(number),
            links=self.network.usage(step_s),
            expect=find_expect(self.cluster.topology, self.scenario.name, job.gpus, name),
            limits=mean_path(job.paths[job.lead:]), memory=self._memory[number],
            tokens_per_s=images_per_s * self._models[number].tokens or None,
            mfu=self._mfu(job, number, images_per_s),
            notes=(*self.notes, *self._not_planned(), *_wide_tensor(job), *self.network.notes),
            effort=self.env.events + self.network.effort, cost=self._costs[number])

    def _not_planned(self) -> list[str]:
        """A sentence on flows that ``routing: plan`` cannot steer."""
        if self.scenario.routing != "plan" or self.gpus == 1:
            return []
        if self.style.routing != "plan":
            return ["not planned: the kernel chooses TCP's source ports, so flows are hashed"]
        return []

    def _spans(self, number: int) -> tuple[Span, ...]:
        """The job's timeline; if utilisation is recorded, repeated for each of its GPUs."""
        job, tracks = self.jobs[number], self._tracks[number]
        if not self.settings.record_links or len(tracks) > MOST_TRACKS:
            return job.spans
        return tuple(span._replace(track=span.track.replace(job.track, track, 1))
                     for track in tracks for span in job.spans)


def _wide_tensor(job: Job) -> list[str]:
    """Give a sentence on tensor groups that no host holds."""
    tensor, host = job.recipe.layout.tensor, job.recipe.host_group
    if tensor <= host:
        return []
    return [f"a tensor group takes {tensor // host} hosts, so each block waits for the network in "
            "both passes; Megatron's authors advise tensor groups within a host, and a pipeline "
            "between hosts (Narayanan et al., SC 2021, section 3.2)"]


def fusion_rule(topology: Topology, scenario: Scenario, workload: Workload) -> str:
    """``cycle`` (Horovod) or ``size`` (DDP)."""
    by_size = derives_from(scenario.framework or workload.framework, "ddp", topology.frameworks,
                           "frameworks", FrameworkSet)
    return scenario.fusion.rule or ("size" if by_size else "cycle")


def fusion_bytes(topology: Topology, scenario: Scenario, workload: Workload, gpus: int) -> int:
    """Bytes at which a bucket goes on ``gpus`` GPUs: the file's, or what the framework does."""
    if scenario.fusion.threshold is None and derives_from(
            scenario.framework or workload.framework, "megatron", topology.frameworks,
            "frameworks", FrameworkSet):
        ranks = gpus // (scenario.layout.tensor * scenario.layout.pipeline)
        return megatron_bucket_bytes(ranks, workload.gradient_bytes)
    return scenario.fusion.threshold_bytes(fusion_rule(topology, scenario, workload))


def sends_beside(topology: Topology, scenario: Scenario, workload: Workload) -> bool:
    """Whether stages compute while activations travel: the file's choice, or the framework's."""
    layout = scenario.layout
    if layout.pipeline_overlap is not None:
        return layout.pipeline_overlap
    return layout.interleave > 1 and derives_from(
        scenario.framework or workload.framework, "megatron", topology.frameworks, "frameworks",
        FrameworkSet)


def recipe_of(cluster: Cluster, scenario: Scenario, workload: Workload, ranks: Ranks,
              settings: Settings) -> Recipe:
    """Give the recipe of a job on ``ranks``, without NCCL's criteria of choice."""
    topology = cluster.topology
    framework = scenario.framework or workload.framework
    light = LightSettings.from_env(scenario.light.settings if scenario.light else {})
    group = scenario.light.LIGHT_INTRA_SIZE if scenario.light else None
    if light.intra_size > len(ranks.gpus):
        light = replace(light, intra_size=len(ranks.gpus))
    return Recipe(
        model=workload.network, batch=workload.batch,
        costs=settings.framework(topology, framework), allreduce=scenario.allreduce,
        light=light, group=group or ranks.host_group, host_group=ranks.host_group,
        fp16=scenario.fp16,
        element_bytes=workload.element_bytes, gradient_bytes=workload.gradient_bytes,
        fusion=fusion_rule(topology, scenario, workload),
        threshold_bytes=fusion_bytes(topology, scenario, workload, len(ranks.gpus)),
        cycle_s=scenario.fusion.cycle, layout=scenario.layout,
        sends_beside=sends_beside(topology, scenario, workload),
        accumulation=workload.accumulation, recompute=workload.recompute,
        flash=workload.flash, kernels=workload.kernels, channels_last=workload.channels_last,
        moved=float(cluster.moved[ranks.gpus].min()), precision=workload.precision,
        left_wide=max(group.gpus.left_wide(workload.precision)
                      for group in topology.hosts),
        streams=scenario.streams, alltoall=scenario.alltoall,
        expert_chunks=scenario.expert_chunks, expert_overlap=scenario.expert_overlap,
        rates=_rates_of(topology), shares_switches=len(cluster.fabric.switches) > 1,
        placement=ranks.placement,
        place=lambda some: place(cluster, ranks.gpus[some], len(ranks.placement.rings),
                                 affinity=scenario.affinity))


def _plan_alone(recipe: Recipe, flops: float) -> Pass:
    """Plan the pass of one GPU that has the whole model."""
    return plan_pass(replace(recipe, layout=Parallel()), flops)


def _alone_s(recipe: Recipe, alone: Pass, groups: Groups) -> float:
    """Give both passes of a micro-step on one GPU that launches as much as a GPU of ``groups``."""
    needed = zip(launching(recipe, groups), alone.passes_s, strict=True)
    return alone.compute_s + sum(max(launch_s - pass_s, 0.0) for launch_s, pass_s in needed)


def _rates_of(topology: Topology) -> Rates:
    """Give the rates of the slowest host, which choose the algorithm for experts."""
    return Rates(
        port_bytes_s=min(sum(nic.count * nic.rate for nic in host.nics)
                         for host in topology.hosts) / 8 or Rates.port_bytes_s,
        memory_bytes_s=min((host.nvlink or host.pcie_link).rate
                           for host in topology.hosts) / 8)


def _tiers(group: HostGroup, offload: Offload, beside: int, ranks: int) -> Tiers:
    """Room for pages of one of ``ranks`` ranks of a host."""
    assert group.ram is not None
    limit, disk = group.gpus.memory_bytes, group.disk if offload.to == "disk" else None
    device = offload.device
    if device is None:
        assert limit is not None
        device = max(limit - beside, 0)
    rate = 0.0
    if disk is not None:
        rate = 2 / (1 / disk.read + 1 / (disk.write or disk.read)) / 8 / ranks
    return Tiers(device, group.ram // ranks, disk.capacity // ranks if disk is not None else 0,
                 group.pcie_link.rate / 8, rate, offload.page, offload.update, offload.slows)


def run_scenario(cluster: Cluster, scenario: Scenario, gpus: int,
                 settings: Settings = Settings()) -> list[ScenarioResult]:
    """Simulate one scenario at one number of GPUs; one result for each job."""
    return make_run(cluster, scenario, gpus, settings).go()


def job_traces(cluster: Cluster, scenario: Scenario) -> StepTraces:
    """Execution traces of a step of the file's one job; raises TopologyError."""
    from sim.traces.from_step import step_traces

    topology = cluster.topology
    topology.require_workload()
    if topology.jobs or topology.workload.trace is not None:
        what = "jobs" if topology.jobs else "workload"
        raise topology.error(Problem("no traces can be made of it", path=(what,), at_key=True,
                                     allowed="one workload with a model"))
    run = Run(cluster, scenario, topology.gpu_counts(scenario)[-1])
    run.network.close()
    ranks = range(run.gpus)
    try:
        return step_traces(run.jobs[0], float(cluster.flops[list(ranks)].min()))
    except Problem as problem:
        number = [each.name for each in topology.scenarios].index(scenario.name)
        raise topology.error(problem.under("scenarios", number)) from None


def make_run(cluster: Cluster, scenario: Scenario, gpus: int, settings: Settings = Settings(),
             clock: Clock | None = None) -> Run | TracedRun:
    """The run of a scenario: of training, or of the execution traces that the file names."""
    if cluster.topology.workload.trace is None:
        return Run(cluster, scenario, gpus, settings, clock)
    from sim.answer.traced import TracedRun

    return TracedRun(cluster, scenario, gpus, settings, clock)
