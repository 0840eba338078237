"""A replica of DiLoCo under torchft's Manager.

    python -m bench.lightcc.torchft_rank BACKEND BITS REPLICA OWN_ADDRESS LIGHTHOUSE PORT

Commands on stdin are ``{"do": "meet", "buckets": BOOL}``, a line of JSON each; both replicas get
the same ones. Each is a round without inner steps: a quorum, the average of the parameters'
differences, the decision to commit, the outer step. The answer has the seconds that it took. The
first replica holds the lighthouse; both are given its address and port.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from bench.lightcc.small_models import Shape, Text
from bench.lightcc.text_model import SHAPE
from harp.lightcc.torchft import ProcessGroupLightCC

PATIENCE = timedelta(seconds=120)
REPLICAS = 2


def process_group(backend: str, bits: int) -> Any:
    """Make the group over which the Manager averages."""
    if backend == "gloo":
        return ProcessGroupGloo(timeout=PATIENCE)
    return ProcessGroupLightCC(timeout=PATIENCE, bits=bits)


def main(backend: str, bits: str, replica: str, own: str, lighthouse: str, port: str) -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    kept = [LighthouseServer(bind=f"{own}:{port}", min_replicas=REPLICAS)
            for _ in range(replica == "0")]
    model = Text(Shape(**SHAPE))
    inner = torch.optim.SGD(model.parameters(), 0.0)
    outer = torch.optim.SGD(model.parameters(), 0.7, momentum=0.9, nesterov=True)
    store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=process_group(backend, int(bits)), min_replica_size=REPLICAS, init_sync=False,
        load_state_dict=model.load_state_dict, state_dict=model.state_dict, use_async_quorum=False,
        timeout=PATIENCE, quorum_timeout=PATIENCE, replica_id=f"replica{replica}", rank=0,
        world_size=1, store_addr=own, store_port=store.port, hostname=own,
        lighthouse_addr=f"http://{lighthouse}:{port}")
    diloco = DiLoCo(manager, [model], inner, outer, sync_every=1)
    print("ready", flush=True)
    with diloco:
        for line in sys.stdin:
            # One Manager takes one DiLoCo, and DiLoCo has no call for it.
            diloco._fragments[0].use_bucketization = json.loads(line)["buckets"]
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            before, begun = manager.current_step(), time.perf_counter()
            inner.step()
            seconds = time.perf_counter() - begun
            if manager.current_step() == before or manager.num_participants() != REPLICAS:
                raise RuntimeError(f"the round by {backend} was not committed by both replicas")
            print(json.dumps({"seconds": seconds}), flush=True)
    sys.stdout.flush()
    del kept
    os._exit(0)  # the other replica ends just so


if __name__ == "__main__":
    main(*sys.argv[1:])
