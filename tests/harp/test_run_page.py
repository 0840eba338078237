"""A job's run page: what stands there after some steps, read by TensorBoard's own reader."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import harp
from harp.run_page import RunPage, RunPageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


class Clock:
    """A clock that the test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(tmp_path: Path, clock: Clock) -> RunPage:
    return RunPage("tensorboard", log_dir=str(tmp_path), clock=clock)


def shown(folder: Path) -> dict[str, list[float]]:
    """Values of each curve, by their steps."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_steps_take_their_time(page: RunPage, clock: Clock, tmp_path: Path) -> None:
    for length in (2.0, 3.0):
        clock.now += length
        page.step()
    assert shown(tmp_path)["harp/step_s"] == [2.0, 3.0]


def test_what_is_on_its_way_at_once_counts_once(page: RunPage, clock: Clock,
                                                tmp_path: Path) -> None:
    """Two from 1 to 3 and 2 to 5, of ten seconds; one more begins at 9 and ends a second later."""
    clock.now += 1
    with page.network():
        clock.now += 1
        inner = page.network()
        inner.__enter__()
        clock.now += 1
    clock.now += 2
    inner.__exit__(None, None, None)
    clock.now += 4
    with page.network():
        clock.now += 1
        page.step()
        clock.now += 1
    clock.now += 3
    page.step()
    assert shown(tmp_path)["harp/network_share"] == pytest.approx([0.5, 0.25])


def test_bytes_are_those_that_the_engines_sent_in_the_step(page: RunPage, tmp_path: Path,
                                                           clock: Clock) -> None:
    with harp.Engine("udp", address="127.0.0.1") as engine:
        listener = engine.listen()
        near = engine.connect(bytes(listener.handle), timeout=10)
        far = listener.accept(timeout=10)
        for count in (1000, 0, 3000):
            if count:
                sent = near.send(bytes(count))
                assert len(far.recv(timeout=10)) == count
                sent.wait(timeout=10)
            clock.now += 1
            page.step()
    found = shown(tmp_path)
    assert sum(found["harp/sent_bytes"]) == 4000
    assert found["harp/received_bytes"] == [1000, 0, 3000]
    assert {"harp/resent_packets", "harp/starved_s"} <= set(found)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_hook_of_ddp_is_watched_and_averages_as_before(tmp_path: Path) -> None:
    page = RunPage("tensorboard", log_dir=str(tmp_path / "log"))
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model.register_comm_hook(None, page.watch(allreduce_hook))
    model(torch.ones(3, 4)).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((2, 4), 3.0))
    page.step()
    (share,) = shown(tmp_path / "log")["harp/network_share"]
    assert 0 < share <= 1


def test_an_unknown_page_is_one_sentence() -> None:
    with pytest.raises(RunPageError, match="tensorboard, wandb, mlflow; did you mean 'wandb'"):
        RunPage("wanb")


@pytest.mark.parametrize(("name", "module"), [
    ("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_package_that_is_not_there_is_one_sentence(name: str, module: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunPageError, match=f"the package {name} cannot be loaded .*pip install"):
        RunPage(name)
