"""The engine: a model whose states live in pages, with DeepSpeed's calls.

    engine, optimizer, _, _ = harp.angelptm.initialize(model=model, config="ds_config.json")
    for batch, target in data:
        loss = loss_of(engine(batch), target)
        engine.backward(loss)
        engine.step()

A parameter keeps its object and its address, in the window; its memory comes and goes. Operators
are watched (`harp.angelptm.watch`), so whatever reads a parameter finds it there.

A backward pass may go through the module of another engine, as a GAN's generator learns through the
discriminator. Every engine of the process then has its parameters ready, and those of the others
get no gradient: a GAN forgets it, and `Engine.step` refuses to go on without it.
"""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import torch

from harp.angelptm.accelerator_pages import DeviceCache, Wholes, bring, find_device, room_bytes
from harp.angelptm.cache import Cache
from harp.angelptm.config import ConfigError
from harp.angelptm.late import Waiting
from harp.angelptm.page_plan import TIERS, CapacityError, Sharing
from harp.angelptm.paged import (
    WITHOUT_ENGINE,
    HiddenError,
    guard_outputs,
    put_in_class,
    take_out_of_class,
)
from harp.angelptm.paged_optimizer import Optimizer
from harp.angelptm.pages import WIDE, Layout, whole_page
from harp.angelptm.ranks import RankError, alike
from harp.angelptm.reduction import Reduction
from harp.angelptm.saving import Saving
from harp.angelptm.scaler import Scaler
from harp.angelptm.state_bytes import States
from harp.angelptm.state_window import Window
from harp.angelptm.steps import Steps
from harp.angelptm.tiers import capacities, stays
from harp.angelptm.updates import Updates
from harp.angelptm.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from harp.angelptm.adam import Adam
    from harp.angelptm.config import Config
    from harp.angelptm.ranks import Ranks

Numbers = frozenset[int]
"""Of pages or parameters."""
NOTHING: Numbers = frozenset()


class Engine(torch.nn.Module):
    """A model in pages. Made by `initialize`."""

    alive: ClassVar[WeakValueDictionary[int, Engine]] = WeakValueDictionary()
    """All of the process, in the order in which they were made: the same at all ranks."""

    def __init__(self, model: torch.nn.Module, config: Config, groups: Any, adam: Adam,
                 ranks: Ranks | None = None) -> None:
        super().__init__()
        self.module = model
        self.config = config
        self.dtype = getattr(torch, config.precision)
        self.parameters_in_pages = _trained(groups)
        self._ranks = ranks
        many, own = (ranks.ranks, ranks.rank) if ranks else (1, 0)
        self.layout = Layout(tuple(one.numel() for one in self.parameters_in_pages),
                             self.dtype.itemsize, whole_page(config.page_bytes, many), many, own)
        self._number = {id(one): number for number, one in enumerate(self.parameters_in_pages)}
        self.device = find_device(config.device, many)
        with alike(ranks):
            self._make_cache(model)
        self._at_end = at_end = bool(config.clipping or config.scaling)
        self._late = Waiting(self.layout, config.staleness) if config.update == "async" else None
        if ranks:
            self._reduction = Reduction(self.cache, ranks, self.dtype, each=config.stage > 1,
                                        norms=at_end)
        self.optimizer = Optimizer(groups, adam, self)
        self._updates = Updates(self.cache, config.precision, self._late,
                                self._reduction if ranks else None)
        self._steps = Steps(
            self.cache, self._updates.update, at_end=at_end,
            late=self._late.most if self._late else 0,
            reduction=self._reduction if ranks else None, agree=ranks.slowest if ranks else list)
        self._states = States(self.layout, self._steps, self.dtype)
        self._saving = Saving(model, self.parameters_in_pages, self._states, ranks)
        self._watch = Watch(self)
        self._pages: list[Numbers] = []
        """Of each parameter."""
        self._keys: dict[int, Numbers] = {}
        """The parameter that has a memory."""
        self._written = NOTHING
        """Parameters in 16 bits that were written since their masters were."""
        self._here: set[int] = set()
        """Parameters whose gradient has come in this micro-batch."""
        self.staleness = 0
        """Most steps that parameters were behind when an operator used them."""
        self.lr_scheduler: Any = None
        """Of torch's kind: the engine steps and saves it."""
        self._outside = False
        self._micro_steps = self.global_steps = self.skipped_steps = 0
        self._wants_step = self._failed = False
        """Whether a micro-batch is through its backward pass, and `step` was not called since;
        whether the last backward pass failed, and a part of its gradients may be in the step."""
        self._goes_back = self._left_out = False
        """Whether a backward pass of this engine runs; whether one of another engine came to
        parameters of this one since its own."""
        self._square = 0.0
        self._norm: float | None = None
        self._norms: dict[int, torch.Tensor] = {}
        """Of the gradients of this step, by parameter."""
        self._scaler = Scaler(config.scaling) if config.scaling else None
        self._take_model(model)

    def _make_cache(self, model: torch.nn.Module) -> None:
        layout, config, many = self.layout, self.config, self.layout.ranks
        room = 0
        if self.device.type != "cpu":
            room = room_bytes(model, self._number, layout)
        if config.device_bytes is not None:
            config = replace(config, device_bytes=max(config.device_bytes - room, 0))
        later = stays(layout, config.stage, config.accumulation)
        sharing = Sharing(layout.shown, many, config.stage == 3) if many > 1 else None
        given = (layout, capacities(layout, config, later), config.disk_path, config.io, sharing,
                 later)
        self.cache: Cache
        self.window: Window | Wholes
        if self.device.type == "cpu":
            self.cache = Cache(*given)
            self.window = Window(self.cache, self.dtype)
        else:
            self.cache = cache = DeviceCache(self.device, *given)
            self.window = Wholes(cache, self.dtype)

    def _take_model(self, model: torch.nn.Module) -> None:
        for number, parameter in enumerate(self.parameters_in_pages):
            self._put_in_pages(number, parameter)
        self._steps.rates = self.cache.measure()
        if self._ranks:
            self._steps.rates = replace(self._steps.rates, network=self._reduction.measure())
        for tensor in (*model.buffers(), *model.parameters()):
            if id(tensor) not in self._number:
                self._put_beside_pages(tensor)
        # The only attribute that a call asks for before hooks, and that no copy of a module has.
        self._call = model._compiled_call_impl or model._call_impl
        model._compiled_call_impl = self._called
        Engine.alive[id(self)] = self

    def _put_beside_pages(self, tensor: torch.Tensor) -> None:
        if self._ranks:
            self._ranks.broadcast(tensor.data)
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        bring(tensor, tensor.data.to(self.device, dtype))

    # The parts that operators see

    def _put_in_pages(self, number: int, parameter: torch.nn.Parameter) -> None:
        first = parameter.data.detach().contiguous()
        pages = frozenset(self.layout.pages_of(number))
        if len(pages) > (room := self.cache.capacities.device):
            raise CapacityError(f"the device has room for {room} pages, and the parameter "
                                f"{self._saving.names()[number]} alone needs {len(pages)}")
        whole = self.window.make(parameter.shape)
        if self._ranks:
            self._ranks.broadcast(first)
        masters = first.to("cpu", torch.float32).view(-1)
        self._states.restore(number, {0: memoryview(masters.view(torch.uint8).numpy())})
        bring(parameter, whole)
        self._pages.append(pages)
        self._keys[self.window.key(parameter.data)] = frozenset((number,))
        parameter.register_post_accumulate_grad_hook(self._put_gradient_away)
        put_in_class(parameter, self)

    def touch(self, args: Iterable[Any], *, is_view: bool = False) -> None:
        """Have parameters among the arguments on the device, or what a view of them takes."""
        numbers = self._parameters_in(args)
        if numbers and is_view:
            self.window.lend(numbers)
        elif numbers:
            self._use(NOTHING.union(*(self._pages[number] for number in numbers)))
            self.window.have(numbers)

    def put_back(self, numbers: Numbers) -> None:
        """Write parameters that an operator has changed to their pages."""
        self.window.put_back(numbers)
        if self.layout.element_bytes != WIDE:
            self._written |= numbers

    def _take_written_over(self) -> None:
        """Have masters of what was written: the next update would undo it else."""
        for number in sorted(self._written):
            self._states.take_over(number)
        self._written = NOTHING

    def _parameters_in(self, values: Iterable[Any]) -> Numbers:
        numbers = NOTHING
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.layout is not torch.strided:  # such as a sparse gradient: no parameter is
                    continue
                numbers |= self._keys.get(self.window.key(value), NOTHING)
            elif isinstance(value, list | tuple):
                numbers |= self._parameters_in(value)
        return numbers

    def written(self, func: Any, args: Iterable[Any]) -> Numbers:
        """Give parameters that an operator writes. RankError if they are sharded over the ranks."""
        numbers = self._parameters_in(
            arg for arg, how in zip(args, func._schema.arguments, strict=False)
            if how.alias_info is not None and how.alias_info.is_write)
        if self._ranks and numbers:
            raise RankError("a parameter cannot be written with several ranks, since each keeps "
                            "a part of it: write it before initialize, or load a checkpoint")
        if numbers:  # a plan goes by parameters that only updates change
            self._steps.leave_plan()
        return numbers

    def _use(self, pages: Numbers) -> None:
        of_step = self._steps.in_step or (self.training and torch.is_grad_enabled())
        if of_step and not self._outside:
            self._steps.touch(pages)
            if self._late:
                self.staleness = max(self.staleness, self._late.age(pages, self.global_steps))
                assert self.staleness <= self._late.most
        else:
            self._steps.look(pages)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let other code than the engine's calls read or write parameters."""
        self._outside = True
        try:
            with self._watch:
                yield
        finally:
            self._outside = False

    @property
    def is_watching(self) -> bool:
        """Whether the engine has parameters ready for what is run now."""
        return self._watch.depth > 0

    # DeepSpeed's calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        self._take_written_over()
        with self._telling(), self._watch:
            outputs = self.module(*args, **kwargs)
        guard_outputs(outputs, lambda: self.is_watching)
        return outputs

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model where a script calls it itself: as the engine does, unless it has begun."""
        return self._call(*args, **kwargs) if self.is_watching else self(*args, **kwargs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Run the backward pass of a micro-batch; the mean of micro-batches counts.

        One that fails does not count.
        """
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"backward: the loss is a {type(loss).__name__}; a tensor is possible")
        self._settle_failure()
        self._take_written_over()
        if not self._updates.new.how:
            self._begin_step()
        scale = self._scaler.scale if self._scaler else 1.0
        self._here.clear()
        self._failed, self._left_out = True, False
        with self._telling():
            self._steps.begin_batch(last=self._is_last())
            with self._going_back():
                (loss * (scale / self.config.accumulation)).backward(retain_graph=retain_graph)
            self._steps.end_batch()
        self._failed = False
        self._micro_steps += 1
        self._wants_step = True
        return loss

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        """Have the parameters of all engines ready for a backward pass of this one."""
        self._goes_back = True
        try:
            with ExitStack() as watches:
                for engine in tuple(Engine.alive.values()):
                    watches.enter_context(engine._watch)
                yield
        finally:
            self._goes_back = False

    def no_sync(self) -> AbstractContextManager[None]:
        """Do nothing: gradients are exchanged when the plan has it, and their sum is the same."""
        return nullcontext()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all micro-batches since the last step.

        ConfigError where updates have used them already.
        """
        super().zero_grad(set_to_none)
        self._left_out = False
        if self._updates.new.arrived:
            self._steps.leave_plan()
            if self._late or self._updates.new.updated:
                raise ConfigError(
                    "gradients cannot be forgotten once updates have begun with them, beside the "
                    "backward pass: load a checkpoint, or begin with gradient_clipping, which has "
                    "updates wait for step(), and without asynchronous updates")
            self._forget_gradients()
        self._failed = False

    def _forget_gradients(self) -> None:
        self._steps.forget_gradients()
        self._updates.end()
        self._norms.clear()
        self._failed = False

    def _settle_failure(self) -> None:
        """Forget what a backward pass that failed has left. ConfigError if others would go, too."""
        if self._failed and self._here:
            if self._micro_steps % self.config.accumulation:
                raise ConfigError("a backward pass failed and left a part of its gradients among "
                                  "those of earlier micro-batches: call zero_grad(), which forgets "
                                  "all since the last step")
            self.zero_grad()
        self._failed = False

    @property
    def global_rank(self) -> int:
        """The number of this rank."""
        return self.layout.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.layout.ranks

    @property
    def local_rank(self) -> int:
        """The number of this rank on its host, as the launcher says."""
        return int(os.environ.get("LOCAL_RANK", self.global_rank))

    def get_lr(self) -> list[float]:
        """Give the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """Give the norm of the last step's gradients, before clipping.

        None before the first step, and without clipping and loss scaling, where nobody needs it.
        """
        return self._norm

    def gradient_accumulation_steps(self) -> int:
        """Give the micro-batches of a step."""
        return self.config.accumulation

    def train_micro_batch_size_per_gpu(self) -> int:
        """Give the samples that a rank has in a micro-batch."""
        return self.config.micro_batch

    def train_batch_size(self) -> int:
        """Give the samples of a step, of all ranks."""
        return self.config.micro_batch * self.config.accumulation * self.world_size

    def fp16_enabled(self) -> bool:
        """Whether parameters are float16."""
        return self.config.precision == "float16"

    def bfloat16_enabled(self) -> bool:
        """Whether parameters are bfloat16."""
        return self.config.precision == "bfloat16"

    def zero_optimization_stage(self) -> int:
        """Give the stage, 0 to 3."""
        return self.config.stage

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether this micro-batch, which ends with `step`, is the last of its step."""
        return (self._micro_steps + (not self._wants_step)) % self.config.accumulation == 0

    def _is_last(self) -> bool:
        """Whether the micro-batch of the backward pass is the last of its step."""
        return (self._micro_steps + 1) % self.config.accumulation == 0

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Update, when the last micro-batch of a step is through; else do nothing.

        A scheduler that `initialize` was given steps, too, with ``lr_kwargs``, unless the update
        was skipped.
        """
        if self._left_out and not self._updates.new.how:
            raise ConfigError("step() has no gradient: another engine's backward pass came through "
                              "this one's parameters, and only engine.backward(loss) of this one "
                              "gives them gradients")
        self._settle_failure()
        self._wants_step = False
        if self._micro_steps % self.config.accumulation or not self._updates.new.how:
            return
        skipped = self.skipped_steps
        self._take_written_over()
        with self._telling():
            self._end_step()
        # A scheduler warns where its own optimizer, which a script may have passed, did not step.
        own: Any = getattr(self.lr_scheduler, "optimizer", self.optimizer)
        self.optimizer._opt_called = own._opt_called = True
        if self.lr_scheduler is not None and self.skipped_steps == skipped:
            self.lr_scheduler.step(**(lr_kwargs or {}))

    def _end_step(self) -> None:
        if self._ranks:
            self._meet(self._ranks)
        skip = self._settle_scale()
        self._updates.new.skip = skip
        due = chunks = self._updates.chunks()
        if self._late:
            chunks, due = self._owe(self._late, chunks)
        self._steps.end(chunks, due)
        if not skip and not self._late:
            for chunk in self._updates.missed(chunks):
                self._steps.update_now([chunk])
            self._updates.count()
        if self._ranks and not self._at_end:
            self._reduction.end(self._late.chunks() if self._late else ())
        self._updates.end()
        self.skipped_steps += skip
        self.global_steps += 1

    def _owe(self, late: Waiting, chunks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Have this step's updates over, and leave its gradients to steps that come.

        Returns the chunks whose gradients wait, and those that the next step updates.
        """
        self._steps.complete()
        self._updates.keep()
        if not self._updates.new.skip:
            late.add(self._updates.new.arrived, self.global_steps)
            self._updates.count()
        owed = sorted({*chunks, *late.chunks()})
        return owed, late.due(owed, self.global_steps + 1)

    def _meet(self, ranks: Ranks) -> None:
        """Compare the step with that of other ranks, and have the norm of all gradients."""
        if self._at_end:
            self._steps.settle()
        own_square = self._reduction.end() if self._at_end else 0.0
        rows = ranks.gather_numbers([own_square, self._steps.sum])
        ranks.check_steps([steps for _, steps in rows])
        square = math.fsum(own for own, _ in rows)
        # Where pages are cut changes the last bits of a float64, and so not those of a float32.
        norm = torch.tensor(math.sqrt(square) if math.isfinite(square) else math.inf)
        self._square = float(norm) ** 2

    def save_checkpoint(self, save_dir: str | Path, tag: str | None = None,
                        client_state: Mapping[str, Any] | None = None) -> bool:
        """Save all between two steps, and what the script adds, which JSON can hold.

        Raises CheckpointError, and then the last checkpoint is as it was.
        """
        if self._failed:
            self.zero_grad()
        self._take_written_over()
        kept = {"global_steps": self.global_steps, "skipped_steps": self.skipped_steps,
                "counts": dict(zip(self._saving.names(), self._updates.counts, strict=True)),
                "scaler": self._scaler.state() if self._scaler else None,
                "groups": [{name: value.item() if isinstance(value, torch.Tensor) else value
                            for name, value in group.items() if name != "params"}
                           for group in self.optimizer.param_groups],
                "client_state": client_state or {}}
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        self._saving.save(Path(save_dir), tag, kept, self.lr_scheduler)
        return True

    def save_16bit_model(self, save_dir: str | Path,
                         save_filename: str = "pytorch_model.bin") -> bool:
        """Save the module's state_dict in the precision of training, as torch.save does.

        All of it is in the host's memory meanwhile. Raises CheckpointError.
        """
        self._saving.save_whole(Path(save_dir), save_filename)
        return True

    save_fp16_model = save_16bit_model

    def load_checkpoint(self, load_dir: str | Path, tag: str | None = None,
                        load_module_strict: bool = True, load_optimizer_states: bool = True,
                        load_lr_scheduler_states: bool = True, load_module_only: bool = False,
                        custom_load_fn: Callable[..., Any] | None = None,
                        ) -> tuple[str, dict[str, Any]]:
        """Load what was saved, whatever the caps were; returns its folder and what was added.

        Without ``load_optimizer_states`` moments, groups and the scale stay as they are, without
        ``load_lr_scheduler_states`` the scheduler does; with ``load_module_only`` all of these do,
        and the number of steps. Without ``load_module_strict`` tensors that the checkpoint has not
        stay as they are. ``custom_load_fn(src=tensors, dst=module)`` loads the module in its own
        way. Raises CheckpointError, and then nothing was changed.
        """
        if custom_load_fn is not None and not callable(custom_load_fn):
            raise TypeError(f"custom_load_fn is a {type(custom_load_fn).__name__}; a function is "
                            "possible")

        def load_own(tensors: dict[str, torch.Tensor]) -> None:
            assert custom_load_fn is not None
            with self.watched(), torch.no_grad():
                custom_load_fn(src=tensors, dst=self.module)

        self._take_written_over()
        groups = self.optimizer.param_groups
        whole = load_optimizer_states and not load_module_only
        folder, kept = self._saving.load(
            Path(load_dir), None if tag is None else str(tag), len(groups) if whole else None,
            self.lr_scheduler if load_lr_scheduler_states and not load_module_only else None,
            strict=load_module_strict, own=load_own if custom_load_fn else None)
        self._forget_gradients()
        if not load_module_only:
            self.global_steps, self.skipped_steps = kept["global_steps"], kept["skipped_steps"]
        if whole:
            self._updates.counts = [
                kept["counts"].get(name, count) for name, count in
                zip(self._saving.names(), self._updates.counts, strict=True)]
            if self._scaler and kept["scaler"]:
                self._scaler.restore(kept["scaler"])
            for group, own in zip(groups, kept["groups"], strict=True):
                group.update(own)
        return str(folder), kept["client_state"]

    def _telling(self) -> AbstractContextManager[None]:
        """Let the other ranks know of an error of this one."""
        return self._ranks.telling() if self._ranks else nullcontext()

    def describe(self) -> str:
        """Say how many pages each tier holds, their size, and how the disk's are read."""
        counts = [sum(tier == own for own, _ in self.cache.where) for tier in range(3)]
        parts = [f"{count} of the {name}" for name, count in zip(TIERS, counts, strict=True)
                 if count]
        file = self.cache.disk_line()
        return (f"pages of {self.layout.page_bytes >> 10} KiB: {', '.join(parts)}"
                + (f"; the file has {file}" if file else ""))

    def destroy(self) -> None:
        """Give all memory back. The model cannot be used any more."""
        self._steps.close()
        Engine.alive.pop(id(self), None)
        self.module._compiled_call_impl = self._call
        for parameter in self.parameters_in_pages:
            take_out_of_class(parameter)
            parameter.data = torch.empty(0, dtype=self.dtype, device=self.device)
        self.cache.close()
        if self._ranks:
            self._ranks.close()

    def _begin_step(self) -> None:
        self._square = 0.0
        self._norms.clear()
        self._updates.begin(self.optimizer.param_groups, self._number)

    def _settle_scale(self) -> bool:
        """Clip and unscale gradients; returns whether the step is skipped, for overflow."""
        scale = 1 / self._scaler.scale if self._scaler else 1.0
        for norm in torch.stack(list(self._norms.values())).tolist() if self._norms else ():
            self._square += norm ** 2
        norm = math.sqrt(self._square) * scale if math.isfinite(self._square) else math.inf
        self._norm = norm if self._at_end else None
        if self._scaler and self._scaler.hear(overflow=not math.isfinite(self._square)):
            return True
        if self.config.clipping and norm > self.config.clipping:
            scale *= self.config.clipping / (norm + 1e-6)
        self._updates.new.scale = scale
        return False

    def _put_gradient_away(self, parameter: torch.Tensor) -> None:
        if not self.is_watching:
            raise HiddenError(WITHOUT_ENGINE)
        if not self._goes_back:
            parameter.grad, self._left_out = None, True
            return
        number = self._number[id(parameter)]
        if self._updates.began(number):
            raise ConfigError(f"the parameter {self._saving.names()[number]} has a gradient after "
                              "its update: this step has more backward passes than the one before, "
                              "which gradient_clipping allows, since its updates wait for step()")
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ConfigError(f"the parameter {self._saving.names()[number]} has a sparse gradient,"
                              " which Adam has no step for: leave sparse=True out of its module")
        self._use(frozenset(self.layout.pages_of(number, gradient=True)))
        assert parameter.grad is not None
        others = self._here if self._ranks and self._reduction.each else self._updates.new.arrived
        sums: Container[int] = ()
        if number in others:
            sums = self.layout.pages_of(number)
        elif self._late and not self._ranks:
            sums = self._late.pages_of(number)
        self.window.keep_gradient(number, parameter.grad, sums)
        parameter.grad = None
        self._updates.new.arrived.add(number)
        self._here.add(number)
        self._steps.wrote(number)
        if self._at_end and not self._ranks:  # nobody knows whether it comes again in this step
            self._norms[number] = self.window.norm(number)


def _trained(groups: Any) -> list[torch.nn.Parameter]:
    found = {id(one): one for group in groups for one in group["params"] if one.requires_grad}
    if not any(one.numel() for one in found.values()):
        raise ConfigError("no parameter is trained: the groups of the optimizer have none that "
                          "requires a gradient and has an element")
    return list(found.values())
