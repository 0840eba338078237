"""``hvd.elastic``: training that continues when ranks are lost.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0))

When the ranks are no group any more (`HorovodInternalError`), the state goes back to the last
commit, the ranks that are left make a new group without leaving their processes, and the function
is called again. ``harp run --min-np`` says which ranks are left; under other launchers all must
come again. Where ``harp run`` finds more hosts, or fewer, the next commit leads to a new group, and
nothing is lost.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from harp.lightcc.horovod import rejoin, world
from harp.lightcc.horovod.horovod_errors import HorovodInternalError, HostsUpdatedInterrupt
from harp.lightcc.horovod.torch.elastic_sampler import ElasticSampler
from harp.lightcc.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from harp.lightcc.horovod.torch.handles import forget_unnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
log = logging.getLogger("harp.horovod")


class State:
    """State that a training function continues from."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Have functions called after each new group, for what depends on its size."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """There is a new group."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Save, so that at most what comes after this is lost, and look for changed hosts."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt, at all ranks, where hosts were added or taken away."""
        if rejoin.ELASTIC not in os.environ:
            return
        changed = world.current().rank == 0 and rejoin.hosts_have_changed()
        if broadcast_object(changed, 0, "elastic.hosts"):
            raise HostsUpdatedInterrupt

    def reset(self) -> None:
        """Prepare for a new group."""

    def save(self) -> None:
        """Keep what is there."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's."""
        raise NotImplementedError


class ObjectState(State):
    """Attributes that pickle can take."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._known = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        ObjectState.save(self)

    def save(self) -> None:
        """Keep what is there."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._known}

    def restore(self) -> None:
        """Go back to what was kept."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Take rank 0's."""
        if self._known:
            self._saved = broadcast_object(self._saved, 0, "elastic.state")
            ObjectState.restore(self)


class TorchState(ObjectState):
    """Models, optimizers and samplers by name, and other attributes."""

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        named = {"model": model, "optimizer": optimizer, **values}
        self._parts = {name: value for name, value in named.items()
                       if isinstance(value, (torch.nn.Module, torch.optim.Optimizer,
                                             ElasticSampler))}
        self._kept: dict[str, Any] = {}
        for name, part in self._parts.items():
            setattr(self, name, part)
        super().__init__(**{name: value for name, value in named.items()
                            if name not in self._parts and value is not None})
        self._save_parts()

    def save(self) -> None:
        """Keep what is there."""
        super().save()
        self._save_parts()

    def _save_parts(self) -> None:
        self._kept = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}

    def restore(self) -> None:
        """Go back to what was kept."""
        super().restore()
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._kept[name]))

    def sync(self) -> None:
        """Take rank 0's; of samplers, what all ranks together have done."""
        for part in self._parts.values():
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), 0)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, 0)
            else:
                part.merge(allgather_object(part.state_dict(), "elastic.sampler"))
        self._save_parts()
        super().sync()

    def reset(self) -> None:
        """Prepare for a new group."""
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.reset()


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function with a `State`, again after each loss of the group."""
    @functools.wraps(function)
    def wrapped(state: State, *args: Any, **more: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return function(state, *args, **more)
            except HorovodInternalError as error:
                log.warning("rank %d goes back to its last commit: %s", _rank(), error)
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as changed:
                skip_sync = changed.skip_sync
            forget_unnamed()
            rejoin.meet_again()
            state.on_reset()
    return wrapped


def _rank() -> int:
    return world.current().rank if world.is_initialized() else -1
