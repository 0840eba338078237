"""Training that synchronises every so often: between islands that a slow network joins.

    islands = make_islands()                      # a group within each host, and one between hosts
    model = DistributedDataParallel(net, process_group=islands.within)
    outer = DiLoCo(model, optimizer, every=30, islands=islands)
    for batch in batches:
        optimizer.zero_grad()
        loss(model, batch).backward()
        outer.step()                              # optimizer.step(), each 30th with an outer step

An island is what trains in step: ranks of a host under DDP or FSDP2, or one rank. Groups may have
any backend. `harp.lightcc.outer_policy` says what is sent and when. Islands of one rank may come
and go (`harp.lightcc.outer.elastic_peers`).
"""

from harp.lightcc.outer.elastic_peers import Peers
from harp.lightcc.outer.islands import Islands, make_islands
from harp.lightcc.outer.methods import DiLoCo, LocalSGD, Outer, SparseLoCo, StreamingDiLoCo

__all__ = ["DiLoCo", "Islands", "LocalSGD", "Outer", "Peers", "SparseLoCo", "StreamingDiLoCo",
           "make_islands"]
