"""A rank that trains a tiny model by other libraries' loops over the backend lightcc.

    harp run -np 2 python -m tests.harp.lightcc.torch.trainers_rank accelerate FOLDER

Or `transformers`, or `lightning`. Each rank writes the parameters that it has in the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import harp.lightcc.torch  # noqa: F401  (registers the backend)

STEPS, BATCH = 4, 8


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(2 * STEPS * BATCH, 6, generator=generator)
    return TensorDataset(given, given.sum(1, keepdim=True))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def by_accelerate(_: Path) -> torch.nn.Module:
    from accelerate import Accelerator

    dist.init_process_group("lightcc")
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == dist.get_world_size() == 2
    own = model()
    net, optimizer, loader = accelerator.prepare(
        own, torch.optim.SGD(own.parameters(), 0.05), DataLoader(data(), BATCH))
    for given, wanted in loader:
        optimizer.zero_grad()
        accelerator.backward((net(given) - wanted).square().mean())
        optimizer.step()
    mean = accelerator.reduce(torch.tensor(float(accelerator.process_index)), "mean")
    assert mean.item() == 0.5
    return accelerator.unwrap_model(net)


def by_transformers(folder: Path) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    dist.init_process_group("lightcc")
    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(32, (16,), generator=generator) for _ in range(2 * STEPS * BATCH)]
    arguments = TrainingArguments(
        str(folder / f"out-{dist.get_rank()}"), max_steps=STEPS, use_cpu=True, report_to=[],
        per_device_train_batch_size=BATCH, save_strategy="no", disable_tqdm=True)
    assert arguments.world_size == 2
    Trainer(net, arguments, train_dataset=[{"input_ids": one, "labels": one} for one in texts],
            ).train()
    return net


def by_lightning(folder: Path) -> torch.nn.Module:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            loss = (self.net(batch[0]) - batch[1]).square().mean()
            self.log("loss", loss, sync_dist=True)
            self.log("count", torch.tensor(number), sync_dist=True)  # an int64, averaged
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.05)

    task = Task()
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="lightcc"),
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder).fit(task, DataLoader(data(), BATCH))
    assert dist.get_backend() == "lightcc"
    return task


LOOPS = {"accelerate": by_accelerate, "transformers": by_transformers, "lightning": by_lightning}


if __name__ == "__main__":
    torch.set_num_threads(1)
    trained = LOOPS[sys.argv[1]](Path(sys.argv[2]))
    values = torch.cat([one.detach().reshape(-1) for one in trained.parameters()])
    assert torch.isfinite(values).all()
    (Path(sys.argv[2]) / f"{dist.get_rank()}.bin").write_bytes(values.numpy().tobytes())
    dist.destroy_process_group()
