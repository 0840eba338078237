"""Messages of SparseLoCo: the largest values of each chunk, in few bits, and their places.

`cnet/lightcc/chunk_topk.h` says what a message looks like. The vector is filled up with zeros to
whole chunks, so that all messages have the same size. Vectors on a GPU are copied to the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harp.lightcc.outer_policy import OuterPolicy


def take(error: torch.Tensor, policy: OuterPolicy) -> torch.Tensor:
    """Move the largest values of ``error``, a flat float32 vector, into a message of uint8.

    The message's values are subtracted from ``error``: sent + kept is what was there.
    """
    here, rule = _on_host(error), _rule(policy)
    message = torch.empty(lib.harp_chunk_bytes(len(error), rule), dtype=torch.uint8)
    scratch = np.empty(lib.harp_chunk_scratch_words(rule), np.uint32)
    lib.harp_chunk_take(_floats(here), len(here), rule, _bytes(message),
                        ffi.from_buffer("uint32_t[]", scratch))
    if here is not error:
        error.copy_(here)
    return message.to(error.device)


def add(message: torch.Tensor, total: torch.Tensor, policy: OuterPolicy,
        weights: torch.Tensor | None = None, weight: float = 1.0) -> None:
    """Add what a message says, times ``weight``, to ``total``, a flat float32 vector on the host.

    ``weights``, as long, gets the weight at the message's places.
    """
    lib.harp_chunk_add(_floats(total), ffi.NULL if weights is None else _floats(weights),
                       len(total), _rule(policy), _bytes(message.cpu()), weight)


def mean(messages: Iterable[torch.Tensor], weights: Iterable[float], elements: int,
         policy: OuterPolicy) -> torch.Tensor:
    """Give the weighted mean of ``elements`` values, each over the messages that have it.

    So do the method's authors (github.com/one-covenant/SparseLoCo: a mean that leaves out those
    that did not send an element), where the paper's formula divides by the number of all.
    """
    total, sent = torch.zeros(elements), torch.zeros(elements)
    for message, weight in zip(messages, weights, strict=True):
        add(message, total, policy, sent, weight)
    sent[sent == 0] = 1
    return total.div_(sent)


def _on_host(vector: torch.Tensor) -> torch.Tensor:
    """Give the vector itself where C can work on it, else a copy."""
    return vector if vector.is_cpu and vector.is_contiguous() else vector.cpu().contiguous()


def _rule(policy: OuterPolicy) -> Any:
    return ffi.new("struct harp_chunk_rule *", {"chunk": policy.chunk, "keep": policy.keep,
                                                "bits": policy.bits})


def _floats(vector: torch.Tensor) -> Any:
    return ffi.from_buffer("float[]", vector.detach().numpy())


def _bytes(message: torch.Tensor) -> Any:
    return ffi.from_buffer("uint8_t[]", message.numpy())
