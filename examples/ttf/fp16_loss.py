"""Train in fp16 as long as the loss does not suffer, and plot the decisions.

    python examples/ttf/fp16_loss.py --plot fp16_loss.png

After a quarter of the steps attention's scores go beyond 65,504, where fp16 ends, and from the
middle on features arrive on an offset of 8,192, where fp16 counts in steps of 8. The same training
runs three times: in full precision, under autocast with GradScaler, and under the controller.
"""

import argparse
import logging
import warnings

import matplotlib
import torch
from torch import nn

from harp.ttf.amp import Controller

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WIDTH, BATCH = 16, 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.hidden, self.out = nn.Linear(WIDTH, 64), nn.Linear(64, 1)

    def forward(self, x, offset, common):
        x = self.norm(self.lift(x) + offset)
        x = (x + self.attention(x, common)).mean(1)
        return self.out(torch.tanh(self.hidden(x))).squeeze(-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, common):
        query, key = (nn.functional.pad(part, (0, 1), value=common)
                      for part in (self.query(x), self.key(x)))
        return torch.softmax(query @ key.transpose(1, 2), -1) @ self.value(x)


def train(how, steps, seed):
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model, teacher = Net(), torch.randn(WIDTH, generator=random) / 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=how == "autocast")
    controller = Controller(model, optimizer, torch.float16, clip_norm=1.0)
    losses, half = [], []
    for step in range(steps):
        x = torch.randn(BATCH, 4, WIDTH, generator=random)
        y = torch.sin(x.mean(1) @ teacher) + 0.5 * torch.randn(BATCH, generator=random)
        offset = torch.tensor(8192.0 if step >= steps // 2 else 0.0)
        common = 320.0 if step >= steps // 4 else 0.0  # 320 * 320 = 102,400

        def compute(x=x, y=y, offset=offset, common=common):
            return nn.functional.mse_loss(model(x, offset, common).float(), y)

        if how == "controller":
            report = controller.step(compute)
            losses.append(report.loss)
            half.append(report.half)
            continue
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=how == "autocast"):
            loss = compute()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return losses, half


def smooth(losses, over=20):
    return [sum(losses[max(0, at - over):at + 1]) / len(losses[max(0, at - over):at + 1])
            for at in range(len(losses))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="a file for the plot: .png, .svg or .pdf")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error(f"--steps is {given.steps}; at least 1 is needed")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # the model is tiny
    warnings.filterwarnings("ignore", message="Detected call of")
    runs = {how: train(how, given.steps, given.seed) for how in ("full", "autocast", "controller")}
    last = max(1, given.steps // 10)
    for how, (losses, half) in runs.items():
        share = f", {sum(half) / len(half):.0%} of steps in half precision" if half else ""
        print(f"{how:<11} loss {sum(losses[-last:]) / last:.4f}{share}")
    if given.plot:
        figure, axes = plt.subplots(figsize=(8, 4))
        for how, (losses, _) in runs.items():
            axes.plot(smooth(losses), label=how, linestyle="--" if how == "controller" else "-")
        half = runs["controller"][1]
        axes.fill_between(range(len(half)), 0, 1, where=[not step for step in half], alpha=0.15,
                          transform=axes.get_xaxis_transform(), label="controller: full precision")
        axes.set(xlabel="step", ylabel="loss", ylim=(0, 1.5))
        axes.legend()
        figure.savefig(given.plot)
        print(f"plot: {given.plot}")


if __name__ == "__main__":
    main()
