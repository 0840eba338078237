"""Small trainings with planted trouble, each a regression whose noise sets the loss that is best.

attention       scores of 100,000 and more, where float16 ends at 65,504
underflow       a loss of 1e-10 of the usual size, with a learning rate to match
collapse        every third batch has gradients of 1e12, which clipping makes harmless
stall           features on an offset of 8,192, where float16 counts in steps of 4 or 8
spike           the same offset, in one batch of forty
healthy         none of these
"""

from __future__ import annotations

import torch
from torch import nn

from harp.ttf.amp import Controller

TROUBLES = ("attention", "underflow", "collapse", "stall", "spike", "healthy")
STEPS, BATCH, WIDTH, CLIP = 300, 64, 16, 1.0


class Attention(nn.Module):
    """One head whose scores have a large common part, which softmax does not see."""

    def __init__(self, common: float) -> None:
        super().__init__()
        self.common = common
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key = self.query(x), self.key(x)
        if self.common:
            size = self.common ** 0.5
            query = torch.cat([query, torch.full_like(query[..., :1], size)], -1)
            key = torch.cat([key, torch.full_like(key[..., :1], size)], -1)
        scores = query @ key.transpose(1, 2)
        return torch.softmax(scores, -1) @ self.value(x)


class Net(nn.Module):
    """Four tokens of features, attention, and a number."""

    def __init__(self, trouble: str) -> None:
        super().__init__()
        self.lift = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(100_000.0 if trouble == "attention" else 0.0)
        self.hidden, self.out = nn.Linear(WIDTH, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.lift(x) + offset)
        x = (x + self.attention(x)).mean(1)
        return self.out(torch.tanh(self.hidden(x))).squeeze(-1)


class Training:
    """A model, its teacher's batches and its optimizer, from one seed; the same on each device."""

    def __init__(self, trouble: str, seed: int, device: str = "cpu") -> None:
        self.trouble, self.random = trouble, torch.Generator().manual_seed(seed)
        self.device = device
        torch.manual_seed(seed)
        self.model = Net(trouble).to(device)
        self.teacher = torch.randn(WIDTH, generator=self.random) / 2
        self.size = 1e-10 if trouble == "underflow" else 1.0
        # torch adds 1e-6 to a norm before it clips, which would swallow one of 1e-10.
        self.clip = CLIP if self.size == 1.0 else 1e9
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1 / self.size, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.01, STEPS)
        self.step = 0

    def batch(self, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 4, WIDTH, generator=self.random)
        noise = 0.5 * torch.randn(size, generator=self.random)
        return x.to(self.device), (torch.sin(x.mean(1) @ self.teacher) + noise).to(self.device)

    def offset(self) -> torch.Tensor:
        """Give what the features stand on: LayerNorm takes it away again."""
        on = self.trouble == "stall" or (self.trouble == "spike" and self.step % 40 == 39)
        return torch.tensor(8192.0 if on else 0.0, device=self.device)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = self.model(x, self.offset())
        loss = nn.functional.mse_loss(found.float(), y) * self.size
        if self.trouble == "collapse" and self.step % 3 == 2:
            loss = loss + 1e12 * (found.float() - found.float().detach()).mean()
        return loss

    @torch.no_grad()
    def judged(self) -> float:
        """Give the loss of full precision on batches of its own."""
        self.random.manual_seed(99)
        self.step = 0
        return float(self.loss(*self.batch(8192))) / self.size

    def run(self, how: str, steps: int = STEPS) -> float:
        """Train in "full", by "autocast" with a scaler, or by "ours"; return what came of it."""
        advance = {"full": self._full, "autocast": self._autocast, "ours": self._ours}[how]()
        for self.step in range(steps):
            advance(*self.batch())
            self.schedule.step()
        return self.judged()

    def _full(self):
        def advance(x, y):
            self.optimizer.zero_grad()
            self.loss(x, y).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
        return advance

    def _autocast(self):
        scaler = torch.amp.GradScaler(self.device)

        def advance(x, y):
            self.optimizer.zero_grad()
            with torch.autocast(self.device, torch.float16):
                loss = self.loss(x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            scaler.step(self.optimizer)
            scaler.update()
        return advance

    def _ours(self):
        self.controller = Controller(self.model, self.optimizer, clip_norm=self.clip)
        return lambda x, y: self.controller.step(lambda: self.loss(x, y))
