"""Ways to split a model: what each sends, computes and waits for, against closed forms.

A schedule of a pipeline is worked out stage by stage in `one_f_one_b`, apart from the simulator.
"""

from __future__ import annotations

import pytest

from sim.answer.scenario import Run
from sim.schema import TopologyError, load
from tests.sim.step.test_step_graph import sent
from tests.support.cluster_files import ALPHA_S, cluster, topology, write

BATCH = 2
SHAPE = {"layers": 8, "width": 256, "heads": 8, "vocabulary": 1000, "head": "tied"}
EXPERTS = SHAPE | {"experts": {"count": 8, "top_k": 2, "ffn": 64}}
EACH = {"jobs": [{"name": "j", "hosts": ["h-0", "h-1", "h-2", "h-3"]}]}
"""A job, beside which others may run: each of its micro-steps is simulated."""
FAST = {"rate_bps": 1e18, "host": {"nvlink": {"rate": "1000TB/s", "latency": "0s"}}}
ELEMENTS = BATCH * 64 * 256
"""Activations between two blocks."""


def workload(model=SHAPE, **more):
    return {"workload": {"model": model, "batch": BATCH, "sequence": 64, "framework": "free"}
            | more}


def run(folder, gpus=8, **given):
    """The job and the result of a step; links cost nothing unless a test says otherwise."""
    made = cluster(folder, **{"hosts": 1, "gpus": gpus} | workload() | given)
    simulated = Run(made, made.topology.scenarios[0], made.gpus)
    (result,) = simulated.go()
    return simulated.jobs[0], result


def parameters(model=SHAPE):
    (layers, width), words = (model["layers"], model["width"]), model["vocabulary"]
    return words * width + layers * (12 * width**2 + 4 * width) + 2 * width


# ---- accumulation and recomputation

@pytest.mark.parametrize("micro", [1, 2, 3, 8])
@pytest.mark.parametrize("tensor", [1, 2])
def test_accumulated_gradients_are_sent_once(tmp_path, micro, tensor):
    each = sent(tmp_path, "pcie_out", hosts=2, gpus=tensor, scenario={"tensor": tensor},
                **workload(accumulation=micro))
    wanted = 4 * parameters() / tensor
    assert each == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("parallel", ["data", "zero1", "zero2", "fsdp", {"tensor": 4}, {
    "pipeline": 2}, {"context": 2}])
def test_micro_steps_train_as_many_samples_each(tmp_path, parallel):
    """Where links cost nothing images/s stay; a pipeline waits less."""
    one, four = (run(tmp_path, **FAST, **workload(accumulation=micro),
                     scenario={"parallel": parallel, "fusion": {"cycle": "0s"}})[1]
                 for micro in (1, 4))
    if parallel == {"pipeline": 2}:
        assert four.images_per_s > 1.3 * one.images_per_s
    else:
        assert four.images_per_s == pytest.approx(one.images_per_s, rel=0.02)


@pytest.mark.parametrize("parallel", ["data", "zero1", {"tensor": 4}, {"pipeline": 2}, {
    "pipeline": 2, "interleave": 2, "tensor": 2}, {"context": 2, "tensor": 2}])
def test_what_is_repeated_takes_as_long_as_if_it_were_simulated(tmp_path, parallel):
    """A job beside which others may run simulates each micro-step."""
    scenario = {"parallel": parallel}
    alike = run(tmp_path, **workload(accumulation=6), scenario=scenario)
    each = run(tmp_path, **workload(accumulation=6), scenario=scenario,
               jobs=[{"name": "j", "hosts": ["h-0"]}])
    assert any(done.kind == "again" for done in alike[0].graph)
    assert not any(done.kind == "again" for done in each[0].graph)
    assert alike[1].step_s == pytest.approx(each[1].step_s, rel=1e-9)
    for part, seconds in vars(alike[1].breakdown).items():
        assert seconds == pytest.approx(getattr(each[1].breakdown, part), rel=1e-6, abs=1e-9), part
    assert {limit.name for limit in alike[1].limits} == {limit.name for limit in each[1].limits}


def test_too_many_micro_steps_beside_other_jobs_are_refused(tmp_path):
    """A job alone takes any number, since one stands for all."""
    many = workload(accumulation=60_000)
    assert run(tmp_path, **many)[1].step_s > 0
    with pytest.raises(TopologyError, match="60,000 micro-steps of 75 layers") as caught:
        run(tmp_path, **many, jobs=[{"name": "j", "hosts": ["h-0"]}])
    assert caught.value.key == "workload.accumulation"


# ---- sharding

@pytest.mark.parametrize(("shard", "micro", "passes"), [
    ("zero1", 1, 2), ("zero1", 4, 2), ("zero2", 1, 2), ("zero2", 4, 5), ("fsdp", 1, 3),
    ("fsdp", 4, 12)])
def test_shards_send_their_share_of_the_parameters(tmp_path, shard, micro, passes):
    """(n - 1)/n of the parameters for each gather and scatter (ZeRO, sections 7.2.1 and 7.2.2)."""
    each = sent(tmp_path, "pcie_out", hosts=4, scenario={"parallel": shard}, **EACH,
                **workload(accumulation=micro))
    assert each == pytest.approx(passes * 3 / 4 * 4 * parameters(), rel=1e-3)


@pytest.mark.parametrize("shard", ["zero2", "fsdp", "hsdp", "zero1", {
    "pipeline": 2, "shard": "zero2"}, {
    "pipeline": 2, "interleave": 4, "pipeline_overlap": True, "shard": "zero2"}])
@pytest.mark.parametrize("rate_bps", [1e9, 5e9, 2e10, 1e11])
def test_one_micro_step_stands_for_all_on_any_network(tmp_path, shard, rate_bps):
    """Beside each of them simulated; on the slow networks the GPU runs ahead of what it sends.

    Sends beside passes meet more of others' scatters in each micro-step than in that before.
    """
    given = workload(accumulation=8) | {"hosts": 4, "gpus": 1, "rate_bps": rate_bps,
                                        "scenario": {"parallel": shard, "fusion": {"cycle": "0s"}}}
    one, each = (run(tmp_path, **given | jobs)[1] for jobs in ({}, EACH))
    within = 0.06 if "pipeline_overlap" in shard else 0.015
    assert one.step_s == pytest.approx(each.step_s, rel=within)
    assert one.breakdown.exposed_s == pytest.approx(each.breakdown.exposed_s, rel=within + 0.005)


def test_hybrid_shards_gather_in_hosts_and_average_between_them(tmp_path):
    """Inside 3 times (n - 1)/n; between, a share's allreduce, whose ring leaves a host by a GPU."""
    given = dict(hosts=2, gpus=4, scenario={"parallel": "hsdp"}, **workload())
    between = sent(tmp_path, "pcie_out", **given)
    assert between[:4] == pytest.approx(2 * 1 / 2 * 4 * parameters() / 4, rel=1e-2)
    inside = sent(tmp_path, "nvlink_out", **given)
    assert inside[:4] == pytest.approx(3 * 3 / 4 * 4 * parameters(), rel=1e-2)


@pytest.mark.parametrize(("replicate", "tensor"), [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2),
                                                   (8, 2)])
def test_hybrid_shards_over_any_group_send_by_hand(tmp_path, replicate, tensor):
    """Of 8 hosts groups of n = 8 / replicate: 3 (n - 1)/n of a rank's share of the matrices inside
    a group, and of an n-th of that an allreduce of replicate ranks."""
    layout = {"shard": "hsdp", "replicate": replicate, "tensor": tensor}
    each = sent(tmp_path, "pcie_out", hosts=8, gpus=tensor, **workload(),
                scenario={"parallel": layout})
    hosts, share = 8 // replicate, 4 * parameters() / tensor
    inside, between = 3 * (hosts - 1) / hosts, 2 * (replicate - 1) / replicate / hosts
    assert each[0] == pytest.approx((inside + between) * share, rel=1e-2)


def test_shards_of_tensor_parallel_ranks_are_smaller(tmp_path):
    each = sent(tmp_path, "pcie_out", hosts=4, gpus=2, **workload(),
                scenario={"parallel": {"tensor": 2, "shard": "fsdp"}})
    assert each == pytest.approx(3 * 3 / 4 * 4 * parameters() / 2, rel=1e-2)


@pytest.mark.parametrize(("shard", "passes"), [("fsdp", 2), ("zero1", 2), ("zero2", 5)])
def test_a_pipeline_gathers_once_and_scatters_once_or_each_time(tmp_path, shard, passes):
    """Two stages of two hosts: the stage's half, gathered once, scattered once or four times."""
    each = sent(tmp_path, "pcie_out", hosts=4, **workload(
        SHAPE | {"head": "none"}, accumulation=4), **EACH,
        scenario={"parallel": {"pipeline": 2, "shard": shard}})
    stage = parameters(SHAPE | {"layers": 4, "vocabulary": 0})  # the last, which has a norm more
    sends = 4 * 2 * 4 * ELEMENTS
    assert each[0] == pytest.approx(passes * 1 / 2 * 4 * stage + sends, rel=1e-2)


# ---- pipelines

def one_f_one_b(stages, micro, forward_s, backward_s):
    """When the last stage of 1F1B ends, each stage's times given, links without cost."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, micro)
        order = [("f", number) for number in range(ahead)]
        for number in range(micro):
            order.append(("b", number))
            if ahead + number < micro:
                order.append(("f", ahead + number))
        orders.append(order)
    ends = {}
    free = [0.0] * stages
    at = [0] * stages
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            kind, number = orders[stage][at[stage]]
            if kind == "f":
                needs = ("f", number, stage - 1) if stage else None
            else:
                needs = ("b", number, stage + 1) if stage < stages - 1 else ("f", number, stage)
            if needs is not None and needs not in ends:
                continue
            seconds = (forward_s if kind == "f" else backward_s)[stage]
            begin = max(free[stage], ends[needs] if needs else 0.0)
            ends[kind, number, stage] = free[stage] = begin + seconds
            at[stage] += 1
    return max(free)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("micro", [1, 2, 4, 16])
def test_a_pipeline_of_like_stages_takes_as_long_as_1f1b(tmp_path, stages, micro):
    given = workload(SHAPE | {"head": "none"}, accumulation=micro)
    _, result = run(tmp_path, stages, **FAST, **given, scenario={"parallel": {"pipeline": stages}})
    alone = run(tmp_path, 1, **FAST, **given)[1].breakdown.compute_s / micro / stages
    wanted = one_f_one_b(stages, micro, [alone / 3] * stages, [2 * alone / 3] * stages)
    assert wanted == pytest.approx((micro + stages - 1) * alone)
    assert result.step_s == pytest.approx(wanted, rel=0.01)


def test_pieces_shorten_the_bubble(tmp_path):
    def bubble_s(interleave):
        job, result = run(tmp_path, 4, **FAST, **workload(SHAPE | {"head": "none"}, accumulation=4),
                          scenario={"parallel": {"pipeline": 4, "interleave": interleave}})
        assert sum(layer.forward_flops > 0 for layer in job.recipe.model.layers) > 0
        return next(limit.seconds for limit in result.limits if limit.name == "pipeline bubble")

    assert bubble_s(2) == pytest.approx(bubble_s(1) / 2, rel=0.02)


def test_gradients_of_weights_fill_the_bubble_of_pieces_too(tmp_path):
    """Plain pieces wait longest, then DualPipeV, zero-bubble, and ZB-V."""
    def step_s(**more):
        return run(tmp_path, 4, **FAST, **workload(SHAPE | {"head": "none"}, accumulation=8),
                   scenario={"parallel": {"pipeline": 4, "interleave": 2} | more})[1].step_s

    plain, dual, filled, v = (step_s(schedule=schedule) for schedule in (
        "1f1b", "dualpipe-v", "zero-bubble", "zb-v"))
    assert v < filled < dual < plain


@pytest.mark.parametrize(("tensor", "interleave"), [(1, 1), (2, 1), (2, 2), (1, "zb-v")])
def test_a_stage_sends_activations_both_ways(tmp_path, tensor, interleave):
    """Each micro-step, each piece, forward and backward; a rank of a tensor group its share.

    Of a V between two stages, each sends what one of its pieces makes.
    """
    layout = {"pipeline": 2, "interleave": interleave, "tensor": tensor}
    if interleave == "zb-v":
        layout, interleave = layout | {"interleave": 2, "schedule": "zb-v"}, 1
    each = sent(tmp_path, "pcie_out", hosts=2, gpus=tensor, **workload(accumulation=4),
                jobs=[{"name": "j", "hosts": ["h-0", "h-1"]}], scenario={"parallel": layout})
    assert each == pytest.approx(4 * 2 * interleave * 4 * ELEMENTS / tensor, rel=1e-3)


def interleaved(stages, pieces, micro, forward_s, backward_s, send_s, *, beside):
    """When Megatron's interleaved schedule ends, the times of a pass of a piece given.

    A stage takes as many micro-steps as there are stages through one of its pieces, then through
    the next. With ``beside`` it goes on while results travel, but in the forward passes before its
    first backward pass and in the backward passes after its last forward pass.
    """
    turns = [(number, piece) for first in range(0, micro, stages) for piece in range(pieces)
             for number in range(first, first + stages)]
    ahead = [min(2 * (stages - stage - 1) + (pieces - 1) * stages, len(turns))
             for stage in range(stages)]
    orders = [[("f", *turn) for turn in turns[:warm]]
              + [each for at, (number, piece) in enumerate(turns)
                 for each in (*(("f", *turn) for turn in turns[warm + at:warm + at + 1]),
                              ("b", number, pieces - 1 - piece))] for warm in ahead]
    ends, free, at = {}, [0.0] * stages, [0] * stages
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for stage, warm in enumerate(ahead):
            if at[stage] == len(orders[stage]):
                continue
            kind, number, piece = orders[stage][at[stage]]
            place = piece * stages + stage
            before = kind, number, place - 1 if kind == "f" else place + 1
            begin = free[stage]
            if 0 <= before[2] < stages * pieces:
                if before not in ends:
                    continue
                begin = max(begin, ends[before] + send_s)
            ends[kind, number, place] = begin + (forward_s if kind == "f" else backward_s)
            steady = warm <= at[stage] < 2 * len(turns) - warm
            free[stage] = ends[kind, number, place] + (0.0 if beside and steady else send_s)
            at[stage] += 1
    return max(free)


SLOW = {"host": {"nvlink": {"rate": "300GB/s", "latency": "0s"}}}
"""Stages of one host, between which a send takes a tenth of a forward pass of two blocks."""


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("stages", "pieces", "turns"), [(2, 2, 3), (2, 4, 1), (4, 2, 1),
                                                         (4, 2, 4)])
def test_sends_travel_as_in_megatrons_schedule(tmp_path, stages, pieces, turns, beside):
    micro = turns * stages
    given = workload(SHAPE | {"head": "none"}, accumulation=micro)
    layout = {"pipeline": stages, "interleave": pieces, "pipeline_overlap": beside}
    job, result = run(tmp_path, stages, **SLOW, **given, scenario={"parallel": layout})
    alone = run(tmp_path, 1, **given)[1].breakdown.compute_s / micro / stages / pieces
    send_s = 4 * ELEMENTS / 300e9
    assert 0.02 < send_s / alone < 0.1
    wanted = interleaved(stages, pieces, micro, alone / 3, 2 * alone / 3, send_s, beside=beside)
    kinds = {done.kind for done in job.graph}
    assert ("overlapped-send" in kinds) == (beside and micro > 2)
    # Here whole micro-steps are waited for.
    assert result.step_s == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("shard", ["none", "zero1", "fsdp"])
@pytest.mark.parametrize("rate", ["1GB/s", "10GB/s", "1TB/s"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_sends_beside_compute_are_never_slower(tmp_path, shard, rate, tensor):
    def step_s(beside):
        return run(tmp_path, host={"nvlink": {"rate": rate, "latency": "1us"}},
                   **workload(accumulation=8), scenario={"parallel": {
                       "pipeline": 2, "interleave": 4, "tensor": tensor, "shard": shard,
                       "pipeline_overlap": beside}})[1].step_s

    assert step_s(True) <= step_s(False) * (1 + 1e-9)


@pytest.mark.parametrize("pieces", [2, 4])
def test_where_compute_takes_longer_only_sends_that_fill_and_drain_remain(tmp_path, pieces):
    """Of 12 micro-steps between four stages 4 - 4 / pieces fill and drain, and the bubble waits."""
    layout = {"pipeline": 4, "interleave": pieces}
    given = workload(SHAPE | {"head": "none", "layers": 16}, accumulation=12)
    waits, beside, nothing = (
        run(tmp_path, 4, **rates, **given, scenario={"parallel": layout | more})[1].step_s
        for rates, more in ((SLOW, {}), (SLOW, {"pipeline_overlap": True}), (FAST, {})))
    bubble, filling = 3 / pieces, 4 - 4 // pieces
    assert (beside - nothing) / (waits - nothing) == pytest.approx(
        (filling + bubble) / (12 + bubble), rel=1e-3)


@pytest.mark.parametrize(("framework", "pieces", "beside"), [
    ("megatron", 2, True), ("mine", 2, True), ("ddp", 2, False), ("megatron", 1, False)])
def test_frameworks_send_as_they_do(tmp_path, framework, pieces, beside):
    """Megatron beside its passes where a stage has several pieces; a file may say otherwise."""
    def sends(**more):
        given = workload(accumulation=4)
        given["workload"]["framework"] = framework
        job, _ = run(tmp_path, 4, **given, frameworks={"mine": {"base": "megatron"}},
                     scenario={"parallel": {"pipeline": 2, "interleave": pieces, **more}})
        return any(done.kind == "overlapped-send" for done in job.graph)

    assert sends() == beside
    if pieces > 1:
        assert not sends(pipeline_overlap=False)


# ---- tensor groups over several hosts

@pytest.mark.parametrize(("hosts", "gpus"), [(2, 1), (4, 1), (4, 2), (8, 2)])
def test_tensor_groups_over_hosts_send_by_the_network(tmp_path, hosts, gpus):
    """A ring of 2 (t - 1)/t of the activations, four times a block, leaves each host by one GPU.

    One tensor group is simulated; each GPU averages its share with its like of the other group.
    """
    tensor = min(hosts * gpus, 4)
    copies = hosts * gpus // tensor
    each = sent(tmp_path, "pcie_out", hosts=hosts, gpus=gpus, **workload(),
                scenario={"parallel": {"tensor": tensor}})
    activations = 8 * 4 * 2 * (tensor - 1) / tensor * 4 * ELEMENTS
    share = 2 * (copies - 1) / copies * 4 * parameters() / tensor
    assert each[gpus - 1] == pytest.approx(activations + share, rel=1e-2)
    assert each[-1] == pytest.approx(share + (activations if copies == 1 else 0), rel=1e-2)


def test_a_row_says_what_tensor_groups_over_hosts_cost(tmp_path):
    """Two GPUs wait 32 times for an allreduce, in which each sends half the activations twice.

    Each time a frame passes the switch besides.
    """
    given = workload() | {"rate_bps": 1e9}
    (_, apart), (_, together) = (
        run(tmp_path, gpus, hosts=2 // gpus, **given, scenario={"parallel": {"tensor": 2}})
        for gpus in (1, 2))
    waited_s = 8 * 4 * 2 * ((2 * ELEMENTS + 1500) * 8 / 1e9 + ALPHA_S)
    assert apart.breakdown.exposed_s == pytest.approx(waited_s, rel=1e-3)
    assert "a tensor group takes 2 hosts" in " ".join(apart.notes)
    assert not any("tensor group" in note for note in together.notes)


# ---- context and experts

def test_context_gathers_keys_and_values(tmp_path):
    """Gathered twice and scattered once a block, (c - 1)/c of 2 x width x tokens elements."""
    context = 4
    each = sent(tmp_path, "nvlink_out", hosts=1, gpus=4, **workload(),
                scenario={"parallel": {"context": context}})
    keys = 8 * 3 * (context - 1) / context * 2 * ELEMENTS * 4
    averages = 2 * (context - 1) / context * 4 * parameters()
    assert each == pytest.approx(keys + averages, rel=1e-3)


def test_tokens_of_a_sample_are_split(tmp_path):
    one, four = (run(tmp_path, 4, **FAST, **workload(), scenario={"parallel": parallel})
                 for parallel in ({}, {"context": 4}))
    assert four[1].breakdown.compute_s == pytest.approx(one[1].breakdown.compute_s / 4, rel=1e-6)
    assert (one[0].replicas, four[0].replicas) == (4, 1)


@pytest.mark.parametrize(("expert", "copies"), [(2, 2), (4, 1), (None, 1)])
def test_experts_exchange_in_their_group_and_average_beyond(tmp_path, expert, copies):
    each = sent(tmp_path, "pcie_out", hosts=4, **workload(EXPERTS),
                scenario={"parallel": {"expert": expert} if expert else {}})
    ranks = expert or 4
    tokens = BATCH * 64 * 2 * 256 * 4
    exchanged = 8 * 4 * (ranks - 1) / ranks * tokens
    experts = 8 * 8 * 2 * 256 * 64
    network = load(write(tmp_path, topology(**workload(EXPERTS)))).workload.network
    shared = 2 * 3 / 4 * 4 * (network.parameters - experts)
    own = 2 * (copies - 1) / copies * 4 * experts / ranks
    assert each[0] == pytest.approx(exchanged + shared + own, rel=1e-2)


def test_fully_sharded_experts_are_gathered_and_no_token_travels(tmp_path):
    each = sent(tmp_path, "pcie_out", hosts=4, **workload(EXPERTS), scenario={"parallel": "fsdp"})
    network = load(write(tmp_path, topology(**workload(EXPERTS)))).workload.network
    assert each == pytest.approx(3 * 3 / 4 * 4 * network.parameters, rel=1e-2)


@pytest.mark.parametrize(("alltoall", "rate_bps", "crossing"), [
    ("direct", 1e9, 2 / 2), ("hierarchical", 1e9, 2 / 2),
    # Of 8 experts 4 are on the other host: 4·3 of 8·7 draws want none of them; a rank has 2, which
    # 6·5 draws do not want. Where bytes cost nothing, a second step is worth less than copies.
    ("once-per-host", 1e9, 1 - 12 / 56), ("chosen", 1e9, 1 - 12 / 56),
    ("chosen", 1e15, 2 * (1 - 30 / 56))])
def test_tokens_cross_once_for_each_expert_rank_or_host(tmp_path, alltoall, rate_bps, crossing):
    made = cluster(tmp_path, hosts=2, gpus=2, rate_bps=rate_bps, **workload(EXPERTS),
                   scenario={"alltoall": alltoall})
    simulated = Run(made, made.topology.scenarios[0], made.gpus)
    simulated.go()
    each = simulated.network.fluid.net.carried()[:4]  # both ways of both hosts' links
    network = made.topology.workload.network
    averaged = 2 * (network.parameters - 8 * 8 * 2 * 256 * 64) * 4  # a ring of four, by hosts
    tokens = 8 * 4 * 2 * BATCH * 64 * 256 * 4  # layers, exchanges, ranks
    assert each == pytest.approx(crossing * tokens + averaged * 3 / 4, rel=2e-2)


@pytest.mark.parametrize("parallel", [{}, {"expert": 2}, {"tensor": 2}])
def test_chunks_send_the_same_bytes_in_less_time(tmp_path, parallel):
    """Experts take as long as the all-to-alls, so that halves can hide behind each other."""
    found = []
    for chunks in (1, 2, 4):
        made = cluster(tmp_path, hosts=2, gpus=2, rate_bps=1e9, **workload(EXPERTS),
                       host={"gpus": {"count": 2, "model": "any", "effective": "0.01TFLOPS"}},
                       scenario={"parallel": parallel, "expert_chunks": chunks})
        simulated = Run(made, made.topology.scenarios[0], made.gpus)
        (result,) = simulated.go()
        found.append((result.step_s, simulated.network.fluid.net.carried()[:4].tolist()))
    whole, halves, quarters = found
    assert halves[1] == pytest.approx(whole[1], rel=1e-6)
    assert quarters[1] == pytest.approx(whole[1], rel=1e-6)
    assert max(halves[0], quarters[0]) < whole[0]


def test_tokens_beside_another_micro_step_keep_its_activations(tmp_path):
    kept = []
    for overlap, stages in (("none", 1), ("micro-steps", 1), ("none", 2), ("micro-steps", 2)):
        given = workload(EXPERTS)
        given["workload"]["accumulation"] = 4
        _, result = run(tmp_path, 4, **FAST, **given, scenario={
            "expert_overlap": overlap, "parallel": {"pipeline": stages}})
        kept.append(result.memory.activations)
    logits = 4 * BATCH * 64 * SHAPE["vocabulary"]
    assert kept[1] - logits == pytest.approx(2 * (kept[0] - logits), rel=1e-3)
    assert kept[3] == pytest.approx(1.5 * kept[2], rel=0.05)


def test_experts_of_tensor_groups_get_a_share_of_the_tokens_each(tmp_path):
    """Two groups of two: ranks of the same number exchange, each half of its group's tokens."""
    each = sent(tmp_path, "pcie_out", hosts=2, gpus=2, **workload(EXPERTS),
                scenario={"parallel": {"tensor": 2}})
    exchanged = 8 * 4 * 1 / 2 * BATCH * 64 * 2 * 256 * 4 / 2
    network = load(write(tmp_path, topology(**workload(EXPERTS)))).workload.network
    averaged = 4 * (network.parameters - 8 * 8 * 2 * 256 * 64) / 2
    assert each == pytest.approx(exchanged + averaged, rel=1e-2)


def experts_and_rest(folder):
    """Bytes of all experts' parameters, and of all others."""
    network = load(write(folder, topology(**workload(EXPERTS)))).workload.network
    experts = 8 * 8 * 2 * 256 * 64
    return 4 * experts, 4 * (network.parameters - experts)


@pytest.mark.parametrize(("expert", "split"), [(2, {"tensor": 2}), (4, {"tensor": 2}),
                                               (2, {"context": 2}), (8, {"context": 2})])
def test_experts_exchange_over_some_of_the_ranks_that_split_no_token(tmp_path, expert, split):
    """Of 8 hosts, by hand: ranks of the same number in tensor groups send one another tokens.

    Each GPU of a tensor or context group has its share of the tokens; a tensor group splits each
    expert, which its copies average.
    """
    tensor, context = split.get("tensor", 1), split.get("context", 1)
    each = sent(tmp_path, "pcie_out", hosts=8, gpus=tensor, **workload(EXPERTS),
                scenario={"parallel": split | {"expert": expert}})
    without = sent(tmp_path, "pcie_out", hosts=8, gpus=tensor, **workload(EXPERTS),
                   scenario={"parallel": split})
    tokens = 8 * 4 * BATCH * 64 * 2 * 256 * 4 / tensor / context
    copies = 8 // expert
    experts = 2 * (copies - 1) / copies * experts_and_rest(tmp_path)[0] / expert / tensor
    assert (each - without)[0] == pytest.approx(
        ((expert - 1) / expert - 7 / 8) * tokens + experts, rel=1e-2)


@pytest.mark.parametrize(("expert", "micro"), [(2, 1), (4, 1), (8, 1), (4, 3)])
def test_beside_shards_tokens_travel_and_copies_of_experts_gather(tmp_path, expert, micro):
    """Of 8 hosts: 3 (n - 1)/n of the rest over all, and of a rank's experts over their copies."""
    each = sent(tmp_path, "pcie_out", hosts=8, **workload(EXPERTS, accumulation=micro),
                scenario={"parallel": {"shard": "fsdp", "expert": expert}})
    experts, rest = experts_and_rest(tmp_path)
    copies = 8 // expert
    tokens = 8 * 4 * (expert - 1) / expert * BATCH * 64 * 2 * 256 * 4
    gathered = 7 / 8 * rest + (copies - 1) / copies * experts / expert
    assert each[0] == pytest.approx(micro * (tokens + 3 * gathered), rel=1e-2)


@pytest.mark.parametrize("expert", [2, 4])
def test_hybrid_shards_average_the_experts_that_groups_have_in_common(tmp_path, expert):
    """Of 8 hosts two groups of 4: each gathers its own experts, and the two average shares."""
    each = sent(tmp_path, "pcie_out", hosts=8, **workload(EXPERTS),
                scenario={"parallel": {"shard": "hsdp", "replicate": 2, "expert": expert}})
    experts, rest = experts_and_rest(tmp_path)
    copies = 4 // expert
    tokens = 8 * 4 * (expert - 1) / expert * BATCH * 64 * 2 * 256 * 4
    inside = 3 * (3 / 4 * rest + (copies - 1) / copies * experts / expert)
    between = 2 * 1 / 2 * (rest + experts) / 4
    assert each[0] == pytest.approx(tokens + inside + between, rel=1e-2)


def test_tokens_of_shards_hide_beside_another_micro_step(tmp_path):
    found = {}
    for overlap in ("none", "micro-steps"):
        _, found[overlap] = run(
            tmp_path, 1, hosts=4, rate_bps=1e9, **workload(EXPERTS, accumulation=4),
            scenario={"parallel": {"shard": "fsdp", "expert": 4}, "expert_overlap": overlap})
    assert found["micro-steps"].step_s < found["none"].step_s
    assert (found["micro-steps"].breakdown.compute_s
            == pytest.approx(found["none"].breakdown.compute_s))


@pytest.mark.parametrize(("layout", "says"), [
    ({"expert": 8, "tensor": 2}, "8 does not divide the 8 GPUs of a stage over tensor: 2"),
    ({"expert": 8, "shard": "hsdp"}, "8 does not divide the 2 GPUs of a group of shards")])
def test_experts_that_cannot_be_spread_so_are_one_sentence(tmp_path, layout, says):
    path = write(tmp_path, topology(hosts=4, gpus=2, scenario={"parallel": layout},
                                    **workload(EXPERTS)))
    with pytest.raises(TopologyError, match=says) as caught:
        load(path)
    assert caught.value.key == "scenarios[0].parallel.expert"
