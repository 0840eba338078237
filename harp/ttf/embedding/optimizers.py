"""Optimizers of dynamic tables, applied in C to the rows of a batch only.

`SGD`, `Adagrad`, `Adam` and `FTRL` are settings that a module is made with, for they decide what a
record holds; `harp.ttf.embedding.table_optimizer` makes the steps.

A key's gradients are summed first, then the step is made once, as torch does with a coalesced
sparse gradient. SGD, Adagrad and Adam follow torch.optim.SGD, Adagrad and SparseAdam. Confidence:
held against these by tests; FTRL and row-wise Adagrad against the formulas of their papers.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch

from harp._cnet import lib


@dataclass(frozen=True)
class Settings(ABC):
    """Base of `SGD`, `Adagrad`, `Adam` and `FTRL`."""

    states: ClassVar[int] = 0
    """Floats of a row's state for each float of the row."""
    initial = 0.0
    """The value that states begin with."""
    least: ClassVar[dict[str, float]] = {"lr": 0}

    def __post_init__(self) -> None:
        """Refuse numbers below their bounds, and what is no number. ValueError."""
        for name, least in self.least.items():
            value: Any = getattr(self, name)
            is_number = isinstance(value, Real | torch.Tensor)
            if not is_number or not value >= least:
                raise ValueError(f"{type(self).__name__}: {name}={value!r}: a number of at least "
                                 f"{least:g}")

    def floats(self, dim: int) -> int:
        """Give the size of a row's state."""
        return self.states * dim

    @abstractmethod
    def step(self, number: int) -> dict[str, float]:
        """Give the fields of the C struct of a step, counted from 1."""


@dataclass(frozen=True)
class SGD(Settings):
    """Plain descent: no state."""

    lr: float = 1e-2

    def step(self, _: int) -> dict[str, float]:
        """Give a rate alone."""
        return {"optimizer": lib.HARP_EMBEDDING_SGD, "rate": self.lr}


@dataclass(frozen=True)
class Adagrad(Settings):
    """Duchi, Hazan, Singer, JMLR 2011; row-wise as in arXiv 2104.05158, section 4.1.4.

    Row-wise, one float of a row holds the sum of its gradients' mean squares.
    """

    lr: float = 1e-2
    eps: float = 1e-10
    initial: float = 0.0
    rowwise: bool = False
    least: ClassVar[dict[str, float]] = {"lr": 0, "eps": 0, "initial": 0}

    def floats(self, dim: int) -> int:
        """Give the number of sums."""
        return 1 if self.rowwise else dim

    def step(self, _: int) -> dict[str, float]:
        """Give all settings but the first sum."""
        kind = lib.HARP_EMBEDDING_ROWWISE_ADAGRAD if self.rowwise else lib.HARP_EMBEDDING_ADAGRAD
        return {"optimizer": kind, "rate": self.lr, "epsilon": self.eps}


@dataclass(frozen=True)
class Adam(Settings):
    """Kingma, Ba, arXiv 1412.6980, lazily as torch.optim.SparseAdam: absent rows rest."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    states = 2
    least: ClassVar[dict[str, float]] = {"lr": 0, "eps": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.betas, tuple | list) and len(self.betas) == 2
                and all(isinstance(beta, Real | torch.Tensor) and 0 <= beta < 1
                        for beta in self.betas)):
            raise ValueError(f"Adam: betas={self.betas!r}: two numbers from 0 to below 1")

    def step(self, number: int) -> dict[str, float]:
        """Corrections are worked out in float64, as torch does."""
        beta1, beta2 = self.betas
        rate = self.lr * math.sqrt(1 - beta2 ** number) / (1 - beta1 ** number)
        return {"optimizer": lib.HARP_EMBEDDING_ADAM, "rate": rate, "epsilon": self.eps,
                "beta1_rest": 1 - beta1, "beta2_rest": 1 - beta2}


@dataclass(frozen=True)
class FTRL(Settings):
    """FTRL-Proximal: McMahan and others, "Ad click prediction", KDD 2013, algorithm 1.

    ``lr``, ``beta``, ``l1`` and ``l2`` are its alpha, beta and lambdas; a rate of 0 would be
    divided by.
    """

    lr: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    states = 2
    least: ClassVar[dict[str, float]] = {"lr": sys.float_info.min, "beta": 0, "l1": 0, "l2": 0}

    def step(self, _: int) -> dict[str, float]:
        """Give all settings."""
        return {"optimizer": lib.HARP_EMBEDDING_FTRL, "rate": self.lr, "beta": self.beta,
                "l1": self.l1, "l2": self.l2}
