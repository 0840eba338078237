"""The state that a rank keeps of its gradients; every rank is a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.harp.lightcc.test_group import PATIENCE_S
from tests.support.levels import each_once

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from harp.lightcc.fusion import DDP_FIRST_BYTES, fill  # noqa: E402
from harp.lightcc.torch import LightGroup  # noqa: E402
from harp.lightcc.torch.gradient_hook import GradientState, Sparsity, average_gradients  # noqa: E402

ELEMENTS, RATIO = 4000, 0.05


class Bucket:
    """A DDP bucket: one parameter's gradient."""

    def __init__(self, gradients):
        self._gradients = gradients

    def buffer(self):
        return self._gradients

    def index(self):
        return 0

    def parameters(self):
        return [self._gradients]

    def is_last(self):
        return True


def light(monkeypatch, two_d=False, fp16=False):
    for name, value in {"LIGHT_TOPK_ALLREDUCE": 1, "LIGHT_TOPK_RATIO": RATIO,
                        "LIGHT_TOPK_THRESHOLD": 4, "LIGHT_2D_ALLREDUCE": int(two_d),
                        "LIGHT_INTRA_SIZE": 2, "LIGHT_TOPK_FP16": int(fp16)}.items():
        monkeypatch.setenv(name, str(value))


def in_few_bits(monkeypatch, bits, two_d=False):
    for name, value in {"LIGHT_BITS": bits, "LIGHT_SMALL_THRESHOLD": 4, "LIGHT_INTRA_SIZE": 2,
                        "LIGHT_2D_ALLREDUCE": int(two_d)}.items():
        monkeypatch.setenv(name, str(value))


class Ranks:
    """Ranks with a state each."""

    def __init__(self, ranks, sparsity=None):
        store = dist.HashStore()
        self._pool = ThreadPoolExecutor(ranks)
        self.groups = list(self._pool.map(
            lambda rank: LightGroup(store, rank, ranks, timedelta(seconds=PATIENCE_S)),
            range(ranks)))
        self.states = [GradientState(group, sparsity) for group in self.groups]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        list(self._pool.map(lambda group: group._group.close(), self.groups))
        self._pool.shutdown()

    def step(self, gradients):
        """Average one gradient of each rank; the average, which all ranks have."""
        made = [own.clone() for own in gradients]
        averages = list(self._pool.map(
            lambda state, own: average_gradients(state, Bucket(own)).wait(), self.states, made))
        assert len({average.numpy().tobytes() for average in averages}) == 1
        return averages[0]

    def left(self):
        """Gradients that no rank has sent."""
        whole = torch.zeros(ELEMENTS)
        for state in self.states:
            for kept in state.state_dict()["buckets"].values():
                whole[kept["first"]:kept["first"] + len(kept["error"])] += kept["error"]
        return whole


def random(ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ELEMENTS, generator=generator) for _ in range(ranks)]


def zeros(ranks):
    return [torch.zeros(ELEMENTS) for _ in range(ranks)]


def test_torch_fills_its_buckets_as_is_simulated_and_explained():
    """From the second step on, when DDP has seen in which order gradients come."""
    sizes = [300_000, 5, 100_000, 70_000, 9, 40_000, 1_000]
    net = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in sizes])

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = net

        def forward(self):
            total = torch.zeros(())
            for part in self.parts:  # a chain: the backward pass goes from the last to the first
                total = (total + part).sum()
            return total

    seen = []

    def note(_, bucket):
        seen.append(bucket.buffer().nbytes)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    group = LightGroup(dist.HashStore(), 0, 1, timedelta(seconds=PATIENCE_S))
    cap = 300_000 / (1 << 20)
    made = torch.nn.parallel.DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=cap)
    made.register_comm_hook(None, note)
    for _ in range(2):
        seen.clear()
        made().backward()
    backward = [4 * size for size in reversed(sizes)]
    starts = [*fill(backward, min(DDP_FIRST_BYTES, 300_000), 300_000), len(sizes)]
    assert seen == [sum(backward[first:end]) for first, end in pairwise(starts)]
    assert len(seen) == 3
    group._group.close()


def test_the_first_step_is_dense(monkeypatch):
    light(monkeypatch)
    with Ranks(2) as ranks:
        gradients = random(2, 1)
        torch.testing.assert_close(ranks.step(gradients), sum(gradients) / 2)
        assert int((ranks.step(random(2, 2)) != 0).sum()) <= 2 * RATIO * ELEMENTS


def averages(ranks, seeds):
    """All gradients of some steps, and what their averages brought."""
    given, came = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    for seed in seeds:
        gradients = random(len(ranks.states), seed)
        given += sum(gradients)
        came += ranks.step(gradients) * len(gradients)
    return given, came


def check_nothing_is_lost(before, after, atol):
    """Nothing is, over four steps, a checkpoint into other ranks, and four more.

    Returns what is left at the end of each half.
    """
    with Ranks(before) as ranks:
        given, came = averages(ranks, range(4))
        saved = [state.state_dict() for state in ranks.states]
        first = ranks.left()
        torch.testing.assert_close(came + first, given, atol=atol, rtol=0)
    with Ranks(after) as ranks:
        for state in ranks.states:
            state.load_state_dicts(saved)
        ranks.step(zeros(after))  # dense
        more, brought = averages(ranks, range(10, 14))
        left = ranks.left()
        torch.testing.assert_close(came + brought + left, given + more, atol=atol, rtol=0)
        assert ranks.states[0].step == 3 + 4
    return first, left


@pytest.mark.parametrize(("change", "two_d", "fp16"), each_once(
    [(4, 4), (4, 2), (2, 6), (3, 1)], [False, True], [True, False]))
def test_unsent_gradients_are_kept_when_the_number_of_ranks_changes(
        monkeypatch, change, two_d, fp16):
    before, after = change
    light(monkeypatch, two_d, fp16)
    _, left = check_nothing_is_lost(before, after, 1e-2)
    groups = after // 2 if two_d else after
    assert (groups > 1) == bool(left.any())  # within a group nothing is held back


@pytest.mark.parametrize(("change", "two_d", "bits"), each_once(
    [(4, 4), (4, 2), (2, 6)], [False, True], [8, 2]))
def test_what_few_bits_did_not_say_is_kept_when_the_number_of_ranks_changes(
        monkeypatch, change, two_d, bits):
    before, after = change
    in_few_bits(monkeypatch, bits, two_d=two_d)
    first, _ = check_nothing_is_lost(before, after, 1e-3)
    assert first.any() == (not two_d or before > 2)


def test_averages_in_few_bits_are_near_and_better_with_what_was_kept(monkeypatch):
    in_few_bits(monkeypatch, 2)
    off = []
    for feedback in (True, False):
        with Ranks(3, Sparsity(feedback=feedback)) as ranks:
            gradients = random(3, 1)
            came = sum(ranks.step(gradients) for _ in range(20)) / 20
            off.append(float((came - sum(gradients) / 3).abs().max()))
    assert off[0] < off[1] / 5


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_averages_around_a_ring_lose_nothing(monkeypatch, ranks):
    in_few_bits(monkeypatch, 4)
    monkeypatch.setenv("LIGHT_BITS_RING", "1")
    given = came = torch.zeros(ELEMENTS)
    with Ranks(ranks) as made:
        made.step(zeros(ranks))
        for seed in range(3):
            gradients = random(ranks, seed)
            given = given + sum(gradients)
            came = came + ranks * made.step(gradients)
        assert made.groups[0].callbacks.program_group.failure is None
        torch.testing.assert_close(came + made.left(), given, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("way", "value"), each_once(
    ["8 bits", "2 bits", "2D, 4 bits", "top-k", "2D, top-k", "momentum"],
    [float("nan"), float("inf")]))
def test_gradients_that_are_not_finite_are_seen_and_forgotten(monkeypatch, way, value):
    """As with a GradScaler, which passes over such a step, and goes on with the next."""
    if "bits" in way:
        in_few_bits(monkeypatch, int(way.split()[-2]), two_d="2D" in way)
    else:
        light(monkeypatch, two_d="2D" in way)
    with Ranks(4, Sparsity(momentum=0.5 if way == "momentum" else 0)) as ranks:
        ranks.step(zeros(4))
        ranks.step(random(4, 1))
        overflown = random(4, 2)
        overflown[2][:ELEMENTS // 2] = value
        assert not torch.isfinite(ranks.step(overflown)).all()
        assert torch.isfinite(ranks.left()).all()
        assert torch.isfinite(ranks.step(random(4, 3))).all()


def test_momentum_is_refused_in_few_bits(monkeypatch):
    in_few_bits(monkeypatch, 8)
    with Ranks(2, Sparsity(momentum=0.9)) as ranks:
        ranks.step(zeros(2))
        with pytest.raises(ValueError, match="leave momentum to the optimizer"):
            ranks.step(zeros(2))


def test_a_rank_goes_on_from_its_own_checkpoint_bit_for_bit(monkeypatch):
    light(monkeypatch, two_d=True)
    sparsity = Sparsity(momentum=0.9)
    with Ranks(4, sparsity) as one, Ranks(4, sparsity) as other:
        for seed in range(3):
            one.step(random(4, seed))
        for state, saved in zip(other.states, one.states, strict=True):
            state.load_state_dict(saved.state_dict())
        other.step(zeros(4))
        for seed in range(5, 8):
            assert torch.equal(one.step(random(4, seed)), other.step(random(4, seed)))


def test_a_checkpoint_of_other_ranks_is_refused_where_it_is_taken_for_the_own_one(monkeypatch):
    light(monkeypatch, two_d=True)
    with Ranks(4) as ranks:
        for seed in range(2):
            ranks.step(random(4, seed))
        saved = ranks.states[0].state_dict()
    with Ranks(2) as ranks:
        for state in ranks.states:
            state.load_state_dict(saved)
        ranks.step(zeros(2))
        with pytest.raises(ValueError, match="load_state_dicts takes the states of all its ranks"):
            ranks.states[0].memory_of(Bucket(torch.zeros(ELEMENTS)))


def test_momentum_is_gathered_before_the_selection_and_begins_anew_where_it_was_sent(monkeypatch):
    """Two ranks with the same gradients, against the paper's algorithm 1."""
    light(monkeypatch)
    velocity, left = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    with Ranks(2, Sparsity(momentum=0.5)) as ranks:
        ranks.step(zeros(2))
        for seed in range(6):
            gradients, = random(1, seed)
            velocity = 0.5 * velocity + gradients
            left = left + velocity
            chosen = torch.topk(left.abs(), int(RATIO * ELEMENTS)).indices
            wanted = torch.zeros(ELEMENTS)
            wanted[chosen] = left[chosen]
            left[chosen] = velocity[chosen] = 0
            torch.testing.assert_close(ranks.step([gradients] * 2), wanted)


def test_gradients_are_clipped_to_their_rank_s_share_of_the_norm(monkeypatch):
    light(monkeypatch)
    with Ranks(4, Sparsity(clip=1.0)) as ranks:
        ranks.step(zeros(4))
        gradients = random(4, 1)
        came = ranks.step(gradients) * 4 + ranks.left()
        wanted = sum(own / own.norm() / 2 for own in gradients)
        torch.testing.assert_close(came, wanted)
        before = ranks.left()
        small = [own / own.norm() / 4 for own in random(4, 2)]  # below it: as they are
        torch.testing.assert_close(ranks.step(small) * 4 + ranks.left() - before, sum(small),
                                   atol=1e-6, rtol=1e-4)


def test_the_share_grows_smaller_while_it_warms_up(monkeypatch):
    light(monkeypatch)
    with Ranks(2, Sparsity(warm_up=(0.5, 0.25), warm_up_steps=2)) as ranks:
        ranks.step(zeros(2))
        sent = [int((ranks.step(random(1, seed) * 2) != 0).sum()) for seed in range(5)]
    assert sent == [2000, 2000, 1000, 1000, 200]


def test_a_sample_s_threshold_sends_somewhat_less_and_keeps_the_rest(monkeypatch):
    light(monkeypatch)
    elements = 10 * ELEMENTS  # fewer are selected exactly
    with Ranks(2, Sparsity(sampled=True)) as ranks:
        ranks.step([torch.zeros(elements)] * 2)
        own = torch.randn(elements, generator=torch.Generator().manual_seed(1))
        average = ranks.step([own, own])
        sent = int((average != 0).sum())
        assert 0.5 * RATIO * elements < sent < RATIO * elements
        for state in ranks.states:
            kept, = state.state_dict()["buckets"].values()
            torch.testing.assert_close(average + kept["error"], own, rtol=0, atol=1e-6)


def test_without_feedback_what_is_not_sent_is_lost(monkeypatch):
    light(monkeypatch)
    with Ranks(2, Sparsity(feedback=False)) as ranks:
        ranks.step(zeros(2))
        ranks.step(random(2, 1))
        assert not ranks.left().any()
        assert not ranks.step(zeros(2)).any()


@pytest.mark.parametrize(("given", "sentence"), [
    ({"momentum": 1.0}, "momentum is 1.0; allowed is 0 up to below 1"),
    ({"clip": 0}, "clip is 0; allowed is a norm above 0"),
    ({"warm_up": (0.5, 2)}, "allowed are shares above 0 and up to 1"),
    ({"warm_up_steps": 0}, "warm_up_steps is 0; allowed is 1 or more")])
def test_options_that_make_no_sense_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        Sparsity(**given)
