"""Another library's table of ids, in that library's environment: commands on stdin, in JSON.

``python peer_loops.py PEER IDS ROWS DIM`` reads batches of ids below ROWS from IDS, a file of
numpy, and makes a table with all ids below ROWS. ``{"do": "find", "seconds": s}`` looks up batch
after batch, and ``{"do": "insert", "seconds": s}`` inserts new ids into an empty table; the answer
has the seconds and the number of ids. The program imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count, cycle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

SPREAD = 0x1E3779B97F4A7C15
"""As `far` of embedding_rows.py: ids use all 64 bits."""


def far(ids: np.ndarray) -> np.ndarray:
    """Spread ids over 64 bits."""
    return ids * np.int64(SPREAD)


class Tfra:
    """TensorFlow Recommenders Addons: a dynamic embedding variable on the CPU."""

    def __init__(self, batches: np.ndarray, rows: int, dim: int) -> None:
        import tensorflow as tf
        import tensorflow_recommenders_addons as tfra
        self._dim = dim
        self._make: Callable[[str], Any] = lambda name: tfra.dynamic_embedding.get_variable(
            name, tf.int64, tf.float32, dim=dim, devices=["/CPU:0"], initializer=0.0)
        self._constant = tf.constant
        self._size = batches.shape[1]
        self._table = self._make("found")
        self._values = tf.constant(np.full((self._size, dim), 0.01, np.float32))
        for ids in self._new(0, rows):
            self._table.upsert(ids, self._values[:len(ids)])
        self._batches = cycle([tf.constant(far(ids)) for ids in batches])
        self._numbers = count()

    def _new(self, begin: int, end: int) -> list[Any]:
        return [self._constant(far(np.arange(at, min(at + self._size, end))))
                for at in range(begin, end, self._size)]

    def find(self) -> int:
        """Look up a batch."""
        ids = next(self._batches)
        self._table.lookup(ids).numpy()
        return len(ids)

    def insert(self) -> int:
        """Insert half a million rows into an empty table; ids are made beforehand."""
        table, ids = self._make(f"inserted{next(self._numbers)}"), self._new(0, 1 << 19)
        begun = time.perf_counter()
        for some in ids:
            table.upsert(some, self._values[:len(some)])
        self.inserting = time.perf_counter() - begun
        return 1 << 19


class Torchrec:
    """TorchRec: managed collision, which remaps ids into a table of fixed size."""

    def __init__(self, batches: np.ndarray, rows: int, dim: int) -> None:
        import torch
        from torchrec.modules.mc_modules import (
            DistanceLFU_EvictionPolicy,
            MCHManagedCollisionModule,
        )
        from torchrec.sparse.jagged_tensor import JaggedTensor
        torch.set_grad_enabled(False)
        self._remap: Any = MCHManagedCollisionModule(
            zch_size=rows, device=torch.device("cpu"), eviction_interval=5,
            eviction_policy=DistanceLFU_EvictionPolicy())
        self._dense = torch.nn.Embedding(rows, dim)
        self._jagged: Any = lambda ids: JaggedTensor(
            values=ids, lengths=torch.ones(len(ids), dtype=torch.int32))
        self._batches = cycle([torch.from_numpy(ids) for ids in batches])

    def find(self) -> int:
        """Remap a batch and look it up."""
        ids = next(self._batches)
        self._dense(self._remap({"f": self._jagged(ids)})["f"].values())
        return len(ids)


PEERS: dict[str, type[Any]] = {"tfra": Tfra, "torchrec": Torchrec}


def main() -> None:
    """Obey commands until stdin ends."""
    name, path, rows, dim = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print as they are imported
    peer = PEERS[name](np.load(path), int(rows), int(dim))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        do, spent, ids = getattr(peer, what["do"]), 0.0, 0
        while spent < what["seconds"]:
            begun = time.perf_counter()
            ids += do()
            spent += (peer.inserting if what["do"] == "insert" else time.perf_counter() - begun)
        print(json.dumps({"seconds": spent, "ids": ids}), file=answers, flush=True)


if __name__ == "__main__":
    main()
