"""Training in pages on the accelerator of tests.support.late_accelerator.

    python -m tests.harp.angelptm.device_check NAME...

Each function without arguments is a check. The accelerator's streams do everything as late as they
may, and its memory is 0xAA before it is written and after it is given back: whoever does not wait
has other losses.
"""

import sys
import tempfile

import torch

from harp.angelptm.accelerator import DeviceCache
from harp.angelptm.plan import DEVICE, DISK, HOST
from tests.harp.angelptm.models import PAGE, Tied, batches, config, engine_of, loss_of, seeded
from tests.support import late_accelerator

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
        torch.testing.assert_close(values, usual[1], rtol=0, atol=1e-5)


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


def a_write_outside_of_a_step_stays():
    """And a checkpoint has what was written."""
    how = config(14 + ROOM, 160)
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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, flush=True)
