"""A replica of one rank under torchft's Manager, over ProcessGroupLightCC.

    python -m tests.harp.lightcc.torch.torchft_replica REPLICA LIGHTHOUSE STEPS

Prints a line after each step that is committed: the step, the replicas that took part, and the
loss on data that all replicas have, as bits. It goes on until ``STEPS`` are committed.
"""

import struct
import sys
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer

from harp.lightcc.torchft import ProcessGroupLightCC

PATIENCE = timedelta(seconds=60)


def main(replica, lighthouse, steps):
    torch.set_num_threads(1)
    torch.manual_seed(int(replica))  # whoever comes later takes the others' parameters
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inner = torch.optim.Adam(model.parameters(), 0.01)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupLightCC(timeout=timedelta(seconds=10)), min_replica_size=1,
        load_state_dict=load, use_async_quorum=False, timeout=PATIENCE, quorum_timeout=PATIENCE,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        replica_id=f"replica{replica}", store_addr="127.0.0.1", store_port=store.port, rank=0,
        world_size=1, lighthouse_addr=lighthouse, hostname="127.0.0.1")
    averaged, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    common = torch.randn(32, 8, generator=torch.Generator().manual_seed(7))
    while manager.current_step() < steps:
        data = torch.randn(16, 8, generator=torch.Generator().manual_seed(
            1000 * int(replica) + manager.current_step()))
        optimizer.zero_grad()
        (averaged(data) - data.sum(1, keepdim=True)).square().mean().backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() != before:
            with torch.no_grad():
                loss = (model(common) - common.sum(1, keepdim=True)).square().mean()
            print(manager.current_step(), manager.num_participants(),
                  struct.pack("f", float(loss)).hex(), flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
