"""The controller: what it applies, what it refuses, and what it decides.

The oracle is training in full precision: the same bits where a batch ran again, and the same loss
in the end where trouble was planted (`troubles.py`).
"""

from __future__ import annotations

import copy
import logging
import math
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402

from harp.ttf.amp import Controller, Policy  # noqa: E402
from tests.harp.ttf.amp.troubles import TROUBLES, Training  # noqa: E402
from tests.support.levels import long_except  # noqa: E402


@cache
def full(trouble, seed):
    return Training(trouble, seed).run("full")


SEEDS = (1, 2, 3)
RUNS = [(trouble, seed) for trouble in TROUBLES for seed in SEEDS]
WITHIN = 1.01
FAILING = ("attention", "underflow", "collapse", "stall")
"""Trainings that autocast and GradScaler alone spoil."""


@pytest.mark.parametrize(("trouble", "seed"),
                         long_except(RUNS, ("attention", 1)))
def test_planted_trouble_ends_within_a_hundredth_of_full_precision(trouble, seed):
    ours = Training(trouble, seed)
    assert ours.run("ours") <= WITHIN * full(trouble, seed)
    if trouble == "healthy":
        assert ours.controller.half_share >= 0.95
        assert not ours.controller.switches
    if trouble == "attention":
        assert ours.controller.pinned == ("attention",)
        assert ours.controller.half_share >= 0.95


# Torch warns where a scaler skipped the first step: this is the failure.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(("trouble", "seed"), long_except(
    [run for run in RUNS if run[0] in FAILING], ("underflow", 1)))
def test_autocast_and_grad_scaler_alone_do_not(trouble, seed):
    assert not (Training(trouble, seed).run("autocast") <= WITHIN * full(trouble, seed))


class Small(nn.Module):
    """A model with running statistics and random numbers."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(8, 1)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x):
        return self.out(self.drop(self.norm(self.inner(x)))).square().mean()


class Batches:
    """A model under the controller, and what its next batches are multiplied by."""

    def __init__(self, dtype=torch.float16, **policy):
        torch.manual_seed(0)
        self.model = Small()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.controller = Controller(self.model, self.optimizer, dtype,
                                     policy=Policy(**{"probe_every": 10**6, **policy}))
        self.random = torch.Generator().manual_seed(1)

    def step(self, times=1.0):
        x = torch.randn(16, 8, generator=self.random) * times
        return self.controller.step(lambda: self.model(x))

    def everything(self):
        return copy.deepcopy(self.model.state_dict())


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def without_probes(batches):
    """Go past the probes that come first."""
    for _ in range(6):
        batches.step()
    return batches


def test_a_batch_that_overflows_is_a_step_in_full_precision_bit_for_bit():
    ours = without_probes(Batches())
    full = copy.deepcopy(ours.model)
    optimizer = torch.optim.SGD(full.parameters(), lr=0.01)
    x = torch.randn(16, 8, generator=ours.random) * 1e6
    random = torch.get_rng_state()
    report = ours.controller.step(lambda: ours.model(x))
    after = torch.get_rng_state()
    assert report.applied
    assert not report.half
    assert report.again == "the loss is not finite"
    torch.set_rng_state(random)
    full(x).backward()
    optimizer.step()
    assert same(ours.everything(), full.state_dict())
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize("times", [math.nan, math.inf])
def test_a_step_that_is_bad_in_full_precision_too_changes_no_parameter_and_no_buffer(times):
    ours = without_probes(Batches())
    before = ours.everything()
    report = ours.step(times)
    assert not report.applied
    assert same(ours.everything(), before)


def test_a_bfloat16_training_stays_in_half():
    ours = Batches(torch.bfloat16)
    assert [ours.step().half for _ in range(30)].count(False) == 3  # the probes
    assert not ours.controller.switches


def test_a_probe_finds_a_stall_and_half_precision_returns_after_a_hold(caplog):
    caplog.set_level(logging.INFO, "harp.ttf.amp")
    weight = nn.Parameter(torch.tensor([1.0]))
    offset = 8192.0

    def loss():
        # float16 counts in eights there, so that it sees no weight below 4.
        seen = weight.half() if torch.is_autocast_enabled("cpu") else weight
        return ((seen + offset) - offset).float().square().sum() / 64

    optimizer = torch.optim.SGD([weight], lr=0.001)
    model = nn.Module()
    model.weight = weight
    controller = Controller(model, optimizer, policy=Policy(hold=5))
    controller.step(loss)
    assert not controller.half
    offset = 0.0
    for _ in range(4 + 2):  # until the hold is over, and two probes
        assert not controller.half
        controller.step(loss)
    assert controller.half
    assert [sentence.split(":")[0] for _, sentence in controller.switches] == [
        "half to full", "full to half"]
    assert "probe: gradients in half precision are 100% off" in caplog.text


def overflowing():
    """Losses that are not finite end half precision, and probes bring it back."""
    ours = Batches(hold=5, strikes=1, pin_after=100)
    for step in range(1, 20):
        ours.step(1e6 if step == 7 else 1.0)
    return ours.controller


def troubled(trouble):
    training = Training(trouble, 1)
    training.run("ours", steps=100)
    return training.controller


@pytest.mark.parametrize(("run", "reasons"), [
    (lambda: troubled("attention"), ["module attention overflowed 2 times and stays in full pre"]),
    (lambda: troubled("collapse"), ["half to full: the loss scale collapsed to "]),
    (lambda: troubled("stall"), ["half to full: probe: gradients in half precision are "]),
    (overflowing, ["half to full: the loss is not finite, 1 times",
                   "full to half: 2 probes agreed"])])
def test_each_switch_is_a_line_of_the_log_with_its_reason(run, reasons, caplog):
    caplog.set_level(logging.INFO, "harp.ttf.amp")
    switches = run().switches
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert lines == [f"step {step}: {sentence}" for step, sentence in switches]
    for reason in reasons:
        assert any(sentence.startswith(reason) for _, sentence in switches), switches


def test_relapses_make_the_hold_longer():
    ours = Batches(hold=5, strikes=1, pin_after=100)
    lengths, last = [], 0
    for step in range(1, 200):
        was = ours.controller.half
        ours.step(1e6 if was and step > 6 else 1.0)
        if ours.controller.half and not was:
            lengths.append(step - last)
        if was and not ours.controller.half:
            last = step
    assert len(lengths) >= 3
    assert lengths[1] > 1.5 * lengths[0]
    assert lengths[2] > 1.5 * lengths[1]


def test_switching_compiles_once_for_each_precision():
    counter = CompileCounter()
    torch._dynamo.reset()
    ours = Batches(hold=3, strikes=1, pin_after=100)
    compiled = torch.compile(ours.model, backend=counter)

    def step(times=1.0):
        x = torch.randn(16, 8, generator=ours.random) * times
        ours.controller.step(lambda: compiled(x))

    step()
    step(1e6)
    first = counter.frame_count
    for _ in range(4):
        step(1e6)
        for _ in range(30):
            step()
    assert counter.frame_count == first == 2
    assert len(ours.controller.switches) >= 4


def test_a_training_goes_on_from_its_state_as_if_it_had_not_stopped():
    def decisions(batches, times):
        return [batches.step(factor) for factor in times]

    trouble = [1e6 if step % 9 == 4 else 1.0 for step in range(60)]
    whole = Batches(hold=5)
    expected = decisions(whole, trouble)
    first, second = Batches(hold=5), Batches(hold=5)
    got = decisions(first, trouble[:30])
    second.model.load_state_dict(first.model.state_dict())
    second.controller.load_state_dict(copy.deepcopy(first.controller.state_dict()))
    second.random.set_state(first.random.get_state())
    got += decisions(second, trouble[30:])
    assert [(report.half, report.applied) for report in got] == [
        (report.half, report.applied) for report in expected]
    assert second.controller.switches == whole.controller.switches


def test_a_state_names_pinned_modules_without_wrappers():
    ours = Training("attention", 1)
    ours.run("ours", steps=20)
    state = ours.controller.state_dict()
    assert state["state"]["pinned"] == ["attention"]
    fresh = Training("attention", 1)
    wrapped = nn.Sequential()
    wrapped.module = fresh.model
    controller = Controller(wrapped, fresh.optimizer)
    controller.load_state_dict(state)
    with torch.autocast("cpu", torch.float16):
        assert fresh.model.attention(torch.randn(1, 4, 16)).dtype == torch.float32
    with pytest.raises(ValueError, match="'attention', which this model does not have"):
        Controller(Small(), ours.optimizer).load_state_dict(state)


def test_clipping_bounds_the_norm():
    weight = nn.Parameter(torch.ones(4))
    model = nn.Module()
    model.weight = weight
    controller = Controller(model, torch.optim.SGD([weight], lr=1.0), clip_norm=0.5)
    controller.step(lambda: 100 * weight.sum())
    assert float((weight.detach() - 1).norm()) == pytest.approx(0.5, rel=1e-3)


def sparse_training(*, sparse, dtype, poison):
    """Train an embedding whose ids repeat; the gradients of one step are not finite in half."""
    torch.manual_seed(0)
    table, layer = nn.Embedding(20, 8, sparse=sparse), nn.Linear(8, 1)
    model = nn.Sequential(table, layer)
    controller = Controller(model, [torch.optim.SGD(table.parameters(), lr=0.1),
                                    torch.optim.SGD(layer.parameters(), lr=0.1)], dtype,
                            clip_norm=0.3)
    reports = []
    for step in range(12):
        ids = torch.randint(0, 20, (16,))

        def loss(ids=ids, step=step):
            said = model(ids)
            bad = poison and step == 7 and said.dtype is dtype
            return said.float().square().mean() * (math.inf if bad else 1.0)
        reports.append(controller.step(loss))
    return reports, [one.detach() for one in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("poison", [False, True])
def test_sparse_gradients_train_as_dense_ones_do(dtype, poison):
    (found, ours), (expected, theirs) = (
        sparse_training(sparse=sparse, dtype=dtype, poison=poison) for sparse in (True, False))
    assert [bool(report.again) for report in found] == [bool(report.again) for report in expected]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: Controller(Small(), []), "optimizer is empty; allowed is one of torch, or several"),
    (lambda: Controller(Small(), torch.optim.SGD(Small().parameters(), 0.1), clip_norm=-1),
     "clip_norm is -1; allowed is a number of more than 0"),
    (lambda: Controller(Small(), torch.optim.SGD(Small().parameters(), 0.1), torch.float32),
     "dtype is torch.float32; allowed are"),
    (lambda: Controller(Small(), torch.optim.SGD(Small().half().parameters(), 0.1)),
     "in half precision already"),
    (lambda: Controller(Small(), torch.optim.LBFGS(Small().parameters())),
     "optimizer LBFGS computes the loss itself, by a closure; allowed is an optimizer whose"),
    (lambda: Batches().controller.load_state_dict({}),
     "the state is no whole one"),
    (lambda: Batches().controller.load_state_dict({"state": {"other": 1}}),
     "the state is no whole one"),
    (lambda: Batches().controller.load_state_dict(None),
     "the state is no whole one"),
    (lambda: Policy(hold=0), "hold is 0; it must be positive"),
    (lambda: Batches().controller.step(lambda: torch.zeros(2)), r"compute\(\) gave \(2,\)"),
    (lambda: Batches().controller.step(lambda: 1.0), r"compute\(\) gave float"),
    (lambda: Batches().controller.step(torch.zeros(1)), "compute is a Tensor; it must be a func")])
def test_a_mistake_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
