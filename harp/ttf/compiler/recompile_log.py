"""Compilations and recompilations by torch, with their reasons, from the trace of TORCH_TRACE.

A line of the trace with ``compilation_metrics`` is a compiled frame. Its ``recompile_reason`` names
the guard that failed and the code that the guard is due to; `remedy` says what helps against guards
of that kind. The keys are those of torch 2.13 (torch/_dynamo/utils.py); a key that is
missing is an unknown, not an error.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

METRICS = '{"compilation_metrics": '
LIMIT = "recompile limit exceeded"
REMEDIES = (
    (r"considers integer attributes of the nn.Module",
     "keep the counter in a tensor (register_buffer); harp.ttf.compile does it"),
    (r"size mismatch at index (\d+)",
     "mark dimension {0} with torch._dynamo.mark_dynamic, or let harp.ttf.compile choose buckets"),
    (r"rank mismatch", "give tensors of one number of dimensions: unsqueeze, or two functions"),
    (r"stride mismatch", "call .contiguous() before, so that strides follow from the shape"),
    (r"dtype mismatch", "cast before the call, so that one dtype arrives"),
    (r"requires_grad mismatch|GRAD_MODE|grad_mode",
     "call it with gradients or without, or compile one function for each"),
    (r"device mismatch|dispatch key set mismatch",
     "keep inference mode, device and layout of tensors the same"),
    (r"GLOBAL_STATE|autocast|num_threads|deterministic_algorithms",
     "leave autocast, threads and determinism as they are between calls"),
    (r"___check_type_id|___check_obj_id|___check_current",
     "pass the same object, or one of the same class, in each call"),
    (r"^len\(|\blen\(", "pass one stacked or padded tensor in place of a list of another length"),
    (r"== -?\d+\.\d*(e-?\d+)?\s*$|math\.isnan|\.item\(\)",
     "pass the float as a tensor of no dimensions; harp.ttf.compile does it"),
    (r"== -?\d+\s*$", "pass the integer as a tensor, or compile a function for each value"),
    (r"== (['\"].*['\"]|True|False|None)\s*$|is None|is not None",
     "compile a function for each mode, in place of an argument that chooses it"),
    (r"\b[Ee]q\(|\bNe\(|[<>]=? ?\d+|% ?\d+",
     "give torch._dynamo.mark_dynamic the bounds, or pad to sizes that share the condition"),
)


@dataclass(frozen=True)
class Compile:
    """A frame that was compiled, or given up."""

    id: str
    function: str
    file: str
    line: int
    seconds: float
    guard: str = ""
    """The guard that failed; empty at the first compilation."""
    at: str = ""
    """The line of code that the guard is due to, as file:line."""
    code: str = ""
    gave_up: str = ""
    """Why torch compiled it no more, if it did not: the frame runs eagerly from then on."""

    @property
    def remedy(self) -> str:
        """Remedies against such guards."""
        return remedy(self.guard, self.code) if self.guard else ""


def remedy(guard: str, hint: str = "") -> str:
    """Say what helps against a guard that fails; torch's hint separates counters from arguments."""
    for pattern, text in REMEDIES:
        if found := re.search(pattern, hint if "considers" in pattern else guard):
            return text.format(*found.groups(default=""))
    return "make what the guard compares the same in each call"


def read_trace(folder: Path) -> list[Compile]:
    """Read the traces of all processes that wrote into a folder."""
    found: list[Compile] = []
    for file in sorted(folder.glob("*.log")):
        with file.open(errors="replace") as lines:
            found += read_lines(lines)
    return found


def read_lines(lines: Iterable[str]) -> Iterator[Compile]:
    """Read what was compiled out of the lines of a trace."""
    functions: dict[str, dict[str, Any]] = {}
    for line in lines:
        at = line.find(METRICS)
        if at < 0:
            continue
        try:
            metrics = json.loads(line[at:])["compilation_metrics"]
        except ValueError:  # the process was killed while it wrote this line
            continue
        # A frame that torch gave up has no name of its own, but the number of those before.
        frame = str(metrics.get("compile_id")).rpartition("/")[0]
        if metrics.get("co_name"):
            functions[frame] = {name: metrics[name] for name in metrics if name.startswith("co_")}
        if frame in functions:
            yield _compile({**metrics, **functions[frame]})


def _compile(metrics: dict[str, Any]) -> Compile:
    failed = metrics.get("fail_reason") or ""
    guard, at, code = _reason(metrics.get("recompile_reason") or "")
    return Compile(
        id=str(metrics.get("compile_id", "?")), function=metrics["co_name"],
        file=metrics.get("co_filename") or "?", line=metrics.get("co_firstlineno") or 0,
        seconds=metrics.get("entire_frame_compile_time_s") or 0.0, guard=guard, at=at, code=code,
        gave_up=failed.splitlines()[0] if failed else "")


def _reason(text: str) -> tuple[str, str, str]:
    """Split a reason into guard, place and code."""
    if not text:
        return "", "", ""
    first, *rest = text.splitlines()
    condition, _, comment = re.sub(r"^\d+(/\d+)+: ", "", first).partition("  #")
    # The innermost frame of the user's stack is the line that asked for the guard.
    frames = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(rest))
    at = f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""
    return condition.strip(), at, comment.strip()
