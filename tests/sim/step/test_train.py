"""Training steps small enough to work out by hand.

Two hosts of one GPU whose port carries 1 MB/s, no latency unless a test gives one: a tensor of
250,000 fp32 elements takes a ring of two ranks 1 s. A layer computes 1 s forward and 2 s backward.
"""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from harp.lightcc.settings import LightSettings
from sim.answer.scenario import Run, Settings
from sim.cluster.placement import place
from sim.network.flow.flow_communicator import FlowCommunicator
from sim.network.flow.timed_fluid import TimedFluid
from sim.network.transport import Style, Transport
from sim.schema.parameters import load_stack
from sim.step.compute import plan_pass
from sim.step.exposure import mean_breakdown
from sim.step.recipe import Recipe
from sim.step.train import Job, largest_deviation
from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import Model
from tests.support.cluster_files import FREE, IDEAL, cluster

SECOND = 250_000
"""Elements whose average takes a second."""


def layer(name, seconds_of_network, *, forward=1, backward=2, **more):
    tensors = (Tensor(f"{name}.weight", int(seconds_of_network * SECOND)),)
    return Layer(name, tensors if seconds_of_network else (), forward, backward, **more)


def job(folder, layers, *, costs=None, gpus=2, latency="0s", **recipe):
    """A job on GPUs of 1 FLOP/s that fuses nothing unless a test says otherwise."""
    made = cluster(folder, hosts=2, rate_bps=8e6,
                   stacks={"ideal": IDEAL | {"start_latency": latency}})
    env = simpy.Environment()
    stack = load_stack("ideal", made.topology.stacks)
    fabric = TimedFluid(env, made.capacities(stack))
    transport = Transport(made, stack, Style())
    transport.payload = transport.burst = 1e-9  # links pass bytes on at once, not frame by frame
    comm = FlowCommunicator(transport, fabric) if gpus > 1 else None
    free = Settings({f"free.{name}": value for name, value in (costs or {}).items()})
    channels = recipe.pop("channels", 1)
    given = Recipe(Model("toy", tuple(layers), "sample", "made up"), 1,
                   free.framework(made.topology, "free"),
                   placement=place(made, np.arange(2), channels, affinity=True),
                   **{"threshold_bytes": 0, "cycle_s": 0.0} | recipe)
    return Job(env, given, comm, gpus, plan_pass(given, 1.0), "gpu")


def step_of(made, steps=1):
    made.env.run(made.env.process(made.run(steps)))
    for (start_s, end_s), parts in zip(made.steps_s, made.breakdowns, strict=True):
        assert parts.step_s == pytest.approx(end_s - start_s)
    return made.steps_s[-1][1] - made.steps_s[-1][0]


def parts_of(made):
    parts = made.breakdowns[-1]
    return {name: value for name in ("compute_s", "exposed_transfer_s", "selection_s", "latency_s",
                                     "message_s") if (value := getattr(parts, name)) > 1e-9}


def test_one_layer_hides_nothing(tmp_path):
    made = job(tmp_path, [layer("a", 1)])
    assert step_of(made) == pytest.approx(4)
    assert parts_of(made) == pytest.approx({"compute_s": 3, "exposed_transfer_s": 1})


def test_the_last_layer_is_averaged_while_the_first_computes(tmp_path):
    """Forward to 2 s, b backward to 4 s, a to 6 s; b is sent from 4 to 5 s, a from 6 to 7 s."""
    made = job(tmp_path, [layer("a", 1), layer("b", 1)])
    assert step_of(made) == pytest.approx(7)
    assert parts_of(made) == pytest.approx({"compute_s": 6, "exposed_transfer_s": 1})
    sent = [(s.name.split()[0], s.start_s, s.end_s) for s in made.spans if s.kind == "transfer"]
    assert sent == [("b.weight", pytest.approx(4), pytest.approx(5)),
                    ("a.weight", pytest.approx(6), pytest.approx(7))]


def test_a_single_gpu_sends_nothing(tmp_path):
    made = job(tmp_path, [layer("a", 1)], gpus=1, costs={"step_overhead": 1.0})
    assert step_of(made) == pytest.approx(3)
    assert parts_of(made) == pytest.approx({"compute_s": 3})


def test_one_stream_sends_one_bucket_after_the_other(tmp_path):
    """b, in three pieces a step: latency from 4 to 4.5 s, bytes to 7.5 s; a: 8.5 s, 9.5 s."""
    made = job(tmp_path, [layer("a", 1), layer("b", 3)], latency="0.5s")
    assert step_of(made) == pytest.approx(9.5)
    assert parts_of(made) == pytest.approx(
        {"compute_s": 6, "exposed_transfer_s": 2.5, "latency_s": 1})


def test_two_streams_share_the_network(tmp_path):
    """a's latency is over at 7 s, when b has 0.5 s left: both go at half the rate until 8 s."""
    made = job(tmp_path, [layer("a", 1), layer("b", 3)], latency="0.5s", streams=2)
    assert step_of(made) == pytest.approx(8.5)
    assert parts_of(made) == pytest.approx({"compute_s": 6, "exposed_transfer_s": 2.5})


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_split_a_bucket(tmp_path, channels):
    made = job(tmp_path, [layer("a", 1)], channels=channels)
    assert step_of(made) == pytest.approx(4)


def test_a_collective_slows_the_backward_pass_that_runs_beside_it(tmp_path):
    """b's average (1.5 s) runs beside a's 2 s: a tenth of 1.5 s more of compute."""
    layers = [layer("a", 1.5), layer("b", 1.5)]
    plain = step_of(job(tmp_path, layers))
    slowed = step_of(job(tmp_path, layers, costs={"slowdown": 1.1}))
    assert slowed - plain == pytest.approx(0.15)


def test_a_step_waits_for_the_slowest_of_its_ranks(tmp_path):
    """Without network: 3 s of compute, stretched by what the largest of two deviates."""
    layers = [layer("a", 0)]
    costs = {"jitter": 0.1}
    assert step_of(job(tmp_path, layers, gpus=1, costs=costs)) == pytest.approx(3)
    stretch = 1 + 0.1 * largest_deviation(2)
    assert step_of(job(tmp_path, layers, costs=costs)) == pytest.approx(3 * stretch)


@pytest.mark.parametrize(("hosts", "gpus", "slower"), [(2, 1, 1.0), (1, 2, 1.5), (2, 2, 1.5)])
def test_gpus_of_a_host_take_from_one_another(tmp_path, hosts, gpus, slower):
    """Where several of a host train, all compute takes half as long again."""
    made = cluster(tmp_path, hosts=hosts, gpus=gpus, rate_bps=1e18,
                   host={"nvlink": {"rate": "1000TB/s", "latency": "0s"}},
                   frameworks={"free": FREE | {"contention": 0.5}})
    (scenario,) = made.topology.scenarios
    alone, all_ = (Run(made, scenario, count).go()[0].breakdown.compute_s
                   for count in (1, hosts * gpus))
    assert all_ == pytest.approx(slower * alone)


@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
def test_the_largest_deviation_is_that_of_drawn_numbers(ranks):
    drawn = np.random.default_rng(1).standard_normal((4000, ranks)).max(axis=1).mean()
    assert largest_deviation(ranks) == pytest.approx(drawn, abs=0.05)


def test_coordination_grows_with_the_ranks(tmp_path):
    layers = [layer("a", 1)]
    costs = {"per_tensor": 0.5, "per_rank": 0.25}
    grown = step_of(job(tmp_path, layers, costs=costs)) - step_of(job(tmp_path, layers))
    assert grown == pytest.approx(0.5 + 2 * 0.25)


def test_coordination_is_serial_and_counts_as_message_cost(tmp_path):
    """Ready at 4 s and 6 s; 0.5 s of coordination each; the second one is exposed."""
    made = job(tmp_path, [layer("a", 1), layer("b", 1)], costs={"per_tensor": 0.5})
    assert step_of(made) == pytest.approx(7.5)
    assert parts_of(made) == pytest.approx(
        {"compute_s": 6, "exposed_transfer_s": 1, "message_s": 0.5})
    # Three tensors of one layer are ready together and coordinated one after the other.
    three = Layer("a", tuple(Tensor(f"t{i}", SECOND // 10) for i in range(3)), 1, 2)
    made = job(tmp_path, [three], costs={"per_tensor": 0.5})
    assert step_of(made) == pytest.approx(3 + 3 * 0.5 + 0.1)


def test_selection_takes_time_and_delays_the_backward_pass(tmp_path):
    """Top-k examines a million elements in 1 s.

    b is ready at 4 s, selected by 5 s; the backward pass of a gives that second back and ends at
    7 s. a is selected by 8 s. Of each, 1 % as pairs of 8 B goes to the other rank: 80 kB, 0.08 s.
    """
    light = LightSettings.from_env({"LIGHT_TOPK_ALLREDUCE": 1, "LIGHT_TOPK_THRESHOLD": 0})
    made = job(tmp_path, [layer("a", 4), layer("b", 4)], allreduce="light", light=light,
               costs={"selection_per_element": 1e-6})
    assert step_of(made) == pytest.approx(8.08)
    assert parts_of(made) == pytest.approx(
        {"compute_s": 6, "selection_s": 2, "exposed_transfer_s": 0.08})


def test_selection_elsewhere_than_on_the_gpu_delays_no_compute(tmp_path):
    """As before, but a's backward pass ends at 6 s, and a is selected by 7 s."""
    light = LightSettings.from_env({"LIGHT_TOPK_ALLREDUCE": 1, "LIGHT_TOPK_THRESHOLD": 0})
    made = job(tmp_path, [layer("a", 4), layer("b", 4)], allreduce="light", light=light,
               costs={"selection_per_element": 1e-6, "kernel_delay": 0.0})
    assert step_of(made) == pytest.approx(7.08)
    assert parts_of(made) == pytest.approx(
        {"compute_s": 6, "selection_s": 1, "exposed_transfer_s": 0.08})


def test_fp16_halves_the_bytes_and_pays_for_two_casts(tmp_path):
    made = job(tmp_path, [layer("a", 1)], fp16=True, costs={"cast_per_element": 1e-6})
    assert step_of(made) == pytest.approx(3 + 2 * 0.25 + 0.5)
    assert parts_of(made) == pytest.approx(
        {"compute_s": 3, "selection_s": 0.5, "exposed_transfer_s": 0.5})


def test_gradients_that_are_fp16_already_need_no_cast(tmp_path):
    made = job(tmp_path, [layer("a", 1)], fp16=True, gradient_bytes=2,
               costs={"cast_per_element": 1e-6})
    assert step_of(made) == pytest.approx(3.5)


def test_the_frameworks_overhead_ends_the_step(tmp_path):
    made = job(tmp_path, [layer("a", 1)], costs={"step_overhead": 0.25})
    assert step_of(made) == pytest.approx(4.25)
    assert parts_of(made) == pytest.approx({"compute_s": 3.25, "exposed_transfer_s": 1})
    assert [s.kind for s in made.spans][-1] == "update"


def test_experts_exchange_before_and_after(tmp_path):
    """An all-to-all of 1 MB among two ranks sends half of it: 0.5 s, four times a step."""
    made = job(tmp_path, [layer("a", 1, alltoall_elements=SECOND)])
    assert step_of(made) == pytest.approx(3 + 4 * 0.5 + 1)
    assert parts_of(made) == pytest.approx({"compute_s": 3, "exposed_transfer_s": 3})


def in_chunks(chunks, compute_s, exchange_s):
    """End of a layer. Its chunks are sent one behind the other, and experts take them in order."""
    come = [exchange_s * (number + 1) / chunks for number in range(chunks)]
    computed_s, sent_s = 0.0, come[-1]
    for come_s in come:
        computed_s = max(computed_s, come_s) + compute_s / chunks
        sent_s = max(sent_s, computed_s) + exchange_s / chunks
    return sent_s


@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("exchange_s", [0.5, 4])
def test_experts_compute_on_a_chunk_while_others_travel(tmp_path, chunks, exchange_s):
    """Beside the all-to-alls nothing is averaged but at the end."""
    made = job(tmp_path, [layer("a", 1, alltoall_elements=int(2 * exchange_s * SECOND))],
               expert_chunks=chunks)
    expected_s = in_chunks(chunks, 1, exchange_s) + in_chunks(chunks, 2, exchange_s)
    assert step_of(made) == pytest.approx(expected_s + 1)
    assert parts_of(made) == pytest.approx({"compute_s": 3, "exposed_transfer_s": expected_s - 2})


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("exchange_s", [0.5, 4])
def test_another_micro_step_computes_while_tokens_travel(tmp_path, chunks, exchange_s):
    """Of three micro-steps, each of 3 s and four all-to-alls, the last alone waits for them."""
    made = job(tmp_path, [layer("a", 1, alltoall_elements=int(2 * exchange_s * SECOND))],
               accumulation=3, expert_overlap="micro-steps", expert_chunks=chunks)
    last_s = in_chunks(chunks, 1, exchange_s) + in_chunks(chunks, 2, exchange_s)
    assert step_of(made) == pytest.approx(2 * max(3, 4 * exchange_s) + last_s + 1)


def test_a_gpu_alone_has_no_chunks(tmp_path):
    made = job(tmp_path, [layer("a", 1, alltoall_elements=SECOND)], gpus=1, expert_chunks=4)
    assert step_of(made) == pytest.approx(3)


def test_tables_exchange_ids_rows_and_gradients(tmp_path):
    """Of two ranks each sends half: of 1 MB of ids, of 1 MB of rows, of 1 MB of gradients."""
    tables = layer("a", 1, alltoall_elements=SECOND, lookups=SECOND // 2)
    made = job(tmp_path, [tables, layer("b", 0)])
    exchanges = [(done.name, done.size) for done in made.graph if done.kind == "exchange"]
    assert exchanges == [("a in", 4 * SECOND), ("a out", 4 * SECOND), ("a in", 4 * SECOND)]
    assert step_of(made) == pytest.approx(6 + 3 * 0.5 + 1)


def test_layers_without_gradients_send_nothing(tmp_path):
    made = job(tmp_path, [layer("a", 1), layer("pool", 0)])
    assert step_of(made) == pytest.approx(7)


def test_steps_follow_one_another_alike(tmp_path):
    made = job(tmp_path, [layer("a", 1), layer("b", 1)])
    step_of(made, steps=3)
    assert made.steps_s == [(0, pytest.approx(7)), (pytest.approx(7), pytest.approx(14)),
                            (pytest.approx(14), pytest.approx(21))]
    assert mean_breakdown(made.breakdowns).step_s == pytest.approx(7)
    assert all(span.start_s >= 14 - 1e-9 for span in made.spans)
