"""FSDP2 over the backend lightcc: each rank keeps a share of the parameters.

    harp run -np 2 python examples/lightcc/fsdp2.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from generated_digits import digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data.distributed import DistributedSampler

import harp.lightcc.torch  # noqa: F401  (registers the backend)


def main():
    dist.init_process_group("lightcc")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    data = digits(4000, 1)
    sampler = DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, 64, sampler=sampler)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    whole = sum(parameter.numel() for parameter in model.parameters())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    share = sum(parameter.to_local().numel() for parameter in model.parameters())
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
        print(f"{dist.get_world_size()} ranks with {share} of {whole} parameters each: "
              f"accuracy {100 * accuracy:.2f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
