"""Engines that run a model: how each is built, kept in a folder, and loaded from there.

An engine has a name; ``build`` gives a function of flat tensors that gives flat tensors, and leaves
what it needs in the source's folder; ``files`` are what lies there; ``load`` makes the function
of that again. An engine that is not installed has no row; one that fails raises, and its row says
why.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROVIDERS = {"CPUExecutionProvider": "onnxruntime cpu", "CUDAExecutionProvider": "onnxruntime cuda",
             "TensorrtExecutionProvider": "onnxruntime tensorrt"}
"""Providers of ONNX Runtime that are tried, and their names here."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters' notes on their own deprecations away from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True)
class Source:
    """A model with an example, and what engines are built from."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    any_batch: bool
    """Whether the first dimension of each tensor is to be dynamic."""
    folder: Path

    @cached_property
    def flat(self) -> Flat:
        """The model as engines have it."""
        made = Flat(self.model, self.args, self.kwargs)
        made.eval()
        return made

    @cached_property
    def program(self) -> Any:
        """The exported program, of flat tensors."""
        # Of a view, torch would make the shape of the whole a guard that its exporters cannot read.
        tensors = tuple(one.detach().clone(memory_format=torch.contiguous_format)
                        for one in tensors_of((self.args, self.kwargs)))
        free = {0: torch.export.Dim.DYNAMIC}
        dynamic = ((free,) * len(tensors),) if self.any_batch else None
        with quiet(), torch.no_grad():
            return torch.export.export(self.flat, tensors, dynamic_shapes=dynamic)

    @cached_property
    def onnx(self) -> Path:
        """The file that ONNX Runtime and OpenVINO read."""
        if not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxscript")):
            raise ModuleNotFoundError("export to ONNX needs onnx and onnxscript: pip install "
                                      "'harp-stack[infer]'")
        file = self.folder / "model.onnx"
        with quiet():
            torch.onnx.export(self.program, f=str(file), dynamo=True, external_data=True,
                              verbose=False)
        return file


class Flat(nn.Module):
    """A model between flat tensors; what else the example has is the same in each call."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        leaves, self._places = pytree.tree_flatten((args, kwargs))
        self._others = [(not torch.is_tensor(leaf), None if torch.is_tensor(leaf) else leaf)
                        for leaf in leaves]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model with new tensors."""
        each = iter(tensors)
        leaves = [other if is_other else next(each) for is_other, other in self._others]
        args, kwargs = pytree.tree_unflatten(leaves, self._places)
        return tuple(tensors_of(self.model(*args, **kwargs)))


class Eager:
    """Torch as it is; kept as an exported program."""

    name, files = "eager", ("program.pt2",)

    def build(self, source: Source) -> Any:
        """Return a function that calls the model with new tensors."""
        return _inferring(source.flat)

    def keep(self, source: Source) -> None:
        """Write the program; only a model that eager wins with needs it."""
        with quiet():
            torch.export.save(source.program, source.folder / "program.pt2")

    def load(self, folder: Path) -> Any:
        """Load the program."""
        with quiet():
            return _inferring(torch.export.load(folder / "program.pt2").module())


class Inductor:
    """torch.compile ahead of time: AOTInductor's package, which loads without a compiler."""

    name, files = "torch.compile", ("inductor.pt2",)

    def build(self, source: Source) -> Any:
        """Compile; weights are constants that may be packed for the kernels."""
        with quiet(), torch.no_grad():
            torch._inductor.aoti_compile_and_package(
                source.program, package_path=str(source.folder / "inductor.pt2"),
                inductor_configs={"freezing": True})
        return self.load(source.folder)

    def load(self, folder: Path) -> Any:
        """Load the package."""
        with quiet():
            package = torch._inductor.aoti_load_package(str(folder / "inductor.pt2"))
        # It takes any tensor to be laid out as the example of the exported program was.
        return _inferring(lambda *tensors: package(*(one.contiguous() for one in tensors)))


class OnnxRuntime:
    """ONNX Runtime with one of its providers."""

    files = ("model.onnx",)  # and its weights beside it

    def __init__(self, provider: str) -> None:
        self.name, self._provider = PROVIDERS[provider], provider

    def build(self, source: Source) -> Any:
        """Open a session on the exported file."""
        return self.load(source.onnx.parent)

    def load(self, folder: Path) -> Any:
        """Open a session with torch's number of threads."""
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options,
                                               providers=[self._provider])
        if self._provider not in session.get_providers():
            raise RuntimeError(f"{self._provider} is installed, but does not start here")
        names = [each.name for each in session.get_inputs()]

        def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            given = dict(zip(names, (each.numpy(force=True) for each in tensors), strict=True))
            return [torch.from_numpy(each) for each in session.run(None, given)]
        return run


@cache
def _openvino_core() -> Any:
    """Return OpenVINO's core, one as long as the process lives.

    Its plugin for CPUs gives the thread that loads it a stack for signals, and unmaps it when the
    last model of the core goes, also in another thread. The first one's next signal would then kill
    the process.
    """
    import openvino
    return openvino.Core()


class OpenVino:
    """OpenVINO on the CPU, in float32."""

    name, files = "openvino cpu", ("openvino.xml", "openvino.bin")

    def build(self, source: Source) -> Any:
        """Convert the exported file."""
        import openvino
        model = openvino.convert_model(str(source.onnx))
        openvino.save_model(model, source.folder / "openvino.xml", compress_to_fp16=False)
        return self.load(source.folder)

    def load(self, folder: Path) -> Any:
        """Compile the model with torch's number of threads."""
        made = _openvino_core().compile_model(folder / "openvino.xml", "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads()})
        request = made.create_infer_request()

        def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            found = request.infer([each.numpy(force=True) for each in tensors], share_inputs=True)
            return [torch.from_numpy(found[port].copy()) for port in made.outputs]
        return run


def _inferring(model: Any) -> Any:
    """Make a model of torch's a function of flat tensors."""
    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.inference_mode():
            return tensors_of(model(*tensors))
    return run


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Give the tensors of arguments or results, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if torch.is_tensor(leaf)]


def installed() -> list[Any]:
    """Give the engines that are installed; eager is first, the reference of all."""
    found: list[Any] = [Eager()]
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime
        found += [OnnxRuntime(name) for name in PROVIDERS
                  if name in onnxruntime.get_available_providers()]
    if importlib.util.find_spec("openvino"):
        found.append(OpenVino())
    return [*found, Inductor()]


def by_name(name: str) -> Any:
    """Give the engine of a kept artifact."""
    known: list[Any] = [Eager(), Inductor(), OpenVino(), *map(OnnxRuntime, PROVIDERS)]
    return {engine.name: engine for engine in known}[name]
