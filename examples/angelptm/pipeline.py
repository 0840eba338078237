"""Train a GPT as a pipeline that is cut anywhere between its operators.

    harp run -np 2 python examples/angelptm/pipeline.py
    harp run -np 2 python examples/angelptm/pipeline.py --between layers      # as others cut
    harp run -np 2 python examples/angelptm/pipeline.py --schedule interleaved --stages 4

The shape is that of GPT-2 small (12 layers of width 768) with a smaller vocabulary; the first
stages hold the embedding, the last one the head, with weights tied to it.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt import GPT

import harp.angelptm
import harp.lightcc.torch  # registers the backend


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in (("layers", 12), ("width", 768), ("words", 8192), ("length", 64),
                        ("rows", 1), ("microbatches", 4), ("steps", 5), ("stages", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--schedule", default="1f1b", help="gpipe, 1f1b or interleaved")
    parser.add_argument("--between", default="operators", help="operators, layers or modules")
    given = parser.parse_args()
    if given.width < 64 or given.width % 64:
        parser.error(f"--width is {given.width}: a multiple of 64 is possible, for heads of 64")
    if "RANK" not in os.environ:
        parser.error("there are no ranks: harp run -np 2 python examples/angelptm/pipeline.py")
    torch.set_num_threads(1)
    dist.init_process_group("lightcc")
    torch.manual_seed(0)  # every rank makes the same model and data
    model = GPT(given.layers, given.width, given.width // 64, given.words, given.length)
    rows = given.rows * given.microbatches
    tokens = torch.randint(0, given.words, (rows, given.length + 1))
    try:
        pipe = harp.angelptm.pipeline(
            model, (tokens[:given.rows, :-1],), given.stages or dist.get_world_size(),
            loss=loss_of, target=tokens[:given.rows, 1:], between=given.between)
        rank = pipe.start(given.schedule, given.microbatches)
    except (harp.angelptm.CutError, harp.angelptm.CapacityError) as error:
        if dist.get_rank() == 0:
            print(f"pipeline.py: {error}", file=sys.stderr)
        sys.exit(2)
    if dist.get_rank() == 0:
        print(pipe.describe(), flush=True)
    optimizer = torch.optim.AdamW(rank.parameters(), 3e-4)
    for step in range(given.steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = rank.step(tokens[:, :-1], target=tokens[:, 1:])
        optimizer.step()
        if loss is not None:
            print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - begun:.2f} s",
                  flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
