"""Step time, network share and HARP's counters on a job's run page: TensorBoard, W&B or MLflow.

    page = RunPage("tensorboard", log_dir="runs/1")            # or "wandb", "mlflow"
    model.register_comm_hook(None, page.watch(allreduce_hook)) # DDP; any hook
    for batch in batches:
        train(batch)
        page.step()

Each `step` writes ``harp/step_s``, ``harp/network_share`` and, of all engines of this process
(NCCL's plugin and LightCC alike), what they counted since the step before: bytes sent and received,
packets sent again, seconds in which messages waited for the peer's buffers. The network share is
the part of the step in which a bucket of gradients, or what stands in ``with page.network():``, was
on its way; much of it may be hidden behind the backward pass. Let one rank write.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harp.nearest import nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class RunPageError(ValueError):
    """A run page that is not known, or whose package is not installed."""


class RunPage:
    """Writes to one run page, from `step` to `step`."""

    def __init__(self, to: str, *, clock: Callable[[], float] = time.monotonic,
                 **options: Any) -> None:
        """``options`` go to ``SummaryWriter``, to ``wandb.init`` or to ``mlflow.start_run``."""
        if to not in WRITERS:
            near = nearest_name(to, WRITERS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise RunPageError(f"run page {to!r}: unknown name; allowed: "
                               f"{', '.join(WRITERS)}{hint}")
        self._write = WRITERS[to](options)
        self._clock, self._lock = clock, threading.Lock()
        self._number, self._under_way, self._busy_s = 0, 0, 0.0
        self._since = self._began = clock()
        self._counted = counters()

    def step(self) -> None:
        """Write what happened since the last call, or since the page was made."""
        now, counted = self._clock(), counters()
        with self._lock:
            busy_s = self._busy_s + (now - self._since if self._under_way else 0.0)
            self._busy_s, self._since = 0.0, now
        took_s = now - self._began
        values = {"step_s": took_s, "network_share": busy_s / took_s if took_s > 0 else 0.0,
                  **{name: value - self._counted.get(name, 0) for name, value in counted.items()}}
        self._write({f"harp/{name}": value for name, value in values.items()}, self._number)
        self._number, self._began, self._counted = self._number + 1, now, counted

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Count the time within as the network's."""
        self._move(1)
        try:
            yield
        finally:
            self._move(-1)

    def watch(self, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Make a communication hook of DDP that counts each bucket from the call to its future."""
        @functools.wraps(hook)  # DDP looks at the signature
        def watched(state: Any, bucket: Any) -> Any:
            self._move(1)
            future = hook(state, bucket)

            def arrived(done: Any) -> Any:
                self._move(-1)
                return done.value()

            return future.then(arrived)

        return watched

    def _move(self, change: int) -> None:
        with self._lock:
            now = self._clock()
            if self._under_way:
                self._busy_s += now - self._since
            self._under_way, self._since = self._under_way + change, now


def counters() -> Mapping[str, float]:
    """Counters of all engines of this process, from their beginning."""
    from harp.cli.stats_files import snapshots

    found = snapshots(pids=[os.getpid()], events=0)
    lines = [connection for engine in found for connection in engine.connections]
    return {"sent_bytes": sum(one.engine["message_bytes_sent"] for one in found),
            "received_bytes": sum(one.engine["message_bytes_received"] for one in found),
            "resent_packets": sum(line["data_again"] for line in lines),
            "starved_s": sum(line["starved_ns"] for line in lines) * 1e-9}


def _tensorboard(options: Mapping[str, Any]) -> Callable[[dict[str, float], int], object]:
    writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(**options)

    def write(values: dict[str, float], number: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, number)
        writer.flush()

    return write


def _wandb(options: Mapping[str, Any]) -> Callable[[dict[str, float], int], object]:
    run = _package("wandb", "wandb").init(**options)
    return lambda values, number: run.log(values, step=number)


def _mlflow(options: Mapping[str, Any]) -> Callable[[dict[str, float], int], object]:
    mlflow = _package("mlflow", "mlflow")
    mlflow.start_run(**options)
    return lambda values, number: mlflow.log_metrics(values, step=number)


def _package(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise RunPageError(f"run page {package}: the package {package} cannot be loaded ({error}); "
                           f"pip install {package}") from None


WRITERS: dict[str, Callable[[Mapping[str, Any]], Callable[[dict[str, float], int], object]]] = {
    "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
