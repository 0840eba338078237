"""DistributedDataParallel over the backend lightcc, with top-k gradients if LIGHT_* are set so.

    harp run -np 2 python examples/lightcc/ddp.py
    LIGHT_TOPK_ALLREDUCE=1 LIGHT_TOPK_THRESHOLD=1000 harp run -np 2 python examples/lightcc/ddp.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from generated_digits import digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.lightcc.hook import GradientState, average_gradients


def main():
    dist.init_process_group("lightcc")
    torch.manual_seed(0)
    data = digits(4000, 1)
    sampler = DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, 64, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)))
    model.register_comm_hook(GradientState(), average_gradients)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for pictures, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
    pictures, labels = digits(1000, 2).tensors
    with torch.no_grad():
        accuracy = (model(pictures).argmax(1) == labels).float().mean()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: accuracy {100 * accuracy:.2f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
