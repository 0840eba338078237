"""Keys of execution traces that stand for a workload: what may stand under ``workload.trace``.

A text is short for its ``prefix`` alone. Paths begin at the topology file's folder. Traces are
read when they run (`sim.traces`), so that a file without them can still be checked.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, model_validator

from sim.schema.base import Flag, Line, Model
from sim.schema.input_errors import Problem, show


class TraceKeys(Model):
    """MLCommons Chakra execution traces of all ranks, replayed instead of a model."""

    prefix: Annotated[Line, Field(min_length=1)]
    """Their common name: PREFIX.0.et, PREFIX.1.et and so on, or PREFIX.et for all ranks; or the
    name of SimAI's workload text."""
    groups: Annotated[Line, Field(min_length=1)] | None = None
    """File of the groups of ranks, as {"1": [0, 1]}; those of the traces where not given."""
    deps: Literal["data+ctrl", "data"] = "data+ctrl"
    """Dependencies that hold an operation back."""
    by_flops: Flag = False
    """Whether compute takes its FLOPs over the GPU's rate rather than the recorded time."""

    _folder: str = PrivateAttr("")

    @model_validator(mode="after")
    def _remember_folder(self, info: ValidationInfo) -> "TraceKeys":
        self._folder = str((info.context or {}).get("folder", ""))
        return self

    @property
    def prefix_path(self) -> Path:
        """Common name of the files, from the working directory on."""
        return Path(self._folder, self.prefix)

    @property
    def groups_path(self) -> Path | None:
        """File of the groups, if one is given."""
        return None if self.groups is None else Path(self._folder, self.groups)


def _text_or_keys(value: Any) -> Any:
    if isinstance(value, str):
        return {"prefix": value}
    if isinstance(value, dict | TraceKeys):
        return value
    raise Problem(f"found {show(value)}", found=value, allowed="the common name of the files, such "
                  "as traces/gpt, or a mapping with it as prefix")


TraceKey = Annotated[TraceKeys, BeforeValidator(_text_or_keys, json_schema_input_type=(
    str | TraceKeys))]
"""Traces by the common name of their files, or with further keys."""
