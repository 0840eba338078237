"""DiLoCo between peers that come and go: each trains alone, and they meet every 20 steps.

    harp run -np 2 python examples/lightcc/diloco.py
    python examples/lightcc/diloco.py --namespaces

The second, as root, makes two hosts of network namespaces that a link of 100 Mb/s joins, kills the
peer of one of them amid the training, and lets a new one come in its place.
"""

import hashlib
import os
import subprocess
import sys

import torch
import torch.nn.functional as F
from generated_digits import digits
from torch import nn

from harp.lightcc.outer import DiLoCo, Peers
from harp.lightcc.store import VARIABLE, StoreClient, StoreServer

PEERS, EVERY, ROUNDS = 2, 20, 60
KILLED_AFTER = TOLD_EVERY = 10
"""Rounds."""


def main():
    peers = Peers(PEERS, deadline_s=10, timeout_s=120)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    outer = DiLoCo(model, torch.optim.AdamW(model.parameters(), 1e-3), EVERY, peers=peers)
    pictures, labels = digits(4000, 1).tensors
    order = torch.Generator().manual_seed(peers.me)
    while peers.number < ROUNDS:
        own = torch.randint(len(labels) // PEERS, (64,), generator=order)
        some = own * PEERS + peers.me % PEERS  # this peer's share of the data
        outer.optimizer.zero_grad()
        F.cross_entropy(model(pictures[some]), labels[some]).backward()
        before = peers.number
        outer.step()
        if peers.number != before and peers.number % TOLD_EVERY == 0:
            print(f"round {peers.number}: peers {peers.members}", flush=True)
    pictures, labels = digits(1000, 2).tensors
    with torch.no_grad():
        accuracy = (model(pictures).argmax(1) == labels).float().mean()
    state = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    print(f"accuracy {100 * accuracy:.2f} %, parameters {hashlib.sha256(state).hexdigest()[:16]}")
    peers.close()


def on_two_hosts():
    from lab.veth import veth_pair

    with veth_pair() as ends:
        for end in ends:
            end.shape(100e6)
        with ends[0].space.entered():
            server = StoreServer(ends[0].ipv4)
        variables = {**os.environ, VARIABLE: server.variable(ends[0].ipv4),
                     "MASTER_ADDR": ends[0].ipv4, "OMP_NUM_THREADS": "1"}

        def start(end, *words):
            return end.space.start(sys.executable, "-W", "ignore", __file__, *words, text=True,
                                   stdout=subprocess.PIPE, env=variables)
        first, second = (start(end) for end in ends)
        spare = start(ends[1], "--spare")  # has loaded torch by the time that it is needed
        spare.stdout.readline()
        while second.stdout.readline() != f"round {KILLED_AFTER}: peers (0, 1)\n":
            if second.poll() is not None:
                return 1
        second.kill()
        print(f"the second peer was killed after round {KILLED_AFTER}; a new one comes", flush=True)
        server.store.set("spare", b"")
        said = [process.communicate()[0] for process in (first, spare)]
        print(f"the first peer:\n{said[0]}the new one:\n{said[1]}", end="")
        server.shutdown()
        return max(first.returncode, spare.returncode)


if __name__ == "__main__":
    if "--namespaces" in sys.argv:
        sys.exit(on_two_hosts())
    if "--spare" in sys.argv:
        print("ready", flush=True)
        StoreClient(os.environ[VARIABLE], 600).get("spare")
    main()
