"""A torch module as a list of layers, by running one step of it on tensors without data.

`traced_model` runs a forward and a backward pass on torch's device ``meta``: shapes are computed,
numbers are not, so a model of any size takes no memory to speak of. A layer is a module that owns
parameters, or that multiplies matrices by itself; what the pass says of each:

- FLOPs of matrix products and convolutions, by torch's ``FlopCounterMode`` (a multiply-add is two)
  but for the backward pass of convolutions. The backward pass is counted node by node of the
  autograd graph. Each node belongs to the module that made it, so that frozen parameters and inputs
  without gradient cost what they cost.
- Parameters, in the reverse of the order in which their gradients are complete. A tied parameter
  belongs to the first module that has it, and is complete when the last use of it is.
- What the forward pass keeps for the backward pass: each storage once, without parameters. Scores
  of ``scaled_dot_product_attention`` are kept apart, since fused kernels keep none.
- Maps of convolutions, and what all other kernels read and write, operation by operation as PyTorch
  runs them (`_Traffic`). Views move nothing.
- Blocks: modules of one class in a row (``ModuleList``, ``Sequential``) that have layers inside,
  the outermost ones.

Norms, activations and look-ups count no FLOPs. A step must not depend on the values of tensors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from harp.first_line import first_line
from sim.workloads.layers import SCORES, Layer, Tensor
from sim.workloads.model import Model
from sim.workloads.torch_profile import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_READ_AGAIN = {torch.ops.aten.native_batch_norm.default: 1,
               torch.ops.aten.native_batch_norm_backward.default: 2}
"""First arguments that a kernel reads twice: statistics come before what they normalise."""
_SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)


class ModuleError(ValueError):
    """The module cannot be traced; one clause that says why."""


@dataclass(frozen=True)
class Step:
    """Result of a script: a module, a batch for it, and what its output is worth."""

    module: torch.nn.Module
    inputs: Any
    """A tensor, a tuple of arguments or a mapping of them; the first dimension is the batch."""
    loss: Callable[[Any], torch.Tensor] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors of the batch."""
        return [each for each in tree_leaves(self.inputs) if isinstance(each, torch.Tensor)]

    def on_meta(self) -> Step:
        """The same, with all tensors of the batch on the device meta."""
        return replace(self, inputs=tree_map(
            lambda each: each.to("meta") if isinstance(each, torch.Tensor) else each, self.inputs))

    def run(self) -> torch.Tensor:
        """Forward pass and loss."""
        if isinstance(self.inputs, dict):
            output = self.module(**self.inputs)
        else:
            output = self.module(*(self.inputs if isinstance(self.inputs, tuple)
                                   else (self.inputs,)))
        loss = self.loss(output) if self.loss is not None else _loss_of(output)
        if not isinstance(loss, torch.Tensor):
            raise ModuleError(f"its loss gives a {type(loss).__name__}, no tensor")
        return loss


def _loss_of(output: Any) -> torch.Tensor:
    """The output's own loss, as of transformers, or the sum of all that has a gradient."""
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    parts = [each.sum() for each in tree_leaves(dict(output) if hasattr(output, "keys") else output)
             if isinstance(each, torch.Tensor) and each.requires_grad]
    if not parts:
        raise ModuleError("its output has no tensor with a gradient")
    return sum(parts[1:], parts[0])


def built(build: Callable[[], Any]) -> Step:
    """Call the script's function with all tensors on the device meta, and check what it gives."""
    with torch.device("meta"):
        found = build()
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ModuleError("it must return a module and a batch for it, and perhaps a loss")
    module, inputs, *loss = found
    if not isinstance(module, torch.nn.Module):
        raise ModuleError(f"the first thing that it returns is a {type(module).__name__}, "
                          "no torch.nn.Module")
    if loss and not callable(loss[0]):
        raise ModuleError(f"the third thing that it returns is a {type(loss[0]).__name__}, no "
                          "function from the output to the loss")
    step = Step(module.to("meta").train(), inputs, *loss)
    if not step.tensors or not step.tensors[0].dim() or not len(step.tensors[0]):
        raise ModuleError("its batch has no tensor whose first dimension counts samples")
    return step


def traced_model(step: Step, name: str, source: str, profile: bytes | None = None) -> Model:
    """The model of a step's module, with its times where there is a profile of such a step.

    Raises:
        ModuleError: the module cannot be traced.
        ProfileError: the profile is not of this module.

    """
    watch = _Watch(step.module)
    try:
        with torch.device("meta"):
            watch.run(step)
    except RuntimeError as error:  # NotImplementedError among them
        if "meta" not in str(error):
            raise
        if "not on the expected device" in str(error) and any(
                each.device.type != "meta" for each in step.tensors):
            # Of a data loader or of numpy; lengths of sequences may have to stay on the CPU.
            return traced_model(step.on_meta(), name, source, profile)
        raise ModuleError("it asks for the values of a tensor, which tensors on the device meta "
                          f"do not have ({first_line(error)[:120]})") from error
    if profile is not None:
        source += f", times by a profile of its steps on a {watch.measure(profile)}"
    first = step.tensors[0]
    layers = watch.layers(first.shape[0])
    if not any(layer.tensors for layer in layers):
        raise ModuleError("no parameter of it has a gradient")
    text = first.dim() == 2 and not first.is_floating_point()
    shapes = ", ".join("x".join(map(str, each.shape[1:])) or "1" for each in step.tensors)
    return Model(name, tuple(layers), f"sequence of {first.shape[1]} tokens" if text
                 else f"input of {shapes}", source, watch.between_blocks(first.shape[0]),
                 tokens=int(first.shape[1]) if text else 0)


@dataclass
class _Counts:
    """A module's own work in a batch, without those inside it."""

    forward: int = 0
    backward: int = 0
    moved_forward: int = 0
    """Elements that kernels beside products read and write."""
    moved_backward: int = 0
    maps: int = 0
    """Elements of inputs and outputs of convolutions."""
    direct: int = 0
    """Convolutions that Winograd's algorithm cannot take."""
    kept: int = 0
    """Elements of floating point; `scores` are apart."""
    masks: int = 0
    """Bytes of all else."""
    scores: int = 0
    attends: bool = False
    forward_s: float = 0.0
    backward_s: float = 0.0
    entered: int = 0
    """Its place in the order of first calls."""
    computed: int | None = None
    """Its place in the order of first use of parameters, or multiplication."""
    kept_first: int | None = None

    def take(self, other: _Counts) -> None:
        """Count as one's own what a module keeps, and takes time for, that computes nothing."""
        self.moved_forward += other.moved_forward
        self.moved_backward += other.moved_backward
        self.kept += other.kept
        self.masks += other.masks
        self.forward_s += other.forward_s
        self.backward_s += other.backward_s


def _convolution_backward(grad_out: Sequence[int], given: Sequence[int], weight: Sequence[int],
                          *settings: Any, **_: Any) -> int:
    """FLOPs of the gradients of a convolution, by shapes: each has the forward pass's products.

    torch 2.13 counts the weight's as if each group had all channels: for a depthwise convolution
    as many times too many as there are channels.
    """
    transposed, wanted = settings[4], settings[7]
    products = given[0] * prod((given if transposed else grad_out)[2:]) * prod(weight)
    return 2 * products * sum(map(bool, wanted[:2]))


class _Watch:
    """Watches one step of a module by hooks on its modules, tensors and autograd nodes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._counts: dict[str, _Counts] = {}
        self._own: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}
        for name, parameter in module.named_parameters():  # a tied one once
            if parameter.requires_grad:
                self._own.setdefault(name.rpartition(".")[0], []).append(name)
                self._sizes[name] = parameter.numel()
        self._blocks = dict.fromkeys(_blocks(module), -1)
        """Elements that come into each block."""
        self._ready: dict[str, int] = {}
        """Place of each parameter in the order of complete gradients."""
        self._stack: list[str] = []
        self._called: list[str] = []
        """Modules in the order of their calls."""
        self._clock = count()
        self._counter = FlopCounterMode(display=False, custom_mapping={
            torch.ops.aten.convolution_backward: _convolution_backward})
        self._traffic = _Traffic()
        self._total = _Totals()
        self._seen: set[Any] = set()
        self._held = {id(storage): storage for storage in map(
            torch.Tensor.untyped_storage, module.parameters())}
        """Storages that were counted, which keeps their numbers from being used again."""
        self._is_backward = False
        self.attending: tuple[int, ...] | None = None
        """Sides of the scores that a call of attention makes, while it runs."""
        self.dropping = False

    def run(self, step: Step) -> None:
        """Forward and backward pass."""
        hooks: list[Any] = []
        for name, module in self._module.named_modules():
            hooks += [module.register_forward_pre_hook(self._entering(name), with_kwargs=True),
                      module.register_forward_hook(self._leaving(name))]
        hooks += [each.register_post_accumulate_grad_hook(self._completing(name))
                  for name, each in self._module.named_parameters() if each.requires_grad]
        try:
            with (self._counter, self._traffic, _Calls(self),
                  torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept)):
                loss = step.run()
            self._is_backward = True
            self._claim(loss, "")
            with self._counter, self._traffic:
                self._of("").moved_forward += self._done().moved  # of the loss
                loss.sum().backward()
        finally:
            for hook in hooks:
                hook.remove()

    # ---- forward

    def note_attention(self) -> None:
        """Note that the module that runs attends."""
        self._of(self._stack[-1] if self._stack else "").attends = True

    def _of(self, name: str) -> _Counts:
        return self._counts.setdefault(name, _Counts())

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(_: Any, args: Any, kwargs: Any) -> None:
            if self._is_backward:  # computed again, by a checkpoint
                return
            self._spend()
            self._claim((args, kwargs), self._stack[-1] if self._stack else "")
            self._stack.append(name)
            self._called.append(name)
            if name not in self._counts:
                self._of(name).entered = next(self._clock)
            if name in self._own and self._of(name).computed is None:
                self._of(name).computed = next(self._clock)
            if self._blocks.get(name) == -1:
                given = [each.numel() for each in tree_leaves((args, kwargs))
                         if isinstance(each, torch.Tensor) and each.is_floating_point()]
                self._blocks[name] = given[0] if given else 0
        return enter

    def _leaving(self, name: str) -> Callable[..., None]:
        def leave(_: Any, __: Any, output: Any) -> None:
            if not self._is_backward:
                self._spend()
                self._claim(output, name)
                self._stack.pop()
        return leave

    def _spend(self) -> None:
        """Count what was done since the last time for the module that runs."""
        done = self._done()
        counts = self._of(self._stack[-1] if self._stack else "")
        counts.forward += done.flops
        counts.moved_forward += done.moved
        counts.maps += done.maps
        counts.direct += done.direct
        if done.flops and counts.computed is None:
            counts.computed = next(self._clock)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that is kept for the backward pass."""
        storage = tensor.untyped_storage()
        if id(storage) in self._held:
            return tensor
        self._held[id(storage)] = storage
        counts = self._of(self._stack[-1] if self._stack else "")
        if counts.kept_first is None:
            counts.kept_first = next(self._clock)
        elements = storage.nbytes() // tensor.element_size()
        if self.dropping:
            counts.masks += elements  # a byte each on a GPU, whose kernel keeps what it dropped
        elif self.attending and tensor.shape[-2:] == self.attending:
            counts.scores += elements
        elif tensor.is_floating_point():
            counts.kept += elements
        else:
            counts.masks += storage.nbytes()
        return tensor

    # ---- backward

    def _claim(self, value: Any, owner: str) -> None:
        """Give the autograd nodes behind a value that nobody has yet to a module."""
        counts = self._of(owner)

        def begin(*_: Any) -> None:
            # Since the node before, the engine added up the gradients of an output used twice.
            counts.moved_backward += self._done().moved

        def end(*_: Any) -> None:
            done = self._done()
            counts.backward += done.flops
            counts.moved_backward += done.moved

        todo = [each.grad_fn for each in tree_leaves(value)
                if isinstance(each, torch.Tensor) and each.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            node.register_prehook(begin)
            node.register_hook(end)
            todo += [before for before, _ in node.next_functions if before is not None]

    def _done(self) -> _Totals:
        """What ran since the last time."""
        before = self._total
        self._total = self._traffic.totals(self._counter.get_total_flops())
        return _Totals(*(now - then for now, then in zip(self._total, before, strict=True)))

    def _completing(self, name: str) -> Callable[..., None]:
        def complete(_: torch.Tensor) -> None:
            self._ready[name] = next(self._clock)
        return complete

    # ---- what was seen

    def measure(self, profile: bytes) -> str:
        """Take the times of a profile; the kind of device that it is of."""
        modules = dict(self._module.named_modules())
        found = measure(profile, [type(modules[name]).__name__ for name in self._called])
        for name, times in zip(self._called, found.times, strict=True):
            self._of(name).forward_s += times.forward_s
            self._of(name).backward_s += times.backward_s
        return found.device

    def layers(self, samples: int) -> list[Layer]:
        """Layers in forward order, for one sample."""
        self._adopt()
        found: list[tuple[str, _Counts]] = []
        early = _Counts()
        whole = self._of("")
        if whole.computed is None:  # what it does itself is mostly the loss
            whole.entered, whole.kept_first = next(self._clock), None
        for name, counts in sorted(self._counts.items(), key=lambda item: _first(item[1])):
            if name in self._own or counts.forward or counts.backward:
                found.append((name, counts))
                continue
            (found[-1][1] if found else early).take(counts)
        if found:
            found[0][1].take(early)
        return [self._layer(name, counts, samples) for name, counts in self._in_order(found)]

    def _adopt(self) -> None:
        """Give what a module that is never called has, such as a bare weight, to the one around."""
        for name in [each for each in self._own if each not in self._counts]:
            user = name
            while user not in self._counts:  # the whole module is called
                user = user.rpartition(".")[0]
            self._own.setdefault(user, []).extend(self._own.pop(name))

    def _in_order(self, found: list[tuple[str, _Counts]]) -> list[tuple[str, _Counts]]:
        """Let gradients be complete from the last layer to the first."""
        keys: list[int] = []
        key = 0
        for name, _ in reversed(found):
            # A layer without gradient computes right after the layer behind it.
            key = -max((self._ready[each] for each in self._own.get(name, ())
                        if each in self._ready), default=-key)
            keys.append(key)
        order = sorted(range(len(found)), key=keys[::-1].__getitem__)
        return [found[number] for number in order]

    def _layer(self, name: str, counts: _Counts, samples: int) -> Layer:
        own = sorted((each for each in self._own.get(name, ()) if each in self._ready),
                     key=lambda each: -self._ready[each])
        return Layer(
            (name or "model") + (SCORES if counts.attends and not own else ""),
            tuple(Tensor(each, self._sizes[each]) for each in own),
            counts.forward // samples, counts.backward // samples,
            block=next((block for block in self._blocks
                        if name == block or name.startswith(f"{block}.")), ""),
            maps=counts.maps // samples, winograd=counts.maps > 0 and not counts.direct,
            moved_forward=counts.moved_forward // samples,
            moved_backward=counts.moved_backward // samples,
            kept=-(-counts.kept // samples), masks=-(-counts.masks // samples),
            scores=-(-counts.scores // samples), forward_s=counts.forward_s / samples,
            backward_s=counts.backward_s / samples)

    def between_blocks(self, samples: int) -> int:
        """Elements of a sample that go from block to block; 0 where blocks differ."""
        sizes = set(self._blocks.values())
        return sizes.pop() // samples if len(sizes) == 1 and -1 not in sizes else 0


def _first(counts: _Counts) -> int:
    return next(each for each in (counts.computed, counts.kept_first, counts.entered)
                if each is not None)


def _blocks(module: torch.nn.Module, name: str = "") -> Iterator[str]:
    """Names of modules of one class in a row, the outermost ones."""
    children = dict(module.named_children())
    row = isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
    classes = Counter(type(child) for child in children.values())
    for key, child in children.items():
        inner = f"{name}.{key}" if name else key
        if row and classes[type(child)] > 1 and any(True for _ in child.children()) and any(
                True for _ in child.parameters()):
            yield inner
        else:
            yield from _blocks(child, inner)


class _Totals(NamedTuple):
    """Sums over all that ran so far; the fields of `_Counts`."""

    flops: int = 0
    moved: int = 0
    maps: int = 0
    direct: int = 0


class _Traffic(TorchDispatchMode):
    """Counts what kernels read and write."""

    def __init__(self) -> None:
        super().__init__()
        self._sums = _Totals()

    def totals(self, flops: int) -> _Totals:
        """Sums so far, with the FLOPs that another counter has."""
        return self._sums._replace(flops=flops)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sums = self._sums
        if func is torch.ops.aten.convolution.default:
            given, weight, _, stride, _, dilation, transposed, _, groups = args
            winograd = (tuple(weight.shape[2:]) == (3, 3) and not transposed and groups == 1
                        and {*stride, *dilation} == {1})
            self._sums = sums._replace(maps=sums.maps + _elements((given, found)),
                                       direct=sums.direct + (not winograd))
        elif (func.overloadpacket not in flop_registry and not func.is_view
              and not func.name().startswith("aten::empty")):
            again = _READ_AGAIN.get(func, 0)
            moved = _elements((args, kwargs, found)) + _elements(args[:again])
            self._sums = sums._replace(moved=sums.moved + moved)
        return found


def _elements(values: Any) -> int:
    """Elements of all tensors of floating point."""
    return sum(each.numel() for each in tree_leaves(values)
               if isinstance(each, torch.Tensor) and each.is_floating_point())


class _Calls(TorchFunctionMode):
    """Notes calls of functions that a GPU has kernels of its own for."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _SOFTMAX:
            self._watch.note_attention()
        if func is F.scaled_dot_product_attention:
            query, key = (args[place] if len(args) > place else given[name]
                          for place, name in enumerate(("query", "key")))
            self._watch.note_attention()
            self._watch.attending = (query.shape[-2], key.shape[-2])
        self._watch.dropping = func is F.dropout or self._watch.dropping
        try:
            return func(*args, **given)
        finally:
            if func is F.scaled_dot_product_attention:
                self._watch.attending = None
            if func is F.dropout:
                self._watch.dropping = False
