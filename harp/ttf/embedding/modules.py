"""Modules that stand where nn.Embedding and nn.EmbeddingBag stood, with any int64 as an id.

    embedding = DynamicEmbedding(32)                              # ids of any shape -> (..., 32)
    bag = DynamicEmbeddingBag(32, mode="mean", optimizer=Adam(lr=1e-3))
    many = EmbeddingCollection({"user": bag, "item": DynamicEmbeddingBag(16)})
    rows = many({"user": (ids, offsets), "item": ids_of_shape_batch_by_length})

An id that was never trained has its first row, which depends on the seed and the id only; a row is
inserted with its first gradient. Rows are no parameters: `TableOptimizer` trains them, checkpoints
of `harp.ttf.embedding.checkpoint` keep them, and a `state_dict` has neither.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import nn

from harp.nearest import did_you_mean
from harp.ttf.embedding.operators import FeatureSet, check_offsets, look_up, plain
from harp.ttf.embedding.optimizers import SGD, Settings
from harp.ttf.embedding.table import DIRTY, HEAD, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

Ids: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
"""Ids; with offsets; with offsets and weights."""


def whole_ids(ids: torch.Tensor, name: str = "ids") -> torch.Tensor:
    """Give ids as a flat int64 tensor on the host. TypeError if they are no integers."""
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"{name} are a {type(ids).__name__}: ids are a tensor, of torch.int64")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name} are of {ids.dtype}: ids are integers, of torch.int64")
    if ids.dtype is torch.int64 and ids.is_cpu and ids.is_contiguous():
        return ids.reshape(-1)
    return ids.reshape(-1).to("cpu", torch.int64).contiguous()


class Looking(nn.Module):
    """Base of modules with tables: an anchor, and the number of their feature set.

    Rows are float32 in tables and until they are reduced; results have the anchor's dtype, which
    follows `Module.double()`, `half()` and the like, as a weight's does.
    """

    anchor: nn.Parameter
    tables: list[Table]
    optimizer: Settings

    @property
    def uncopied(self) -> list[Any]:
        """Modules that a copy of a model for trials shares with it, under `operators.rehearsal`."""
        return [self.features, *self.tables, self.features.exchange]

    def _look_up(self, keys: list[torch.Tensor], offsets: list[torch.Tensor],
                 weights: list[torch.Tensor], bags: int) -> torch.Tensor:
        if plain(keys):
            return look_up(self.anchor, self.features, keys, offsets, weights, bags)
        rows: torch.Tensor = torch.ops.harp.embed(self.anchor, keys, offsets, weights,
                                                  self._number, bags, self._width)[0]
        return rows

    def _set_features(self, features: FeatureSet) -> None:
        self.features = features
        self._number, self._width = features.number, features.width


class DynamicEmbedding(Looking):
    """A row for each id. As nn.Embedding, but that the number of ids is open."""

    modes: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, dim: int, *, optimizer: Settings | None = None, seed: int = 0,
                 bound: float = 0.01, padding_idx: int | None = None, admit: int = 1,
                 expect: int = 1 << 20, shards: int | None = None, exchange: Any = None,
                 memory_bytes: int | None = None, folder: str | None = None) -> None:
        """Make an empty table of rows of ``dim``; see `Table` for the settings.

        ``bound``: first rows are uniform in [-bound, bound). ``exchange``: the table is divided
        over its ranks.
        """
        super().__init__()
        self.optimizer = SGD() if optimizer is None else optimizer
        if not isinstance(self.optimizer, Settings):
            raise ValueError(f"optimizer={optimizer!r}: SGD(), Adagrad(), Adam() or FTRL() of "
                             "harp.ttf.embedding")
        self.table = Table(dim, self.optimizer, seed=seed, bound=bound, admit=admit, expect=expect,
                           shards=shards, memory_bytes=memory_bytes, folder=folder)
        self.tables, self.padding_idx, self.exchange = [self.table], padding_idx, exchange
        self.anchor = nn.Parameter(torch.zeros(1))
        self._no = torch.empty(0, dtype=torch.int64)
        self._set_features(FeatureSet(self.tables, [self.mode == "mean"], [padding_idx], exchange))

    mode = "none"

    @property
    def embedding_dim(self) -> int:
        """The width of a row, under torch's name."""
        return self.table.dim

    def extra_repr(self) -> str:
        """Describe the module as torch prints it."""
        return f"{self.table.dim}, mode={self.mode!r}, rows={self.table.rows}"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Give a row for each id."""
        keys = whole_ids(ids)
        rows = self._rows(keys)
        return rows.reshape(*ids.shape, self.table.dim).to(ids.device, self.anchor.dtype)

    def prefetch(self, *args: Any, **kwargs: Any) -> None:
        """Have rows on their way ahead of `forward`, whose arguments these are.

        Ids go to their owners, or rows come from disk, beside what is computed meanwhile.
        """
        self.features.prefetch([whole_ids(args[0] if args else kwargs["ids"])])

    def _rows(self, keys: torch.Tensor) -> torch.Tensor:
        no = self._no
        return self._look_up([keys], [no], [no.float()], keys.numel())

    def remove(self, ids: torch.Tensor) -> int:
        """Remove ids, and count those that were there. Other rows keep their bits."""
        return self.table.remove(whole_ids(ids).numpy())

    def evict(self, *, idle: int | None = None, age: int | None = None, below: int | None = None,
              norm: float | None = None, most: int | None = None) -> int:
        """Remove rows by any of these rules, and count them. Times are those of `Table.clock`.

        ``idle``: not used for longer; ``age``: inserted longer ago; ``below``: used less often;
        ``norm``: shorter; ``most``: the rows that may stay, those that were used last.
        """
        for name, value in (("idle", idle), ("age", age), ("below", below), ("norm", norm),
                            ("most", most)):
            kind = Real if name == "norm" else int
            least = 1 if name == "most" else 0
            if value is not None and not (isinstance(value, kind) and value >= least):
                raise ValueError(f"{name}={value!r}: {'a number' if kind is Real else 'an integer'}"
                                 f" of at least {least}")
        now, going, staying = self.table.clock, [], []
        for heads, values in self.table.read(values=norm is not None):
            bad = np.zeros(len(heads), dtype=bool)
            for limit, field in ((idle, "used"), (age, "born")):
                if limit is not None:
                    bad |= now - heads[field].astype(np.int64) > limit
            if below is not None:
                bad |= heads["count"] < below
            if norm is not None:
                bad |= np.linalg.norm(values[:, :self.table.dim], axis=1) < norm
            going.append(heads["key"][bad].copy())
            staying.append(heads[~bad].copy())
        left = np.concatenate([np.empty(0, HEAD), *staying])
        if most is not None and len(left) > most:
            # Ties are broken by use and key, so that every run removes the same.
            order = np.lexsort((left["key"], left["count"], left["used"]))
            going.append(left["key"][order[:len(left) - most]])
        return self.table.remove(np.concatenate(going)) if going else 0

    def changed(self) -> np.ndarray:
        """Give the ids of rows that changed since the last save."""
        return np.concatenate([np.empty(0, np.int64), *(
            heads["key"][heads["changed"] >= DIRTY] for heads, _ in self.table.read(values=False))])


class DynamicEmbeddingBag(DynamicEmbedding):
    """The sum, mean or maximum of the rows of a bag of ids: as nn.EmbeddingBag."""

    modes = ("sum", "mean", "max")

    def __init__(self, dim: int, *, mode: str = "mean", include_last_offset: bool = False,
                 **settings: Any) -> None:
        """Make an empty table; settings are those of `DynamicEmbedding`."""
        if mode not in self.modes:
            raise ValueError(f"mode={mode!r}: {', '.join(self.modes)}"
                             f"{did_you_mean(mode, self.modes)}")
        self.mode, self.include_last_offset = mode, include_last_offset
        super().__init__(dim, **settings)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None,
                per_sample_weights: torch.Tensor | None = None) -> torch.Tensor:
        """Give a row for each bag: a row of two-dimensional ids, or what begins at an offset."""
        keys, places, weights, bags = self.bags(ids, offsets, per_sample_weights)
        rows = (self._reduced(keys, places, per_sample_weights, bags)
                if self._reduces(per_sample_weights)
                else self._look_up([keys], [places], [weights], bags))
        return rows.to(ids.device, self.anchor.dtype)

    def bags(self, ids: torch.Tensor, offsets: torch.Tensor | None,
             weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """Check what a caller gave. Returns flat ids, offsets, weights and the number of bags."""
        no = self._no
        if weights is not None and (self.mode != "sum" or weights.shape != ids.shape):
            raise ValueError(f"per_sample_weights of shape {tuple(weights.shape)} in mode "
                             f"{self.mode!r}: one for each id, in mode 'sum'")
        flat = no.float() if weights is None else weights.reshape(-1).float().contiguous()
        if offsets is None:
            if ids.dim() != 2:
                raise ValueError(f"ids of {ids.dim()} dimensions: two, or one with offsets")
            return whole_ids(ids), no, flat, ids.shape[0]
        if ids.dim() != 1 or offsets.dim() != 1:
            raise ValueError("ids and offsets have one dimension each")
        places = whole_ids(offsets, "offsets")
        keys = whole_ids(ids)
        if self.include_last_offset and not places.numel():
            raise ValueError("offsets are empty: with include_last_offset there is at least one")
        if (self.include_last_offset or self._reduces(weights)) and plain([places, keys]):
            check_offsets([places], [keys])
        if self.include_last_offset:
            keys, flat = keys[:int(places[-1])], flat[:int(places[-1])]
            places = places[:-1].contiguous()
        return keys, places, flat, places.numel()

    def _reduces(self, weights: torch.Tensor | None) -> bool:
        """Say whether torch's operators reduce rows: a maximum, or weights that are learned."""
        return self.mode == "max" or (weights is not None and weights.requires_grad)

    def _reduced(self, keys: torch.Tensor, places: torch.Tensor, weights: torch.Tensor | None,
                 bags: int) -> torch.Tensor:
        """Reduce rows by operators of torch: the maximum, and weights that are learned."""
        rows, least = self._rows(keys), float("-inf")
        if weights is not None:
            rows = rows * weights.reshape(-1, 1)[:len(rows)]
        if not bags or not keys.numel():
            return rows.new_zeros(bags, self.table.dim) + rows.sum()  # of nothing: 0
        if self.mode == "max" and self.padding_idx is not None:
            rows = rows.masked_fill((keys == self.padding_idx).unsqueeze(1), least)
        if places.numel():
            # Not by torch.segment_reduce: where rows are equally large, its gradient of a maximum
            # is too large if it is negative (torch 2.13).
            ends = torch.cat([places[1:], places.new_tensor([keys.numel()])])
            of_bag = torch.repeat_interleave(ends - places, output_size=keys.numel())
            first = 0.0 if self.mode == "sum" else least
            found = rows.new_full((bags, self.table.dim), first).scatter_reduce(
                0, of_bag.unsqueeze(1).expand_as(rows), rows,
                "sum" if self.mode == "sum" else "amax")
        else:
            shaped = rows.reshape(bags, keys.numel() // bags, self.table.dim)
            found = shaped.sum(1) if self.mode == "sum" else shaped.max(1).values
        return found if self.mode == "sum" else found.masked_fill(found == least, 0.0)


class EmbeddingCollection(Looking):
    """All features of a model, looked up in one call."""

    def __init__(self, features: Mapping[str, DynamicEmbeddingBag] | None = None) -> None:
        """Take bags by the names of features."""
        super().__init__()
        self.bags, self.tables = nn.ModuleDict(), []
        self.anchor = nn.Parameter(torch.zeros(1))
        for name, bag in (features or {}).items():
            self.add(name, bag)

    def add(self, name: str, bag: DynamicEmbeddingBag) -> None:
        """Add a feature; others are as before. ValueError if it does not fit."""
        first = next(iter(self.bags.values()), bag)
        if name in self.bags:
            raise ValueError(f"feature {name!r} is there already")
        if not name or "." in name or hasattr(self.bags, name):
            raise ValueError(f"feature {name!r}: torch's modules allow no such name; "
                             f"{(name.replace('.', '_') or 'feature') + '_'!r} is possible")
        if bag.mode == "max":
            raise ValueError(f"feature {name!r}: mode 'max' is not for collections")
        if bag.optimizer != first.optimizer or bag.exchange is not first.exchange:
            raise ValueError(f"feature {name!r} has {bag.optimizer}: features of a collection "
                             f"share optimizer and exchange, here {first.optimizer}")
        bag.anchor = self.anchor
        self.bags[name] = bag
        self._gather()

    def drop(self, name: str) -> DynamicEmbeddingBag:
        """Take a feature out, and forget gradients that wait for it; others are as before."""
        if name not in self.bags:
            raise ValueError(f"there is no feature {name!r}{did_you_mean(name, self.bags)}")
        bag: DynamicEmbeddingBag = self.bags.pop(name)
        bag.anchor = nn.Parameter(torch.zeros(1))
        bag.table.drop()
        self._gather()
        return bag

    def _gather(self) -> None:
        bags = list(self.bags.values())
        self.tables = [bag.table for bag in bags]
        if bags:
            self.optimizer = bags[0].optimizer
            self._set_features(FeatureSet(self.tables, [bag.mode == "mean" for bag in bags],
                                          [bag.padding_idx for bag in bags], bags[0].exchange))

    def forward(self, features: Mapping[str, Ids]) -> dict[str, torch.Tensor]:
        """Give a row for each bag of each feature."""
        rows = self._rows_of_plain_ids(features)
        if rows is None:
            keys, places, weights, counts = self._calls(features)
            if not keys:
                return {}
            # A set would bind a compiled call to a number of bags.
            if any(bags != counts[0] for bags in counts):
                raise ValueError(f"features have {min(counts)} to {max(counts)} bags: equally many")
            rows = self._look_up(keys, places, weights, counts[0])
        parts = rows.to(self.anchor.dtype).split(self.features.dims, dim=1)
        return dict(zip(self.bags, parts, strict=True))

    def _rows_of_plain_ids(self, features: Mapping[str, Ids]) -> torch.Tensor | None:
        """Look up ids that need no change, which is quick. None if some do, or something traces.

        They are int64 on the host, in equally many bags of equally many.
        """
        keys: list[Any] = [features.get(name) for name in self.bags]
        if not plain(keys) or not keys or len(features) != len(keys) or self.features.exchange:
            return None
        bags = len(keys[0])
        for ids in keys:
            if (ids.dtype is not torch.int64 or ids.dim() != 2 or ids.size(0) != bags
                    or not ids.is_contiguous() or not ids.is_cpu):
                return None
        return look_up(self.anchor, self.features, keys, [], [], bags) if bags else None

    def prefetch(self, features: Mapping[str, Ids]) -> None:
        """Have rows on their way ahead of `forward`, whose argument this is."""
        if keys := self._calls(features)[0]:
            self.features.prefetch(keys)

    def _calls(self, features: Mapping[str, Ids]) -> tuple[list[Any], ...]:
        """Check what a caller gave. Returns ids, offsets, weights and numbers of bags."""
        if features.keys() != self.bags.keys():
            raise ValueError(f"features {', '.join(features) or 'none'}: there are "
                             f"{', '.join(self.bags) or 'none'}")
        calls = [bag.bags(*given) if isinstance(given := features[name], tuple) and len(given) > 2
                 else bag.bags(*given, None) if isinstance(given, tuple)
                 else bag.bags(given, None, None) for name, bag in self.bags.items()]
        return tuple(map(list, zip(*calls, strict=True))) or ([], [], [], [])
