"""Tables divided over ranks: ids go to their owners, rows come back, and so do gradients.

    exchange = Exchange()                              # of the default group, any backend
    bag = DynamicEmbeddingBag(32, exchange=exchange)   # on all ranks alike
    bag.prefetch(next_ids)                             # ids are sent while this batch is computed

An id's owner follows from its hash. A look-up sends each distinct id once, so counts of gradients
(`admit`, `below`) are of ranks' batches, and not of the places of an id in them. A batch is four
exchanges: counts, ids, rows, and gradients. Prefetching moves the first two beside compute, and
reads of rows from disk; values are read at the look-up itself, so results have the same bits.

Gradients are averaged over ranks, as DDP averages those of the dense part. Each message of
gradients says whether its sender's are finite, so all ranks skip a step alike at no extra message.

Every rank makes the same calls in the same order, as with all collectives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import embedding_bag

from harp.ttf.embedding import table as tables_in_c
from harp.ttf.embedding.table import BAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.ttf.embedding.operators import FeatureSet

MOST_TICKETS = 64
"""Look-ups that wait for their gradients; an older one's ids are sent again."""


@dataclass
class _Route:
    """The ranks that the ids of a batch go to, and the ids that come from each rank."""

    keys: list[torch.Tensor]
    places: list[np.ndarray]
    """Of each feature: the number of each id among the distinct ones."""
    chosen: list[list[np.ndarray]]
    """By owner and feature: the distinct ids that it owns."""
    distinct: list[np.ndarray]
    sent: np.ndarray
    """Ids by owner and feature; `received` by sender and feature."""
    received: np.ndarray
    ids: torch.Tensor
    """Received ids, by sender and feature."""
    works: list[Any]
    waiting: threading.Lock = field(default_factory=threading.Lock)

    def wait(self) -> None:
        """Wait for the ids, from any thread, and let go of the calls.

        gloo ends the process at its exit if a call is still open when its group ends.
        """
        with self.waiting:
            while self.works:
                self.works[-1].wait()  # which stays if it fails, for the next caller that waits
                self.works.pop()


class Exchange:
    """The ranks that a table is divided over."""

    def __init__(self, group: Any = None) -> None:
        """Take a process group of torch. RuntimeError if torch has none yet."""
        if not dist.is_initialized():
            raise RuntimeError("Exchange: call torch.distributed.init_process_group() first")
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._by_gloo = dist.get_backend(group) == "gloo"
        self._tickets: OrderedDict[int, _Route] = OrderedDict()
        self._ahead: dict[int, _Route] = {}
        self._numbers = count()

    def agree(self, text: str) -> str:
        """Give the first rank's text to all."""
        texts = [text]
        dist.broadcast_object_list(texts, group=self.group, group_src=0)
        return texts[0]

    def first_failure(self, why: str | None) -> tuple[int, str] | None:
        """Give the first rank that something failed on, and its reason, given this rank's."""
        reasons: list[str | None] = [None] * self.ranks
        dist.all_gather_object(reasons, why, group=self.group)
        return next(((rank, one) for rank, one in enumerate(reasons) if one is not None), None)

    def prefetch(self, known: FeatureSet, keys: Sequence[torch.Tensor]) -> None:
        """Send the ids of the look-up that comes next, and do not wait for them.

        Where this rank's tables are larger than memory, rows of ids that come are read from disk.
        """
        if known.number in self._ahead:
            raise RuntimeError("prefetch: the last one's look-up has not come yet")
        route = self._ahead[known.number] = self._route(known, keys)

        def came() -> np.ndarray:
            route.wait()
            return _segments(known, route, torch.empty(0))
        known.read_ahead(came)

    def look_up(self, known: FeatureSet, keys: Sequence[torch.Tensor],
                offsets: Sequence[torch.Tensor], weights: Sequence[torch.Tensor],
                rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the rows of bags, and give a ticket for their gradients."""
        route = self._ahead.pop(known.number, None) or self._route(known, keys)
        route.wait()
        if not all(map(torch.equal, route.keys, keys)):
            raise ValueError("prefetch had other ids than the look-up behind it")
        dims = np.array(known.dims)
        answer = torch.empty(int((route.received * dims).sum()))
        tables_in_c.look_up(_segments(known, route, answer))
        got = self._send(answer, route.received @ dims, route.sent @ dims)
        if len(rows):
            torch.cat([_bags(known, route, feature, offsets, weights, len(rows), dense)
                       for feature, dense in enumerate(_dense(known, route, got))], 1, out=rows)
        number = next(self._numbers)
        self._tickets[number] = route
        if len(self._tickets) > MOST_TICKETS:
            self._tickets.popitem(last=False)
        return rows, torch.tensor([number])

    def add(self, known: FeatureSet, keys: Sequence[torch.Tensor], offsets: Sequence[torch.Tensor],
            weights: Sequence[torch.Tensor], gradient: torch.Tensor, ticket: torch.Tensor) -> bool:
        """Send gradients to the owners of ids, and say whether all ranks' are finite."""
        route = self._tickets.pop(int(ticket), None) or self._route(known, keys)
        route.wait()
        gradient = gradient / self.ranks
        dims = np.array(known.dims)
        dense = [torch.zeros(len(found), dim, requires_grad=True)
                 for found, dim in zip(route.distinct, known.dims, strict=True)]
        if len(gradient):
            with torch.enable_grad():
                bags = [_bags(known, route, feature, offsets, weights, len(gradient), each)
                        for feature, each in enumerate(dense)]
            dense = list(torch.autograd.grad(bags, dense, gradient.split(known.dims, 1)))
        fine = torch.isfinite(gradient).all().float().reshape(1)
        parts = [part for owner in range(self.ranks)
                 for part in (*(dense[feature][torch.from_numpy(chosen)].reshape(-1)
                                for feature, chosen in enumerate(route.chosen[owner])), fine)]
        got = self._send(torch.cat(parts), route.sent @ dims + 1, route.received @ dims + 1)
        # The last float of each sender says whether its gradients are finite.
        ends = np.cumsum(route.received @ dims + 1) - 1
        fine_everywhere = bool(got[torch.from_numpy(ends)].min() > 0)
        if fine_everywhere:
            tables_in_c.add(_segments(known, route, got, gap=1))
        return fine_everywhere

    def _send(self, values: torch.Tensor, sent: np.ndarray, received: np.ndarray) -> torch.Tensor:
        got = values.new_empty(int(received.sum()))
        for work in self._all_to_all(got, values, received, sent):
            work.wait()
        return got

    def _all_to_all(self, got: torch.Tensor, values: torch.Tensor, received: np.ndarray,
                    sent: np.ndarray) -> list[Any]:
        """Begin to send each rank its part, and give the works to wait for.

        By gloo a rank asks its peers for their parts before it sends its own. Its all-to-all sends
        first what a peer has asked for already, and asks behind that on the same connection, so
        one direction of a line stood still while the other was used.
        """
        if not self._by_gloo:
            return [dist.all_to_all_single(got, values, received.tolist(), sent.tolist(),
                                           group=self.group, async_op=True)]
        into, out = got.split(received.tolist()), values.split(sent.tolist())
        into[self.rank].copy_(out[self.rank])
        others = [(self.rank + step) % self.ranks for step in range(1, self.ranks)]
        return [begin(part[rank], group=self.group, **{name: rank})
                for begin, part, name in ((dist.irecv, into, "group_src"),
                                          (dist.isend, out, "group_dst"))
                for rank in others if part[rank].numel()]

    def _route(self, known: FeatureSet, keys: Sequence[torch.Tensor]) -> _Route:
        """Number ids, and send each distinct one to its owner."""
        places, distinct, chosen = [], [], []
        for ids, padding in zip(keys, known.paddings, strict=True):
            found, place = tables_in_c.distinct(ids.numpy())
            owner = tables_in_c.owners(found, self.ranks)
            if padding is not None:
                owner[found == padding] = self.ranks  # nobody's
            distinct.append(found)
            places.append(place)
            chosen.append([np.flatnonzero(owner == rank) for rank in range(self.ranks)])
        by_owner = [list(parts) for parts in zip(*chosen, strict=True)]
        sent = np.array([[len(part) for part in parts] for parts in by_owner], dtype=np.int64)
        out = torch.from_numpy(sent.reshape(-1).copy())
        got = torch.empty_like(out)
        dist.all_to_all_single(got, out, group=self.group)
        received = got.numpy().reshape(sent.shape)
        leaving = torch.from_numpy(np.concatenate(
            [distinct[feature][part] for parts in by_owner for feature, part in enumerate(parts)]))
        ids = torch.empty(int(received.sum()), dtype=torch.int64)
        works = self._all_to_all(ids, leaving, received.sum(1), sent.sum(1))
        return _Route(list(keys), places, by_owner, distinct, sent, received, ids, works)


def _segments(known: FeatureSet, route: _Route, values: torch.Tensor, gap: int = 0) -> np.ndarray:
    """Give the ids that came, in the order of calls and by sender, as bags of one id."""
    dims = np.array(known.dims, dtype=np.uint64)
    counts = route.received.astype(np.uint64)
    floats = counts * dims
    made = np.zeros(counts.T.shape, dtype=BAGS)
    made["table"] = np.array([[table.address] for table in known.tables], dtype=np.uint64)
    made["stride"] = dims[:, None]
    made["count"] = made["bags"] = counts.T
    # Ids and rows lie by sender and feature; `gap` floats are behind each sender's rows.
    made["keys"] = (np.uint64(route.ids.data_ptr()) + 8 * _begins(counts)).T
    gaps = np.arange(len(counts), dtype=np.uint64)[:, None] * np.uint64(gap)
    made["rows"] = (np.uint64(values.data_ptr()) + 4 * (_begins(floats) + gaps)).T
    return made[known.order].reshape(-1)


def _begins(sizes: np.ndarray) -> np.ndarray:
    """Give where each of some parts begins, which lie one behind another."""
    begins: np.ndarray = np.cumsum(sizes, dtype=np.uint64).reshape(sizes.shape) - sizes
    return begins


def _dense(known: FeatureSet, route: _Route, got: torch.Tensor) -> list[torch.Tensor]:
    """Put the rows that came to the places of the distinct ids."""
    made = [torch.zeros(len(found), dim)
            for found, dim in zip(route.distinct, known.dims, strict=True)]
    at = 0
    for parts in route.chosen:
        for dense, part in zip(made, parts, strict=True):
            n = len(part) * dense.shape[1]
            dense[torch.from_numpy(part)] = got[at:at + n].reshape(len(part), dense.shape[1])
            at += n
    return made


def _bags(known: FeatureSet, route: _Route, feature: int, offsets: Sequence[torch.Tensor],
          weights: Sequence[torch.Tensor], bags: int, dense: torch.Tensor) -> torch.Tensor:
    """Give the bags of a feature, out of the rows of its distinct ids."""
    places, starts, weight = (torch.from_numpy(route.places[feature].astype(np.int64)),
                              offsets[feature], weights[feature])
    if not starts.numel():
        starts = torch.arange(bags) * (len(places) // bags)
    padding = np.flatnonzero(route.distinct[feature] == known.paddings[feature])
    return embedding_bag(places, dense, starts, mode="mean" if known.means[feature] else "sum",
                         per_sample_weights=weight if weight.numel() else None,
                         padding_idx=int(padding[0]) if len(padding) else None)
