"""An optimizer that averages gradients over all ranks.

A hook on each parameter asks for the reduction as soon as its gradient is there, so that gradients
are sent while others are still computed; ``step`` waits for what is left. LIGHT_TOPK_ALLREDUCE and
the other LIGHT_* variables hold for these gradients (`harp.lightcc.settings`).
"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from harp.lightcc.horovod import world
from harp.lightcc.horovod.torch import asynchronous as ops
from harp.lightcc.horovod.torch.arguments import checked
from harp.lightcc.horovod.torch.compression import Compression
from harp.lightcc.horovod.torch.handles import synchronize
from harp.lightcc.horovod.world import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class _DistributedOptimizer(torch.optim.Optimizer):
    """Becomes a subclass of the optimizer's own class."""

    def __init__(self, params: Any, named_parameters: Any, compression: Any,
                 backward_passes_per_step: int, op: ops.ReduceOp, predivide: float,
                 groups: Any, sparse_as_dense: bool, process_set: ProcessSet) -> None:
        super(self.__class__, self).__init__(params)
        self._compression, self._op, self._predivide = compression, op, predivide
        self._process_set, self._sparse_as_dense = process_set, sparse_as_dense
        self.backward_passes_per_step = backward_passes_per_step
        # Scripts read it by Horovod's name.
        self._parameter_names = _names(self.param_groups, named_parameters)
        self._trained: list[torch.Tensor] = []
        self._left: dict[torch.Tensor, int] = {}
        self._handles: dict[Any, Callable[[], torch.Tensor]] = {}
        self._synchronized = self._shall_synchronize = True
        self._synchronized = False
        self._take_new()
        self._group_of = _groups(groups, self._trained)

    def _take_new(self) -> None:
        """Take parameters that are trained from now on: unfrozen ones, and those of a new group."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter not in self._left:
                    self._parameter_names.setdefault(
                        parameter, f"gradient.added.{len(self._trained)}")
                    self._trained.append(parameter)
                    self._left[parameter] = self.backward_passes_per_step
                    parameter.register_post_accumulate_grad_hook(self._gradient_is_there)

    def load_state_dict(self, *args: Any, **more: Any) -> None:
        """Take a state; gradients under way are forgotten."""
        self._handles = {}
        self._synchronized, self._shall_synchronize = False, True
        self._left = dict.fromkeys(self._trained, self.backward_passes_per_step)
        super(self.__class__, self).load_state_dict(*args, **more)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sum the gradients of this many backward passes before they are sent."""
        self.backward_passes_per_step = passes
        self._left = dict.fromkeys(self._trained, passes)

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        if self._process_set.process_set_id is not None and not self._process_set.included():
            return
        if parameter in self._handles:
            if self._left[parameter] <= 0:
                raise AssertionError(
                    "gradients were computed more than backward_passes_per_step times before a "
                    "call to step(); increase backward_passes_per_step to accumulate them")
            raise AssertionError("a gradient was computed while it was being averaged")
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            self._send(parameter)

    def _send(self, parameter: torch.Tensor) -> None:
        together = self._group_of.get(parameter)
        if together is None:
            self._send_together([parameter])
        elif all(self._left[one] <= 0 for one in together):
            self._send_together(together)

    def _send_together(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is None:  # others may have computed it
                parameter.grad = torch.zeros_like(parameter)
        first = parameters[0]
        if len(parameters) == 1 and first.grad.is_sparse and not self._sparse_as_dense:
            self._handles[first] = ops.sparse_allreduce_async(
                first.grad, self._parameter_names[first], self._op, self._process_set)
            return
        small = [self._compression.compress(self._dense(parameter)) for parameter in parameters]
        tensors = [tensor for tensor, _ in small]
        options = (None, self._parameter_names[first], self._op, 1 / self._predivide,
                   self._predivide, self._process_set)
        if len(parameters) == 1:
            handles = [ops.allreduce_async_(tensors[0], *options, sparse=True)]
        else:
            handles = ops.begin_gradients_(tensors, *options)
        for parameter, handle, (_, context) in zip(parameters, handles, small, strict=True):
            self._handles[parameter] = partial(self._receive, handle, context)

    def _receive(self, handle: int, context: Any) -> torch.Tensor:
        result: torch.Tensor = self._compression.decompress(synchronize(handle), context)
        return result

    def _dense(self, parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        if parameter.grad.is_sparse and not self._sparse_as_dense:
            raise ValueError(f"the gradient of {self._parameter_names[parameter]} is sparse and in "
                             "a group; sparse_as_dense=True makes it dense")
        return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad

    def synchronize(self) -> None:
        """Wait until all gradients are those of all ranks."""
        if not self._process_set.included():
            self._synchronized = True
            return
        self._take_new()
        for parameter in self._trained:
            if parameter not in self._handles:
                self._left[parameter] = 0
                self._send(parameter)
        for parameter, receive in list(self._handles.items()):
            back = receive()
            self._left[parameter] = self.backward_passes_per_step
            with torch.no_grad():
                if parameter.grad.is_sparse:
                    parameter.grad = back if back.is_sparse else back.to_sparse()
                elif back.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.copy_(back)
        self._handles.clear()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step`` not wait, after `synchronize` was called, as gradient clipping needs."""
        self._shall_synchronize = False
        try:
            yield
        finally:
            self._shall_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Make a step with the gradients of all ranks, also with those that a closure computes."""
        if self._shall_synchronize and closure is not None:
            step = super(self.__class__, self).step(self._with_synchronize(closure))
            self._synchronized = False
            return step
        if self._shall_synchronize:
            if self._synchronized:
                # Scripts filter warnings by Horovod's words, with which it begins.
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() "
                              "context after optimizer.synchronize(): the gradients are reduced "
                              "once more", stacklevel=2)
            self.synchronize()
        elif not self._synchronized:
            raise AssertionError("step() was called with skip_synchronize() and without a call to "
                                 "synchronize() before")
        self._synchronized = False
        return super(self.__class__, self).step(closure)

    def _with_synchronize(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            loss = closure()
            self.synchronize()
            return loss
        return compute

    def zero_grad(self, *args: Any, **more: Any) -> Any:
        """Forget gradients. Raises AssertionError while they are being sent."""
        if self._handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(), while gradients are being sent")
        return super(self.__class__, self).zero_grad(*args, **more)

    def light_state_dict(self) -> dict[str, torch.Tensor]:
        """Give what top-k has not sent yet, for this rank's checkpoint."""
        return {name: torch.from_numpy(error.copy())
                for name, error in world.gradient_errors().items()}

    def load_light_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take it back; it belongs to tensors, so that the number of ranks may be another one."""
        world.gradient_errors().clear()
        world.gradient_errors().update(
            {name: error.numpy().copy() for name, error in state.items()})


def _names(param_groups: Any, named_parameters: Any) -> dict[torch.Tensor, str]:
    parameters = [parameter for group in param_groups for parameter in group["params"]]
    if named_parameters is None:
        return {parameter: f"gradient.noname.{at}" for at, parameter in enumerate(parameters)}
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters should be pairs of a name and a parameter, usually "
                         "produced by model.named_parameters()")
    doubled = {name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1}
    if doubled:
        raise ValueError("parameter names in named_parameters must be unique; found twice: "
                         + ", ".join(sorted(doubled)))
    names = {parameter: name for name, parameter in pairs}
    if any(parameter not in names for parameter in parameters):
        raise ValueError("named_parameters was given, but one or more parameters of the optimizer "
                         "are not named; use model.named_parameters() or leave it out")
    return names


def _groups(groups: Any, parameters: list[torch.Tensor],
            ) -> dict[torch.Tensor, Sequence[torch.Tensor]]:
    """Return the parameters that are sent together: given lists, or groups of like size."""
    if groups is None or groups == 0:
        return {}
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}; it must be the number of groups, or a list of "
                             "lists of parameters")
        size = -(-len(parameters) // groups)
        backwards = parameters[::-1]
        groups = [backwards[at:at + size] for at in range(0, len(backwards), size)]
    grouped = [parameter for together in groups for parameter in together]
    if len(set(grouped)) < len(grouped):
        raise ValueError("a parameter can be in one of the groups only")
    trained = set(parameters)
    return {parameter: of_it for together in groups
            for of_it in [[one for one in together if one in trained]] for parameter in of_it}


@checked
def DistributedOptimizer(  # noqa: N802  (Horovod's name)
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        compression: Any = Compression.none, backward_passes_per_step: int = 1,
        op: ops.ReduceOp = ops.Average, gradient_predivide_factor: float = 1.0,
        num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set) -> Any:
    """Make an optimizer average its gradients over all ranks before each step.

    Args:
        optimizer: makes the steps; the object given back is of a subclass of its class.
        named_parameters: ``model.named_parameters()``, for names that all ranks agree on.
        compression: ``Compression.none`` or ``Compression.fp16``.
        backward_passes_per_step: the passes whose gradients are summed here before they are sent.
        op: ``Average`` or ``Sum``.
        gradient_predivide_factor: an average is divided by it before the sum, and the rest after.
        num_groups: the number of groups in which parameters are sent, each as a whole.
        groups: the groups themselves, or their number.
        sparse_as_dense: sends sparse gradients as dense ones; the others go by allgather.
        process_set: the ranks.

    """
    op = ops.chosen(None, op)
    if gradient_predivide_factor != 1.0 and op != ops.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; it must be 1 or "
                         "more")
    cls: Any = type(optimizer.__class__.__name__, (optimizer.__class__,),
               dict(_DistributedOptimizer.__dict__))
    made = cls.__new__(cls)
    cls.__init__(made, optimizer.param_groups, named_parameters, compression,
                 backward_passes_per_step, op, gradient_predivide_factor, groups or num_groups,
                 sparse_as_dense, process_set)
    made.defaults = dict(optimizer.defaults)  # of groups that are added later
    return made
