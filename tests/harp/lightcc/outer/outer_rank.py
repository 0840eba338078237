"""Checks of harp.lightcc.outer at four spawned ranks, against numpy.

    python -m tests.harp.lightcc.outer.outer_rank [NAME ...]

Each function is a check and runs at every rank. Prints a line of JSON: by check, its error or
"right".
"""

import json
import sys
import tempfile
import traceback
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.lightcc.outer import (
    DiLoCo,
    Islands,
    LocalSGD,
    SparseLoCo,
    StreamingDiLoCo,
    make_islands,
    quantised_mean,
)
from harp.lightcc.outer import islands as islands_module
from harp.lightcc.outer_policy import split
from tests.harp.lightcc.outer import reference
from tests.harp.lightcc.outer.quadratic import ELEMENTS, Quadratic
from tests.support.leave import leave

RANKS = 4
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def train(model, outer, island, steps, first=1):
    for step in range(first, first + steps):
        outer.optimizer.zero_grad()
        data = [torch.tensor(one, dtype=torch.float32)
                for one in reference.draw(island, step, ELEMENTS)]
        model(*data).backward()
        outer.step()


def flat(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).numpy()


def of_all(value, group=None):
    found = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


def check_equal_at_all(model):
    assert len({flat.tobytes() for flat in of_all(flat(model))}) == 1


def run(make, steps, rank, rate=reference.INNER):
    model = Quadratic()
    outer = make(model, torch.optim.SGD(model.parameters(), rate))
    train(model, outer, rank, steps)
    return model, outer


# ---- Laws


def every_step_of_rate_one_is_plain_averaging_of_gradients(rank, _):
    model, _ = run(lambda model, inner: LocalSGD(model, inner, 1), 6, rank, rate=1.0)
    wanted = reference.data_parallel(RANKS, 6, ELEMENTS, 1.0)
    np.testing.assert_allclose(flat(model), wanted, rtol=1e-4, atol=1e-4)
    check_equal_at_all(model)


def local_sgd_is_the_mean_of_parameters(rank, _):
    model, _ = run(lambda model, inner: LocalSGD(model, inner, 4), 8, rank)
    wanted = reference.local_sgd(RANKS, 8, ELEMENTS, 4)
    np.testing.assert_allclose(flat(model), wanted[rank], **CLOSE)
    check_equal_at_all(model)


def between_rounds_islands_train_alone(rank, _):
    model, _ = run(lambda model, inner: LocalSGD(model, inner, 4), 6, rank)
    np.testing.assert_allclose(flat(model), reference.local_sgd(RANKS, 6, ELEMENTS, 4)[rank],
                               **CLOSE)
    assert len({one.tobytes() for one in of_all(flat(model))}) == RANKS


def diloco_is_nesterovs_step_on_the_mean_difference(rank, _):
    model, _ = run(lambda model, inner: DiLoCo(model, inner, 3), 15, rank)
    wanted = reference.diloco(RANKS, 15, ELEMENTS, 3, 0.7, 0.9)
    np.testing.assert_allclose(flat(model), wanted[rank], **CLOSE)
    check_equal_at_all(model)


def few_bits_lose_nothing(rank, _):
    """Over rounds all that was given has been sent, or is kept: means * ranks + errors."""
    for bits, exchange in product((8, 4, 2), ("direct", "ring")):
        random = np.random.default_rng([bits, rank])
        error, given, sent = torch.zeros(1000), np.zeros(1000), np.zeros(1000)
        for _ in range(5):
            vector = random.normal(size=1000).astype(np.float32)
            given += vector
            work, finish = quantised_mean.begin(torch.from_numpy(vector), error, bits, None,
                                          exchange)
            work.wait()
            mean = finish().numpy()
            sent += RANKS * mean
            assert len({one.tobytes() for one in of_all(mean)}) == 1
            assert len({tuple(np.unique(one)) for one in np.split(mean[:768], 3)}) > 1
            if bits == 2:  # a scale for each 256 values, and the levels -1, 0 and 1
                assert all(len(np.unique(one)) == 3 for one in np.split(mean[:768], 3))
        assert np.abs(error.numpy()).max() > 0.01 / 2 ** bits
        np.testing.assert_allclose(sent + sum(of_all(error.numpy().astype(float))),
                                   sum(of_all(given)), atol=1e-4)


def few_bits_over_gloo_are_those_over_lightcc(rank, _):
    gloo = dist.new_group(backend="gloo")
    for bits, elements in ((8, 5), (4, 1000), (2, 1024), (2, 4097)):
        found = []
        for group in (None, gloo):
            random = np.random.default_rng([bits, rank])
            error = torch.zeros(elements)
            for _ in range(3):
                vector = torch.from_numpy(random.normal(size=elements).astype(np.float32))
                work, finish = quantised_mean.begin(vector, error, bits, group)
                work.wait()
                found.append(finish().clone())
            found.append(error)
        assert all(map(torch.equal, found[:4], found[4:]))
    with pytest.raises(ValueError, match="over gloo give exchange='direct'"):
        quantised_mean.begin(torch.zeros(4), torch.zeros(4), 8, gloo, "ring")


def few_bits_are_near_and_the_same_at_all(rank, _):
    """An outer step of rate 1 is the mean of the islands, to half a level of each rounding."""
    # A ring rounds sums of two and three islands as well, which are worth 2 / 4 and 3 / 4 of it.
    for bits, (exchange, levels) in product((8, 4, 2), {"direct": 1, "ring": 2}.items()):
        model, _ = run(lambda model, inner, bits=bits, exchange=exchange: DiLoCo(
            model, inner, 3, lr=1.0, momentum=0.0, bits=bits, exchange=exchange), 3, rank)
        exact = reference.local_sgd(RANKS, 3, ELEMENTS, 3)[rank]
        moved = np.abs(reference.start(ELEMENTS) - reference.local_sgd(RANKS, 3, ELEMENTS, 99))
        level = moved.max() / (2 ** (bits - 1) - 1)
        assert np.abs(flat(model) - exact).max() <= levels * level + 1e-6
        assert np.abs(flat(model) - exact).max() > 1e-5  # something was rounded
        check_equal_at_all(model)


def diloco_of_rate_one_without_momentum_is_local_sgd(rank, _):
    model, _ = run(lambda model, inner: DiLoCo(model, inner, 3, lr=1.0, momentum=0.0), 9, rank)
    other, _ = run(lambda model, inner: LocalSGD(model, inner, 3), 9, rank)
    assert flat(model).tobytes() == flat(other).tobytes()


def streaming_mixes_each_fragment_in_after_its_delay(rank, _):
    model, outer = run(lambda model, inner: StreamingDiLoCo(
        model, inner, 6, fragments=3, delay=2, lr=0.6, momentum=0.8), 23, rank)
    sizes = [int(np.prod(shape)) for shape in reference.SHAPES.values()]
    ends = np.cumsum([0, *(sum(sizes[i] for i in part) for part in split(sizes, 3))])
    parts = [slice(*ends[i:i + 2].tolist()) for i in range(3)]
    wanted = reference.streaming(RANKS, 23, parts, 6, 2, 0.5, 0.6, 0.8)
    np.testing.assert_allclose(flat(model), wanted[rank], **CLOSE)
    anchors = {name: one.tolist() for name, one in outer.state_dict()["anchor"].items()}
    assert anchors == of_all(anchors)[0]


def streaming_of_one_fragment_without_delay_is_diloco(rank, _):
    model, _ = run(lambda model, inner: StreamingDiLoCo(model, inner, 4, fragments=1, delay=0),
                   12, rank)
    other, _ = run(lambda model, inner: DiLoCo(model, inner, 4), 12, rank)
    assert flat(model).tobytes() == flat(other).tobytes()


def sparseloco_of_everything_is_diloco_without_momentum(rank, _):
    model, _ = run(lambda model, inner: SparseLoCo(model, inner, 3, keep=16, chunk=16, bits=32,
                                                   lr=0.8), 9, rank)
    wanted = reference.diloco(RANKS, 9, ELEMENTS, 3, 0.8, 0.0)
    np.testing.assert_allclose(flat(model), wanted[rank], **CLOSE)
    check_equal_at_all(model)


def sparseloco_sends_the_largest_and_keeps_the_rest(rank, _):
    model, outer = run(lambda model, inner: SparseLoCo(model, inner, 3, keep=3, chunk=16, bits=32,
                                                       decay=0.9), 12, rank)
    wanted, kept = reference.sparseloco(RANKS, 12, ELEMENTS, 3, 1.0, 0.9, 3, 16)
    np.testing.assert_allclose(flat(model), wanted[rank], **CLOSE)
    error = torch.cat([one.reshape(-1) for one in outer.state_dict()["error"].values()])
    np.testing.assert_allclose(error.numpy(), np.mean(kept, axis=0), **CLOSE)
    check_equal_at_all(model)


def few_bits_leave_all_ranks_equal_and_near(rank, _):
    model, _ = run(lambda model, inner: SparseLoCo(model, inner, 2, keep=8, chunk=16, bits=2),
                   120, rank)
    check_equal_at_all(model)
    best, _ = run(lambda model, inner: LocalSGD(model, inner, 2), 120, rank)
    came, gone = (np.linalg.norm(one - flat(best))
                  for one in (flat(model), reference.start(ELEMENTS)))
    assert came < 0.2 * gone, (came, gone)


def islands_with_other_settings_are_named_at_all_ranks(rank, _):
    """Messages of these have one size, and mean other things."""
    odd = rank == 2
    with pytest.raises(ValueError, match=r"^islands do not agree: keep is 64 at ranks 0, 1 and 3, "
                                         r"56 at rank 2; bits is 2 at ranks 0, 1 and 3, 4 at rank "
                                         r"2; lr is 1.0 at ranks 0, 1 and 3, 0.5 at rank 2$"):
        run(lambda model, inner: SparseLoCo(model, inner, 2, keep=56 if odd else 64,
                                            bits=4 if odd else 2, lr=0.5 if odd else 1.0), 2, rank)


# ---- Islands


def islands_of_two_under_ddp_are_two_replicas(rank, _):
    islands = make_islands(2, within="gloo")
    model = DistributedDataParallel(Quadratic(), process_group=islands.within)
    outer = DiLoCo(model, torch.optim.SGD(model.parameters(), reference.INNER), 3, islands)
    train(model, outer, rank // 2, 9)
    wanted = reference.diloco(2, 9, ELEMENTS, 3, 0.7, 0.9)
    np.testing.assert_allclose(flat(model), wanted[rank // 2], **CLOSE)
    check_equal_at_all(model)


def islands_are_the_ranks_of_a_host_in_whatever_order(rank, _):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(islands_module, "memory_place", lambda: f"host {rank % 2}")
        made = make_islands()
        assert dist.get_process_group_ranks(made.within) == [rank % 2, rank % 2 + 2]
        assert dist.get_process_group_ranks(made.between) == [rank // 2 * 2, rank // 2 * 2 + 1]
        patch.setattr(islands_module, "memory_place", lambda: f"host {rank == 3}")
        with pytest.raises(ValueError, match=r"^islands have as many ranks each: on one host are "
                                             r"ranks 0, 1 and 2, on another one rank 3$"):
            make_islands()


def islands_of_two_divide_what_is_sent(rank, _):
    """Each rank of an island keeps the outer state of a half."""
    islands = make_islands(2)
    model = Quadratic()
    outer = SparseLoCo(model, torch.optim.SGD(model.parameters(), reference.INNER), 3, islands,
                       keep=16, chunk=16, bits=32)
    train(model, outer, rank // 2, 6)
    assert sum(len(one.anchor) for one in outer._fragments) == -(-ELEMENTS // 2)
    wanted = reference.diloco(2, 6, ELEMENTS, 3, 1.0, 0.0)
    np.testing.assert_allclose(flat(model), wanted[rank // 2], **CLOSE)
    check_equal_at_all(model)


def _net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def fsdp2_within_islands_is_ddp_within_islands(rank, _):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    sharded, whole = _net(), _net()
    fully_shard(sharded, mesh=mesh["within"])
    islands = make_islands(2)
    made = [DiLoCo(sharded, torch.optim.AdamW(sharded.parameters(), 0.01), 2,
                   Islands(mesh["between"].get_group())),
            DiLoCo(whole, torch.optim.AdamW(whole.parameters(), 0.01), 2, islands)]
    parallel = DistributedDataParallel(whole, process_group=islands.within)
    for step in range(6):
        batch = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))
        for model, outer in zip((sharded, parallel), made, strict=True):
            outer.optimizer.zero_grad()
            model(batch).square().mean().backward()
            outer.step()
    states = [outer.state_dict() for outer in made]
    for (name, one), other in zip(sharded.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other)
        for what in ("anchor", "momentum"):
            torch.testing.assert_close(states[0][what][name], states[1][what][name])
    made[0].load_state_dict(states[1])
    again = made[0].state_dict()
    assert all(torch.equal(again["momentum"][name], states[1]["momentum"][name])
               for name in again["momentum"])


# ---- Checkpoints


def a_checkpoint_of_four_goes_on_with_two(rank, folder):
    """Four ranks train, two load; they go on as numpy does from the same state."""
    made = {"diloco": DiLoCo, "few bits": partial(DiLoCo, bits=4),
            "sparseloco": partial(SparseLoCo, keep=3, chunk=16, bits=32)}
    pair = dist.new_group([0, 1])
    for name, make in made.items():
        model, outer = run(lambda *args, make=make: make(*args, 3), 6, rank)
        state = outer.state_dict()
        assert all(torch.equal(one, of_all(one)[0]) for one in state["anchor"].values())
        if rank == 0:
            torch.save({"model": model.state_dict(), "outer": state}, folder / name)
        dist.barrier()
        if rank < 2:
            kept, fresh = torch.load(folder / name), Quadratic()
            inner = torch.optim.SGD(fresh.parameters(), reference.INNER)
            outer = make(fresh, inner, 3, Islands(pair))
            fresh.load_state_dict(kept["model"])
            outer.load_state_dict(kept["outer"])
            again = outer.state_dict()
            for what in ("anchor", "momentum", "error"):
                for key, one in kept["outer"][what].items():
                    assert torch.equal(again[what][key], one), (what, key)
            assert outer.steps == 6
            _check_goes_on(fresh, outer, kept["outer"], rank)


def _check_goes_on(model, outer, state, rank):
    anchor, momentum = (np.concatenate([one.numpy().reshape(-1).astype(float)
                                        for one in state[what].values()] or [np.zeros(ELEMENTS)])
                        for what in ("anchor", "momentum"))
    own = [anchor] * 2
    train(model, outer, rank, 3, first=7)
    if outer.policy.keeps_error:
        return
    for step in (7, 8, 9):
        own = [reference.inner_step(one, i, step) for i, one in enumerate(own)]
    mean = np.mean([anchor - one for one in own], axis=0)
    momentum = 0.9 * momentum + mean
    np.testing.assert_allclose(flat(model), anchor - 0.7 * (mean + 0.9 * momentum), **CLOSE)


def a_checkpoint_has_plain_names_whatever_wraps_the_model(rank, _):
    """Islands of two ranks under DDP, of one without, and of two under FSDP2 take one state."""
    islands = make_islands(2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    whole, sharded = _net(), _net()
    fully_shard(sharded, mesh=mesh["within"])
    models = [(DistributedDataParallel(whole, process_group=islands.within), islands),
              (_net(), None), (torch.compile(_net(), backend="eager"), None),
              (sharded, Islands(mesh["between"].get_group()))]
    made = [DiLoCo(model, torch.optim.SGD(model.parameters(), 0.1), 2, where)
            for model, where in models]
    whole[0].weight.grad = torch.full_like(whole[0].weight, 1.0 + rank // 2)
    for _ in range(2):
        made[0].step()
    state = made[0].state_dict()
    assert state["momentum"]["0.weight"].any()
    for outer in made[1:]:
        outer.load_state_dict(state)
        again = outer.state_dict()
        assert list(again["anchor"]) == list(state["anchor"])
        assert torch.equal(again["momentum"]["0.weight"], state["momentum"]["0.weight"])


def parameters_with_new_memory_take_part(rank, _):
    """`Module.to` and others give a parameter another tensor than it was made with."""
    model, outer = run(lambda model, inner: DiLoCo(model, inner, 3), 3, rank)
    for one in model.parameters():
        one.data = one.data.clone()
    train(model, outer, rank, 3, first=4)
    check_equal_at_all(model)


def a_parameter_that_is_unfrozen_is_refused_and_not_left_to_each_island(rank, _):
    model = _net()
    model[0].requires_grad_(False)
    outer = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), 2)
    model[0].requires_grad_(True)
    outer.step()
    with pytest.raises(ValueError, match=r"parameter 0.weight is trained, and was not when"):
        outer.step()


def a_checkpoint_while_a_fragment_travels_has_it(rank, _):
    model, outer = run(lambda model, inner: StreamingDiLoCo(model, inner, 4, fragments=2, delay=1),
                       6, rank)  # the first fragment is sent after step 6, and due after step 7
    before = flat(model)
    anchor = outer.state_dict()["anchor"]["first"]
    assert len({one.numpy().tobytes() for one in of_all(anchor)}) == 1
    assert (flat(model) != before).any()
    train(model, outer, rank, 3, first=7)


def a_checkpoint_in_32_bits_goes_on_in_few(rank, _):
    _, whole = run(lambda model, inner: DiLoCo(model, inner, 3), 3, rank)
    _, few = run(lambda model, inner: DiLoCo(model, inner, 3, bits=2), 3, rank)
    assert torch.cat([one.reshape(-1) for one in few.state_dict()["error"].values()]).any()
    few.load_state_dict(whole.state_dict())
    assert not torch.cat([one.reshape(-1) for one in few.state_dict()["error"].values()]).any()


def a_checkpoint_of_another_model_is_refused(rank, _):
    _, outer = run(lambda model, inner: DiLoCo(model, inner, 3), 3, rank)
    state = outer.state_dict()
    state["anchor"]["third"] = state["anchor"]["third"].T
    state["anchor"]["first"] = state["anchor"]["first"] + 1
    before, said = outer.state_dict(), ""
    try:
        outer.load_state_dict(state)
    except ValueError as error:
        said = str(error)
    assert said == ("the checkpoint's anchor of parameter third has shape (4, 3), the model's "
                    "(3, 4)")
    after = outer.state_dict()
    assert all(torch.equal(after["anchor"][name], one) for name, one in before["anchor"].items())
    with pytest.raises(ValueError, match="the checkpoint has no momentum: allowed is"):
        outer.load_state_dict({"steps": 3, "anchor": state["anchor"]})


CHECKS = {name: check for name, check in list(globals().items())
          if callable(check) and getattr(check, "__code__", None)
          and check.__code__.co_varnames[:2] in {("rank", "_"), ("rank", "folder")}}


def outcome(name, rank, folder):
    try:
        CHECKS[name](rank, folder)
    except Exception:
        return traceback.format_exc()
    return "right"


def main(rank, names, folder):
    torch.set_num_threads(1)
    dist.init_process_group("lightcc", init_method=f"file://{folder}/store", rank=rank,
                            world_size=RANKS, timeout=timedelta(seconds=60))
    found = {}
    for name in names:
        found[name] = outcome(name, rank, Path(folder))
        if found[name] != "right":
            break  # the others have another order of calls from here on
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            main, (sys.argv[1:] or list(CHECKS), folder), RANKS, start_method="fork")
        found = [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    print(json.dumps({name: next((one[name] for one in found if one.get(name) != "right"
                                  and name in one), "right" if name in found[0] else "not run")
                      for name in CHECKS if name in (sys.argv[1:] or CHECKS)}))
