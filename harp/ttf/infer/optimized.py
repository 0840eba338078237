"""``optimize``: try the engines that are installed, and take the fastest whose answers are right.

    fast = harp.ttf.infer.optimize(model, example, budget="60s", save="served")
    print(fast.table())
    answer = fast(features)

    fast = harp.ttf.infer.load("served")         # tries nothing again

Each engine's answer is held against eager's, output by output: an output is right if its largest
deviation is at most the tolerance times its largest value. Engines that are right are timed in
turn, so that a machine that is slower for a while is so for all. An engine that fails, is wrong or
does not fit into the budget is a row with its reason.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from harp.first_line import first_line
from harp.ttf.infer.engines import Source, by_name, installed, tensors_of
from harp.ttf.infer.form import Form, form_of, know_caches, loaded_form

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from torch import nn

TOLERANCE = 1e-3
"""Kernels in float32 add in another order: 1e-5 or so in deep models; half precision is 1e-2."""
ROUNDS, LEAST_ROUNDS = 30, 3
MANIFEST = "harp-infer.json"
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}


@dataclass
class Row:
    """An engine's line of the table."""

    engine: str
    build_s: float = 0.0
    off: list[float] = field(default_factory=list)
    """Largest deviation of each output, by its largest value."""
    latency_s: dict[int, float] = field(default_factory=dict)
    """Median seconds of a call by batch size."""
    why_not: str = ""
    chosen: bool = False


def seconds(budget: str | float) -> float:
    """Read a budget, such as "60s" or "2min"."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ms|s|min|)\s*", str(budget))
    value = (float(budget) if isinstance(budget, int | float) else
             float(found[1]) * UNITS[found[2]] if found else 0.0)
    if not value > 0:
        raise ValueError(f"budget is {budget!r}; allowed are durations such as '500ms', '60s' and "
                         "'2min'")
    return value


class Optimized:
    """A model in the engine that was chosen."""

    def __init__(self, run: Any, form: Form, rows: list[Row], tolerance: float) -> None:
        self._run, self._form = run, form
        self.rows, self.tolerance = rows, tolerance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the model does. ValueError for a call of another form than the example's."""
        return self._form.answer(self._run(self._form.tensors(args, kwargs)))

    @property
    def engine(self) -> str:
        """The engine that was chosen."""
        return next(row.engine for row in self.rows if row.chosen)

    def table(self) -> str:
        """Write all engines: latency and throughput at each batch size, or why not."""
        lines = []
        eager = next(row for row in self.rows if row.engine == "eager").latency_s
        for row in self.rows:
            mark = "*" if row.chosen else " "
            if row.why_not:
                lines.append(f"{mark} {row.engine:<20} {row.why_not}")
            for batch, latency in row.latency_s.items():
                lines.append(f"{mark} {row.engine:<20} batch {batch:<5} {1e3 * latency:9.3f} ms "
                             f"{batch / latency:11.1f} /s {eager[batch] / latency:6.2f} of eager  "
                             f"off {max(row.off, default=0.0):.1e} of {self.tolerance:g}")
        return "\n".join(lines)


def optimize(model: nn.Module, example: Any, budget: str | float = "60s", *,
             batch_sizes: Sequence[int] = (), tolerance: float | Sequence[float] = TOLERANCE,
             save: str | os.PathLike[str] | None = None) -> Optimized:
    """Find the fastest engine for a model on this machine.

    Args:
        model: in the state that serves; it is put into evaluation mode.
        example: a tensor, a tuple of arguments, or a dictionary of them by keyword.
        budget: seconds for building and timing; an engine begins only within it.
        batch_sizes: sizes of the first dimension to time; the example's if not given.
        tolerance: of all outputs, or of each.
        save: a folder for the chosen engine's artifact. An artifact that cannot be written is an
            error, which says what was measured.

    """
    limit = time.monotonic() + seconds(budget)
    args, kwargs = arguments(example)
    if not tensors_of((args, kwargs)):
        raise ValueError("the example has no tensor")
    if save is not None:
        _check_place(Path(save))
        if any(hasattr(part, "uncopied") for part in model.modules()):
            raise ValueError("save: no artifact holds the rows of dynamic embeddings; allowed is a "
                             "model of what is above them, or no save")
    training = model.training
    model.eval()
    with tempfile.TemporaryDirectory(prefix="harp-infer-") as folder:
        source = Source(model, args, kwargs, bool(batch_sizes), Path(folder))
        try:
            know_caches()
            # A model may add to a cache that it is given, so it has one of its own.
            own_args, own_kwargs = pytree.tree_map(lambda leaf: leaf, (args, kwargs))
            with torch.inference_mode():
                result = model(*own_args, **own_kwargs)
            form = form_of(args, kwargs, result, any_batch=bool(batch_sizes))
            allowed = _tolerances(tolerance, len(tensors_of(result)))
            given = tensors_of((args, kwargs))
            inputs = {size: resized((args, kwargs), size) for size in batch_sizes} or {
                len(given[0]) if given[0].dim() else 1: given}
            rows, runs = _build(source, inputs, allowed, limit)
            _time(rows, runs, inputs, limit)
            best = min((row for row in rows if row.latency_s), key=_total)
            best.chosen = True
            found = Optimized(runs[best.engine], form, rows, max(allowed, default=0.0))
            if save is not None:
                _keep(source, found, Path(save))
        finally:
            model.train(training)
        # Weights of some engines are mapped from the folder; loaded, they stay when it is removed.
        return found


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give an example's arguments, by place and by keyword."""
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, tuple) else (example,)), {}


def resized(values: Any, size: int) -> list[torch.Tensor]:
    """Repeat or cut the first dimension of an example's tensors."""
    if size < 1:
        raise ValueError(f"batch_sizes has {size}; the least batch is 1")
    if not all(leaf.dim() for leaf in tensors_of(values)):
        raise ValueError("batch_sizes: a tensor of the example is one number, without a dimension "
                         "for the batch")
    return [leaf.repeat(-(-size // leaf.shape[0]), *[1] * (leaf.dim() - 1))[:size].contiguous()
            for leaf in tensors_of(values)]


def _tolerances(tolerance: float | Sequence[float], outputs: int) -> list[float]:
    """Give the tolerance of each output. ValueError."""
    given = ([float(tolerance)] * outputs if isinstance(tolerance, int | float)
             else list(tolerance))
    if len(given) != outputs or any(not one >= 0 for one in given):
        raise ValueError(f"tolerance is {tolerance!r}; allowed is a number of 0 or more, or one "
                         f"for each output, of which the model has {outputs}")
    return given


def _check_place(folder: Path) -> None:
    """Refuse to replace what is no artifact. ValueError."""
    if folder.exists() and not (folder / MANIFEST).exists() and (
            not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"save is {folder}, which is there and no artifact of harp.ttf.infer; "
                         "allowed is a folder of its own, new or empty")
    if folder.is_mount():  # which cannot be replaced whole
        raise ValueError(f"save is {folder}, where a file system is mounted; allowed is a folder "
                         "in it")


def _total(row: Row) -> float:
    """Seconds of an item, added up over batch sizes."""
    return sum(latency / batch for batch, latency in row.latency_s.items())


def _build(source: Source, inputs: dict[int, list[torch.Tensor]], allowed: list[float],
           limit: float) -> tuple[list[Row], dict[str, Any]]:
    """Build each engine and check its answers."""
    rows, runs, right = [], {}, dict[int, list[torch.Tensor]]()
    for engine in installed():
        row = Row(engine.name)
        rows.append(row)
        if time.monotonic() > limit and right:
            row.why_not = "not tried: the budget was spent"
            continue
        begin = time.monotonic()
        try:
            run = engine.build(source)
            answers = {batch: run(tensors) for batch, tensors in inputs.items()}
        except Exception as error:
            if not right:
                raise  # eager itself: the model or the example is wrong
            row.why_not = f"failed: {_sentence(error)}"
            continue
        finally:
            row.build_s = time.monotonic() - begin
        right = right or answers
        row.why_not = _compare(row, answers, right, allowed)
        if not row.why_not:
            runs[engine.name] = run
    return rows, runs


def _sentence(error: BaseException) -> str:
    error = error.__cause__ or error  # an exporter's own error is advice
    return f"{type(error).__name__}: {first_line(error)[:160]}"


def _compare(row: Row, answers: dict[int, list[torch.Tensor]],
             right: dict[int, list[torch.Tensor]], allowed: list[float]) -> str:
    """Note how far outputs are off, and say which one is wrong, if one is."""
    for batch, expected in right.items():
        found = answers[batch]
        if [each.shape for each in found] != [each.shape for each in expected]:
            return "wrong: outputs have other shapes than eager's"
        row.off = [deviation(one.to(other.device), other)
                   for one, other in zip(found, expected, strict=True)]
        for number, (off, most) in enumerate(zip(row.off, allowed, strict=True)):
            if not off <= most:
                return f"wrong: output {number} is off by {off:.1e}; allowed is {most:g}"
    return ""


def deviation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Give the largest deviation by the largest value; infinite where one is not finite."""
    if not other.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    both = other.isfinite()
    if not torch.equal(both, one.isfinite()) or not torch.equal(one[~both].nan_to_num(),
                                                               other[~both].nan_to_num()):
        return float("inf")
    if not both.any():
        return 0.0
    size = float(other[both].abs().max())
    return float((one[both] - other[both]).abs().max()) / (size or 1.0)


def _time(rows: list[Row], runs: dict[str, Any], inputs: dict[int, list[torch.Tensor]],
          limit: float) -> None:
    """Time all in turn; medians of as many rounds as the budget allows, of three at least."""
    for batch, tensors in inputs.items():
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            if number >= LEAST_ROUNDS and time.monotonic() > limit:
                break
            for name, run in runs.items():
                run(tensors)  # another engine had the caches
                begin = time.perf_counter()
                run(tensors)
                if tensors[0].is_cuda:
                    torch.cuda.synchronize()
                samples[name].append(time.perf_counter() - begin)
        for row in rows:
            if row.engine in samples:
                row.latency_s[batch] = statistics.median(samples[row.engine])


def _keep(source: Source, found: Optimized, folder: Path) -> None:
    """Write the artifact beside its place, and put it there whole; else leave nothing behind.

    The measurement took minutes, so an error holds its report.
    """
    engine, fresh = by_name(found.engine), folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        if found.engine == "eager":
            engine.keep(source)
        fresh.mkdir(parents=True)
        for name in engine.files:
            for file in source.folder.glob(f"{name}*"):
                shutil.copy2(file, fresh / file.name)
        (fresh / MANIFEST).write_text(json.dumps({
            "engine": found.engine, "form": found._form.dumped(),
            "tolerance": found.tolerance, "torch": torch.__version__,
            "rows": [asdict(row) for row in found.rows]}, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except Exception as error:
        shutil.rmtree(fresh, ignore_errors=True)
        kind, reason = ((OSError, error.strerror or error) if isinstance(error, OSError)
                        else (RuntimeError, _sentence(error)))
        raise kind(f"the artifact of {found.engine} cannot be written to {folder}: {reason}; what "
                   f"was measured is\n{found.table()}") from None


def load(folder: str | os.PathLike[str]) -> Optimized:
    """Load what `optimize` saved; nothing is tried again."""
    manifest = Path(folder) / MANIFEST
    try:
        kept = json.loads(manifest.read_text())
        rows = [Row(**{**row, "latency_s": {int(batch): latency for batch, latency
                                            in row["latency_s"].items()}})
                for row in kept["rows"]]
        engine = by_name(kept["engine"])
        form = loaded_form(kept["form"])
    except OSError as error:
        raise ValueError(f"{manifest} is no artifact of harp.ttf.infer: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest} is no artifact of harp.ttf.infer: {error}") from None
    return Optimized(engine.load(Path(folder)), form, rows, kept["tolerance"])
