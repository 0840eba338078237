"""A rank that sends tokens to experts and adds up what comes back: by HARP, and over gloo.

Experts give back what they get, so that all of the time is the way there and back, with what
sorts tokens and adds them up. A command is ``{"do": NAME, "zipf": BOOL, "times": N}``. Over gloo
each rank has a row for each expert of a token, or for each rank that has any of them; counts are
exchanged first, as HARP does.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from bench.angelptm.experts import CHUNKS, EXPERTS, TOKENS, TOP_K, WIDTH, choices, layer_plans
from harp.angelptm.moe import MoE

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.collectives.alltoallv import Way


class Routed(MoE):
    """The layer, with a router that gives experts which were drawn before."""

    routed: tuple[torch.Tensor, torch.Tensor]

    def _route(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        del tokens  # the same ones each time
        return self.routed


class Rank:
    """The tokens of a rank, and the algorithms that send them."""

    def __init__(self) -> None:
        dist.init_process_group("lightcc")
        self._gloo: Any = dist.new_group(backend="gloo")
        self._layers: dict[str, Routed] = {}
        self._tokens = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(
            dist.get_rank()))
        self._weights = torch.full((TOKENS, TOP_K), 1 / TOP_K)

    def harp(self, chosen: torch.Tensor, way: Way | None = None) -> Callable[[], torch.Tensor]:
        """Our layer, once per host where that is chosen."""
        name = str(way)
        if name not in self._layers:
            self._layers[name] = Routed(WIDTH, EXPERTS, TOP_K, lambda _: nn.Identity(),
                                        way=way, chunks=CHUNKS)
        layer = self._layers[name]
        layer.routed = self._weights, chosen
        return lambda: layer(self._tokens)

    def _over_gloo(self, goal: torch.Tensor, token: torch.Tensor, weight: torch.Tensor,
                   ) -> torch.Tensor:
        """Send rows to ranks in order, have them back, and add them up with their weights."""
        ranks = dist.get_world_size()
        order = goal.argsort(stable=True)
        sends = torch.bincount(goal, minlength=ranks)
        expects = torch.empty_like(sends)
        dist.all_to_all_single(expects, sends, group=self._gloo)
        rows = self._tokens.index_select(0, token[order])
        out = rows.new_empty(int(expects.sum()), WIDTH)
        splits = expects.tolist(), sends.tolist()
        dist.all_to_all_single(out, rows, *splits, group=self._gloo)
        back = torch.empty_like(rows)
        dist.all_to_all_single(back, out, *splits[::-1], group=self._gloo)
        return torch.zeros_like(self._tokens).index_add_(0, token[order],
                                                         back * weight[order, None])

    def gloo_expert(self, chosen: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A row for each expert, as GShard and DeepSpeed-MoE send them."""
        token = torch.arange(TOKENS).repeat_interleave(TOP_K)
        goal = chosen.flatten() // (EXPERTS // dist.get_world_size())
        return lambda: self._over_gloo(goal, token, self._weights.flatten())

    def gloo_rank(self, chosen: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A row for each rank, which adds up its experts' results."""
        ranks = dist.get_world_size()
        wanted = torch.zeros(TOKENS, ranks).scatter_add_(
            1, chosen // (EXPERTS // ranks), self._weights)
        token, goal = wanted.nonzero(as_tuple=True)
        return lambda: self._over_gloo(goal, token, wanted[token, goal])

    def plans(self, chosen: torch.Tensor) -> Callable[[], torch.Tensor]:
        """The layer's plans alone, one after the other, on memory that nobody looks at."""
        del chosen
        group, rank = dist.distributed_c10d._get_default_group(), dist.get_rank()
        runs = []
        for plan in layer_plans(zipf=False):
            assert plan.blocks is not None
            ends = plan.blocks.sent_bytes[rank], plan.blocks.came_bytes[rank]
            runs.append((plan, *(torch.zeros(int(nbytes) // 4) for nbytes in (
                ends[::-1] if plan.collective == "combine" else ends))))

        def work() -> torch.Tensor:
            for run in runs:
                group.run_blocks(*run).result()
            return self._tokens
        return work

    def check(self, found: torch.Tensor) -> None:
        """A token comes back unchanged by every algorithm."""
        torch.testing.assert_close(found, self._tokens, rtol=1e-4, atol=1e-4)


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    rank = Rank()
    print("ready", flush=True)
    with torch.no_grad():
        for line in sys.stdin:
            what = json.loads(line)
            chosen = torch.from_numpy(choices(dist.get_rank(), zipf=what["zipf"]))
            more = {"way": what["way"]} if "way" in what else {}
            work = getattr(rank, what["do"])(chosen, **more)
            rank.check(work())
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(what["times"]):
                work()
            dist.barrier()
            print(json.dumps({"seconds": time.perf_counter() - begun, "times": what["times"]}),
                  flush=True)


if __name__ == "__main__":
    main()
