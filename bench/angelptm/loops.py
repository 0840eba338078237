"""Measurements of AngelPTM's rows, in a process that obeys commands as torch_rank.py does.

adam, torch_adam    a step over 64 M parameters, one core
read, write         pages of 4 MiB, eight under way
step_...            a step of a GPT, with all on the device or less
compute             forward and backward pass of that GPT without an engine
rates               bytes and parameters a second that the engine of a step_... measured
slows               seconds of that computation that a second of copies beside it takes
disk_alone          the reads and writes of such a step with the optimizer on disk
largest             parameters of the largest model that trains within two equal caps
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from functools import cache, partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from bench.angelptm.sizes import (
    CAP_BYTES,
    CAP_WIDTH,
    COPIED,
    DEVICE_BYTES,
    HOST_BYTES,
    LAYERS,
    PAGE_BYTES,
    PAGES,
    PARAMETERS,
    QUARTER_BYTES,
    TOKENS,
    UNDER_WAY,
    WIDTH,
)
from bench.arms import ROOT
from harp._cnet import ffi, lib
from harp.angelptm import CapacityError, initialize
from harp.angelptm.adam import Adam, update
from harp.angelptm.page_plan import DISK

if TYPE_CHECKING:
    from collections.abc import Callable


def states() -> list[torch.Tensor]:
    """Masters, moments and gradients."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(PARAMETERS, generator=generator) * 0.01 for _ in range(2)]
    return [drawn[0], torch.zeros(PARAMETERS), torch.zeros(PARAMETERS), drawn[1]]


def adam() -> Callable[[], object]:
    """Our step."""
    kept = states()
    addresses = [tensor.data_ptr() for tensor in kept]
    how = Adam().at(1)

    def step() -> None:
        assert kept
        update(addresses, PARAMETERS, "float32", how)
    return step


def torch_adam() -> Callable[[], object]:
    """Torch's step."""
    masters, _, _, gradients = states()
    parameter = torch.nn.Parameter(masters)
    parameter.grad = gradients
    step: Callable[[], object] = torch.optim.AdamW([parameter], fused=True).step
    return step


class Pages:
    """A file of pages, read or written round and round."""

    def __init__(self, folder: str, *, write: bool) -> None:
        why = ffi.new("char[]", lib.HARP_STORE_WHY_BYTES)
        self._file = lib.harp_page_file_open(folder.encode(), PAGE_BYTES, PAGES,
                                             lib.HARP_PAGE_IO_AUTO, why)
        self._pool = lib.harp_page_pool_open(PAGE_BYTES, UNDER_WAY, why)
        if ffi.NULL in {self._file, self._pool}:
            raise OSError(ffi.string(why).decode())
        self._why = why
        self._memory = []
        for slot in range(UNDER_WAY):
            lib.harp_page_take(self._pool, slot)
            self._memory.append(lib.harp_page_bytes(self._pool, slot))
        self._go_round(lib.harp_page_file_write)
        self.begin = lib.harp_page_file_write if write else lib.harp_page_file_read

    def _go_round(self, begin: Any, pages: int = PAGES) -> None:
        for page, memory in zip(range(pages), cycle(self._memory), strict=False):
            if page >= UNDER_WAY:
                self._wait(page - UNDER_WAY)
            begin(self._file, page, memory)
        for page in range(max(pages - UNDER_WAY, 0), pages):
            self._wait(page)

    def _wait(self, page: int) -> None:
        if lib.harp_page_file_wait(self._file, page, self._why):
            raise OSError(ffi.string(self._why).decode())

    def __call__(self) -> None:
        """Go over all pages once."""
        self._go_round(self.begin)

    def go(self, pages: int) -> None:
        """Go over the first ``pages`` pages."""
        for begun in range(0, pages, PAGES):
            self._go_round(self.begin, min(PAGES, pages - begun))


def example() -> Any:
    """The example's module, which is a script and no part of a package."""
    path = ROOT / "examples" / "angelptm" / "gpt.py"
    spec = importlib.util.spec_from_file_location("gpt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MOVES: dict[str, int] = {}
"""Reads and writes of a step with the optimizer on disk."""
RATES: dict[str, dict[str, float]] = {}
"""Measurements of the engine of each kind of step."""


def batch() -> torch.Tensor:
    """Tokens, with the one that follows."""
    return torch.randint(0, 1024, (TOKENS[0], TOKENS[1] + 1))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the tokens that follow."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def compute() -> Callable[[], object]:
    """Computation of a step."""
    torch.manual_seed(0)
    model, tokens = example().GPT(LAYERS, WIDTH, WIDTH // 64), batch()

    def step() -> None:
        model.zero_grad(set_to_none=False)
        loss_of(model(tokens[:, :-1]), tokens).backward()
    return step


class Copies:
    """Copies of pages from one pool to another, of more than the caches hold, round and round."""

    def __init__(self) -> None:
        why = ffi.new("char[]", lib.HARP_STORE_WHY_BYTES)
        self._pools = [lib.harp_page_pool_open(PAGE_BYTES, COPIED, why) for _ in range(2)]
        for pool in self._pools:
            for slot in range(COPIED):
                lib.harp_page_take(pool, slot)
        self.number = 0

    def __call__(self) -> None:
        """Copy one page; other threads of Python run meanwhile."""
        slot = self.number % COPIED
        lib.harp_page_copy(self._pools[1], slot, self._pools[0], slot)
        self.number += 1


def timed(work: Callable[[], object], least_s: float) -> tuple[float, int]:
    """Do work for some time; gives the time, and how often it was done."""
    begun, times = time.perf_counter(), 0
    while time.perf_counter() - begun < least_s:
        work()
        times += 1
    return time.perf_counter() - begun, times


def slows(least_s: float) -> float:
    """Measure how much of computing's time copies beside it take, by their time alone."""
    step, copy, over = compute(), Copies(), threading.Event()
    for _ in range(COPIED):
        copy()
    step()
    (step_s, steps), (copy_s, copies) = (timed(work, least_s) for work in (step, copy))

    def copy_on() -> None:
        while not over.is_set():
            copy()

    beside = threading.Thread(target=copy_on)
    beside.start()
    begun = copy.number
    both_s, times = timed(step, least_s)
    made = copy.number - begun
    over.set()
    beside.join()
    return (both_s - times * step_s / steps) / (made * copy_s / copies)


def gpt_step(folder: str, name: str, clipping: float = 0.0, **caps: int | str,
             ) -> Callable[[], object]:
    """A step of the example's GPT within these caps; the first ones are behind it."""
    torch.manual_seed(0)
    how: dict[str, Any] = {"optimizer": {"type": "AdamW"}, "gradient_clipping": clipping,
                           "angelptm": {**caps, "device": "cpu"}}
    if caps.get("host_bytes"):
        how["angelptm"]["disk_path"] = folder
    engine, *_ = initialize(model=example().GPT(LAYERS, WIDTH, WIDTH // 64), config=how)
    tokens = batch()

    def step() -> None:
        engine.backward(loss_of(engine(tokens[:, :-1]), tokens))
        engine.step()
    for _ in range(5):
        step()
    if caps.get("host_bytes") and "update" not in caps:
        (made, _), *_ = reversed(engine._steps._plans.values())
        MOVES["reads"] = sum(move.by_disk and move.source[0] == DISK for move in made.moves)
        MOVES["writes"] = sum(move.by_disk and move.target[0] == DISK for move in made.moves)
    page, rates = engine.layout.page_bytes, engine._steps.rates
    RATES[name] = {"copy": rates.copy * page, "disk": rates.disk * page,
                   "update": engine.layout.chunk / engine._steps._job_seconds}
    return step


def disk_alone(folder: str) -> Callable[[], object]:
    """The disk's part of a step that has been made."""
    reads, writes = (Pages(folder, write=write) for write in (False, True))

    def step() -> None:
        reads.go(MOVES["reads"])
        writes.go(MOVES["writes"])
    return step


class Layers(torch.nn.Module):
    """Equal layers, as many as wanted."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False)
                                          for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go through all layers."""
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def trains(layers: int, width: int, cap_bytes: int, device: str) -> bool:
    """Say if ``layers`` layers train within two such caps: one step traced, two by plans."""
    try:
        engine, *_ = initialize(model=Layers(layers, width), config={
            "optimizer": {"type": "AdamW"}, "bf16": {"enabled": True},
            "angelptm": {"device_bytes": cap_bytes, "host_bytes": cap_bytes, "device": device}})
    except CapacityError:
        return False
    x = torch.ones(4, width, dtype=torch.bfloat16, device=engine.device)
    try:
        for _ in range(3):
            engine.backward(engine(x).sum())
            engine.step()
    except CapacityError:
        return False
    finally:
        engine.destroy()
    return True


@cache
def largest(width: int = CAP_WIDTH, cap_bytes: int = CAP_BYTES, device: str = "cpu") -> int:
    """Parameters of the largest model that trains, found by halving."""
    fits, fails = 1, 2 * cap_bytes // (16 * width ** 2) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        right = trains(middle, width, cap_bytes, device)
        fits, fails = (middle, fails) if right else (fits, middle)
    return fits * width ** 2


def makers(folder: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """Names of the measurements."""
    quarter = {"device_bytes": QUARTER_BYTES}
    small = {"device_bytes": DEVICE_BYTES, "host_bytes": HOST_BYTES}
    steps: dict[str, dict[str, Any]] = {
        "step_resident": {}, "step_quarter": quarter, "step_clip": {"clipping": 1.0, **quarter},
        "step_disk": small, "step_late": {"update": "async", **small}}
    return {name: partial(gpt_step, folder, name, **how) for name, how in steps.items()} | {
        "adam": adam, "torch_adam": torch_adam, "read": partial(Pages, folder, write=False),
        "write": partial(Pages, folder, write=True), "disk_alone": partial(disk_alone, folder),
        "compute": compute}


def main() -> None:
    """Answer until stdin ends."""
    known, work = makers(sys.argv[1]), dict[str, "Callable[[], object]"]()
    print("ready", flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if what["do"] in ("largest", "rates", "slows"):
            known_now = ({"parameters": largest()} if what["do"] == "largest" else
                         {"slows": slows(what["seconds"])} if what["do"] == "slows" else
                         RATES[what["of"]])
            print(json.dumps({"seconds": 1.0, "times": 1} | known_now), flush=True)
            continue
        if what["do"].endswith("adam"):
            torch.set_num_threads(1)
        if what["do"] not in work:
            work[what["do"]] = known[what["do"]]()
        work[what["do"]]()
        seconds, times = timed(work[what["do"]], what["seconds"])
        print(json.dumps({"seconds": seconds, "times": times}), flush=True)


if __name__ == "__main__":
    main()
