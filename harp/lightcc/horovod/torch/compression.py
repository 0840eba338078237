"""Compression of gradients before they are sent, chosen by the caller."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Interface of a compressor of one's own, which is given as ``compression``."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Give what is sent, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Give a tensor of the first type."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Gradients are sent as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Give what is sent, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:  # noqa: ARG004
        """Give a tensor of the first type."""
        return tensor


class FP16Compressor(Compressor):
    """Floating point numbers are sent as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Give what is sent, and what `decompress` needs."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Give a tensor of the first type."""
        return tensor.to(context)


class Compression:
    """Optional compressors of gradients."""

    none = NoneCompressor
    fp16 = FP16Compressor
