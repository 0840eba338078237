"""The memory of torch's tensors as bytes for `harp.lightcc.group.Group`.

A collective ends in another thread than it began in, when the caller may have made the result part
of a graph: `writing` keeps what is written there out of it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

NO_BYTES: Bytes = np.empty(0, np.uint8)


def nothing() -> None:
    """Do nothing: the result is where it belongs."""


def bytes_of(tensor: torch.Tensor) -> tuple[Bytes, Callable[[], None]]:
    """Return a tensor's memory, or a copy, and a function to call when the result is in it.

    The bytes keep the memory.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device}: the backend lightcc takes tensors on the "
                         "CPU and on CUDA GPUs")
    if tensor.is_sparse:
        raise ValueError("the backend lightcc has only allreduce for sparse tensors")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ValueError(f"a tensor of layout {layout}: the backend lightcc takes strided "
                         "tensors, and for allreduce sparse ones (COO)")
    whole = tensor.detach()
    if lies_flat(whole):
        return flat_bytes(whole), nothing
    whole = whole.resolve_conj().resolve_neg().contiguous()
    return flat_bytes(whole), functools.partial(write, tensor, whole)


def lies_flat(tensor: torch.Tensor) -> bool:
    """Whether all of it lies in the host's memory as it is seen, one element after the other."""
    return (tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested
            and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def flat_bytes(whole: torch.Tensor) -> Bytes:
    """Give the memory of a contiguous tensor, which is as it is seen."""
    assert not whole.is_conj()
    assert not whole.is_neg()
    if not whole.numel():
        return NO_BYTES
    if is_traceable_wrapper_subclass(whole):
        raise ValueError(f"a {type(whole).__name__} holds other tensors: the backend lightcc takes "
                         "these, as to_local() of a DTensor gives them")
    return np.asarray(_Memory(whole.detach()))


class _Memory:
    """The memory of a contiguous tensor, for numpy, which keeps this object and so the tensor.

    ``tensor.numpy()`` would forbid its owner to resize it for ever, as FSDP does.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {"data": (tensor.data_ptr(), False), "typestr": "|u1",
                                    "shape": (tensor.nbytes,), "version": 3}


def all_bytes(tensors: Iterable[torch.Tensor]) -> tuple[list[Bytes], Callable[[], None]]:
    """Return the memory of each, and a function to call when the results are there."""
    pairs = [bytes_of(tensor) for tensor in tensors]
    return [data for data, _ in pairs], all_of([finish for _, finish in pairs])


def all_of(finishes: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that calls all of them."""
    wanted = [one for one in finishes if one is not nothing]

    def finish() -> None:
        for one in wanted:
            one()
    return finish if wanted else nothing


def take_part(output: torch.Tensor, elements: int, whole: torch.Tensor,
              start: int) -> Callable[[], None]:
    """Return a function that copies ``elements`` of ``whole``, contiguous, to ``output``."""
    if (output.numel(), output.dtype) != (elements, whole.dtype):
        raise ValueError(f"reduce_scatter: {elements} {dtype_of(whole)} do not fit "
                         f"{output.numel()} {dtype_of(output)}")
    own, finish = bytes_of(output)
    begin = start * output.element_size()
    part = flat_bytes(whole)[begin:begin + len(own)]

    def take() -> None:
        own[:] = part
        finish()
    return take


@contextlib.contextmanager
def writing(tensor: torch.Tensor) -> Iterator[None]:
    """Let a tensor of the caller's be written to in any thread.

    It may be part of a graph, or have been made in inference mode, which both are known to the
    caller's thread alone: what autograd recorded here would take the place of the collective.
    """
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        yield


def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a value into a tensor of the caller's, in any thread."""
    with writing(tensor):
        tensor.copy_(value)


def dtype_of(tensor: torch.Tensor) -> str:
    """Name the type of the elements (`harp.lightcc.elements`)."""
    return _dtype_name(tensor.dtype)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
