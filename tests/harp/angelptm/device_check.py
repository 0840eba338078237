"""Training in pages on the accelerator of tests.support.late_accelerator.

    python -m tests.harp.angelptm.device_check NAME...

Each function without arguments is a check. The accelerator's streams do everything as late as they
may, and its memory is 0xAA before it is written and after it is given back: whoever does not wait
has other losses.
"""

import contextlib
import ctypes
import io
import json
import runpy
import sys
import tempfile
from pathlib import Path

import torch
from click.testing import CliRunner
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harp.angelptm.__main__ import main
from harp.angelptm.accelerator_pages import DeviceCache
from harp.angelptm.page_plan import DEVICE, DISK, HOST, Capacities, Move
from harp.angelptm.pages import WIDE, Layout
from tests.harp.angelptm.models import (
    PAGE,
    RATE,
    Tied,
    batches,
    config,
    engine_of,
    loss_of,
    seeded,
)
from tests.support import ROOT, late_accelerator

late_accelerator.register()
LATE = torch.device(late_accelerator.NAME, 0)
ROOM = 8
"""Pages beside those of the device: the largest module's parameters, and an update's values."""


def updating_on_the_host(opened):
    """The device's own square roots differ in the last bit, and so where a page is updated."""
    def on_the_host(cache, pages, changed, *, anywhere=False):
        return opened(cache, pages, changed)
    return on_the_host


def trained(device, steps=8, *, host=160, pages=14, **more):
    """Train; gives losses, parameters and the tiers that pages were in."""
    own = {"device": device.type if device.type == "cpu" else "accelerator",
           **more.pop("angelptm", {})}
    late = device is LATE
    how = config(None if pages is None else pages + ROOM * late, host, angelptm=own, **more)
    losses = []
    with engine_of(seeded(Tied), how) as engine:
        assert engine.device == device
        for tokens in batches(steps):
            loss = loss_of(engine, tokens.to(engine.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        with engine.watched():
            values = [one.detach().float().cpu().clone() for one in engine.module.parameters()]
        if late and pages is not None:
            used = engine.cache.memory.numel() + engine.window.most_bytes
            assert 0 < engine.window.most_bytes < used <= (pages + ROOM) * PAGE
        if not engine.config.accumulation > 1:
            assert engine._steps.planned >= 3
        assert engine._steps.diverged == 0
        return losses, values, {tier for tier, _ in engine.cache.where}


def same(tiers, **how):
    """The same bits as with all pages on the device."""
    DeviceCache.opened = updating_on_the_host(DeviceCache.opened)
    own = trained(LATE, **how)
    whole = trained(LATE, **{**how, "pages": None, "host": None, "angelptm": {}})
    assert own[0] == whole[0]
    assert all(map(torch.equal, own[1], whole[1]))
    assert (own[2], whole[2]) == (tiers, {DEVICE})


def the_cpu():
    """Updates are on the device where all their pages are, and on the host else."""
    usual = trained(torch.device("cpu"))
    for pages in (None, 14):
        losses, values, _ = trained(LATE, pages=pages)
        torch.testing.assert_close(losses, usual[0], rtol=0, atol=1e-5)
        # Adam divides by the gradient's own size, so that a rounded tiny one moves its parameter by
        # a visible part of the rate, on some processors more than on others.
        torch.testing.assert_close(values, usual[1], rtol=0, atol=RATE / 10)


def little_device():
    same({DEVICE, HOST})


def disk():
    with tempfile.TemporaryDirectory() as folder:
        same({DEVICE, HOST, DISK}, host=24, angelptm={"disk_path": folder})


def bf16():
    same({DEVICE, HOST}, bf16={"enabled": True}, pages=12)


def fp16():
    same({DEVICE, HOST}, fp16={"enabled": True, "initial_scale_power": 8}, pages=12)


def clipping():
    same({DEVICE, HOST}, gradient_clipping=0.3)


def accumulation():
    same({DEVICE, HOST}, gradient_accumulation_steps=2)


def spare_memory_updates_its_chunks():
    """Room beside parameters and gradients has states of whole chunks; the host does the others."""
    model = seeded(Tied)
    layout = Layout(tuple(one.numel() for one in model.parameters()), WIDE, PAGE)
    opened, there = DeviceCache.opened, []

    def recorded(cache, pages, changed, *, anywhere=False):
        if anywhere:
            there.append(all(cache.where[page][0] == DEVICE for page in pages))
        return opened(cache, pages, changed, anywhere=anywhere)

    DeviceCache.opened = recorded
    how = config(2 * layout.shown + 11 + ROOM, 160, angelptm={"device": "accelerator"})
    with engine_of(model, how) as engine:
        for tokens in batches(5):
            there.clear()
            engine.backward(loss_of(engine, tokens.to(engine.device)))
            engine.step()
        spare = engine.cache.capacities.device - 2 * layout.shown
    DeviceCache.opened = opened
    assert 0 < sum(there) == spare // layout.states < len(there)


class OneDevice(TorchDispatchMode):
    """Refuses operators on tensors of two devices, as a GPU does, and the accelerator here not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        devices = {one.device for one in tree_leaves((args, kwargs))
                   if isinstance(one, torch.Tensor) and one.dim()}
        assert len(devices) < 2 or func.overloadpacket is torch.ops.aten.copy_, (func, devices)
        return func(*args, **(kwargs or {}))


def examples_train_there():
    """Whatever a model makes beside its parameters is on the device."""
    for name in ("gpt", "t5"):
        sys.argv = [name, "--layers", "1", "--width", "64", "--steps", "2", "--device-mib", "32"]
        with contextlib.redirect_stdout(io.StringIO()) as said, OneDevice():
            runpy.run_path(str(ROOT / "examples" / "angelptm" / f"{name}.py"), run_name="__main__")
        assert "step 1: loss" in said.getvalue()


def tests_of_the_cpu_train_there():
    """They give no device, and hold on machines with an accelerator."""
    with engine_of(seeded(Tied), config()) as engine:
        assert engine.device.type == "cpu"


def a_write_outside_of_a_step_stays():
    """And a checkpoint has what was written."""
    how = config(14 + ROOM, 160, angelptm={"device": "accelerator"})
    with engine_of(seeded(Tied), how) as engine, tempfile.TemporaryDirectory() as folder:
        last = engine.module.layers[3][1].weight
        with torch.no_grad():
            last.fill_(0.25)
            engine.module.layers[0][1].weight.norm().item()
        assert torch.equal(last.detach().cpu(), torch.full(last.shape, 0.25))
        engine.save_checkpoint(folder)
        with torch.no_grad():
            last.zero_()
        engine.load_checkpoint(folder)
        assert torch.equal(last.detach().cpu(), torch.full(last.shape, 0.25))


def the_command_names_it():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ds.json")
        for given, says in ((None, "late:0"), ("cpu", "cpu")):
            file.write_text(json.dumps({"angelptm": {"device": given} if given else {}}))
            done = CliRunner().invoke(main, [str(file)])
            assert ["trains", "on", says] in map(str.split, done.stdout.splitlines())
        file.write_text("{}")
        done = CliRunner().invoke(main, [str(file), "--ranks", "2"])
        assert done.exit_code == 2
        assert "pages of several ranks are not possible on an accelerator" in done.stderr


class Pages:
    """A cache of six pages on the device, each of whose bytes is one number, and others."""

    def __init__(self):
        layout = Layout((4 * PAGE // WIDE,), WIDE, PAGE)
        self.cache = DeviceCache(LATE, layout, Capacities(6, 20))
        self.free = next(slot for slot in range(20) if (HOST, slot) not in self.cache.where)

    def slow(self, into, given):
        """Have an operator write that has not run when this returns: copies must wait for it."""
        into.copy_(given)
        self.cache.mark()

    def of(self, value):
        return torch.full((PAGE,), value, dtype=torch.uint8).to(LATE)

    def out(self, page, *, empty=False):
        """Move a page to the host."""
        there = self.cache.where[page]
        self.cache.move(Move(page, there, (HOST, self.free), -1, empty))
        return there

    def take_in(self, page, value, slot):
        """Move a page of these bytes from the host to a slot."""
        place = self.cache.where[page]
        ctypes.memset(self.cache.address(page), value, PAGE)
        self.cache.move(Move(page, place, slot, -1, empty=False))
        self.free = place[1]


def reads_ends_first():
    """An operator that reads a page is over before another page takes its slot."""
    pages = Pages()
    pages.slow(pages.cache.arrived(0), pages.of(1))
    read = pages.of(0)
    pages.slow(read, pages.cache.arrived(0))
    pages.take_in(8, 2, pages.out(0, empty=True))
    pages.cache._copies.synchronize()
    assert (read.cpu() == 1).all()


def written_page_leaves_whole():
    """An operator that writes a page is over before the page goes to the host."""
    pages = Pages()
    pages.slow(pages.cache.arrived(0), pages.of(1))
    pages.out(0)
    assert bytes_at(pages.cache.address(0)) == {1}


def update_waits():
    """An operator that writes a page is over before an update changes it, here or on the host."""
    for anywhere in (True, False):
        pages = Pages()
        pages.slow(pages.cache.arrived(0), pages.of(1))
        with pages.cache.opened([0, 1], [0], anywhere=anywhere) as (first, _):
            if anywhere:
                first.add_(1)
            else:
                assert bytes_at(first) == {1}
                ctypes.memset(first, 2, PAGE)
        assert (pages.cache.arrived(0).cpu() == 2).all()


def operator_waits():
    """And an operator waits for the page that comes, and for an update that has only begun."""
    pages = Pages()
    pages.take_in(8, 2, pages.out(0, empty=True))
    assert (pages.cache.arrived(8).cpu() == 2).all()
    with pages.cache.opened([8, 1], [8], anywhere=True) as (first, _):
        first.fill_(3)
    assert (pages.cache.arrived(8).cpu() == 3).all()


def buffer_waits():
    """A buffer is filled again when its copy is over."""
    pages = Pages()
    for page in range(6):
        pages.take_in(8 + page, 10 + page, pages.out(page, empty=True))
    for page in range(6):
        assert (pages.cache.arrived(8 + page).cpu() == 10 + page).all()


def bytes_at(address):
    return set(ctypes.string_at(address, PAGE))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, flush=True)
