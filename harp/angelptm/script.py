"""Functions that a script for DeepSpeed calls beside `initialize` and the engine's own functions.

A model stands in the host's memory once while it is made, and goes into pages whole. So
`zero.Init` has nothing to do here; in DeepSpeed it divides each layer as it is made.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from harp.angelptm.accelerator_pages import find_device
from harp.angelptm.config import ConfigError
from harp.angelptm.paged import PagedParameter
from harp.angelptm.ranks import BACKEND, join_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

HOST_BACKENDS = ("lightcc", "gloo", "mpi")
"""Backends that carry the memory of hosts."""


def init_distributed(dist_backend: str | None = None, **more: Any) -> None:
    """Join the job that the environment describes; one rank alone has a job of its own.

    Pages are the host's, so a backend of GPUs, as ``nccl``, becomes ``lightcc``; how else DeepSpeed
    would find the ranks (``more``) has no effect.
    """
    del more
    join_job(dist_backend if dist_backend in HOST_BACKENDS else BACKEND, alone=True)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add DeepSpeed's own options, and no ``--local_rank``, which its scripts add themselves.

    `initialize` reads ``args``.
    """
    group = parser.add_argument_group("DeepSpeed", "options of scripts for DeepSpeed")
    group.add_argument("--deepspeed", action="store_true", help="has no effect: it is always on")
    group.add_argument("--deepspeed_config", metavar="FILE", help="the configuration")
    return parser


class Accelerator:
    """The device that trains, as DeepSpeed's accelerator names it; a CPU is one, too."""

    @staticmethod
    def is_available() -> bool:
        """Say that there is a device, as DeepSpeed does."""
        return True

    @staticmethod
    def device_name(device_index: int | None = None) -> str:
        """Name the kind of device, or a device of it, as torch does."""
        kind = find_device("accelerator", 1).type
        return kind if device_index is None or kind == "cpu" else f"{kind}:{device_index}"

    @staticmethod
    def set_device(device_index: int) -> None:
        """Have tensors come to this device; a CPU is one device."""
        if torch.accelerator.is_available():
            torch.accelerator.set_device_index(device_index)

    @staticmethod
    def communication_backend_name() -> str:
        """Name the backend that a script joins its job by."""
        return BACKEND


def get_accelerator() -> Accelerator:
    """Give what DeepSpeed's own scripts ask for the name of a device."""
    return Accelerator()


class Zero:
    """DeepSpeed's ``deepspeed.zero``."""

    @staticmethod
    def Init(*how: Any, **more: Any) -> AbstractContextManager[None]:  # noqa: N802 (DeepSpeed's)
        """Let the model be made as it stands."""
        del how, more
        return nullcontext()

    @staticmethod
    @contextmanager
    def GatheredParameters(  # noqa: N802 (DeepSpeed's)
            params: torch.Tensor | Iterable[torch.Tensor], modifier_rank: int | None = None,
            fwd_module: Any = None, enabled: bool = True) -> Iterator[None]:
        """Let code read and write parameters, as `Engine.watched` does.

        Raises ConfigError where one of several ranks alone is to write them.
        """
        del fwd_module
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        engines = {engine for one in given if enabled and type(one) is PagedParameter
                   and (engine := one.engine()) is not None}
        if modifier_rank is not None and any(engine.world_size > 1 for engine in engines):
            raise ConfigError(f"zero.GatheredParameters: modifier_rank={modifier_rank} would write "
                              "at one rank only: leave it out, and write the same at all ranks")
        with ExitStack() as stack:
            for engine in engines:
                stack.enter_context(engine.watched())
            yield


zero = Zero()
