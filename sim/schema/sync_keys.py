"""Keys of rare synchronisation: islands that train by themselves and meet every so often.

`harp.lightcc.outer_policy` decides what is sent, when and in how many bytes, for the simulator as
for the optimizers of `harp.lightcc.outer`.
"""

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from harp.lightcc.outer_policy import OuterPolicy
from sim.schema.base import Count, Model
from sim.schema.input_errors import Problem

OWN = {"fragments": ("streaming", "sparseloco"), "delay": ("streaming", "sparseloco"),
       "topk": ("sparseloco",), "bits": ("diloco", "streaming", "sparseloco"),
       "chunk": ("sparseloco",)}
"""Methods that read a key; all read the others."""


class Sync(Model):
    """How often islands meet, and what they send; an island is a host, which trains in step."""

    every: Count
    """Steps of a round, after which the islands have met once."""
    outer: Literal["local-sgd", "diloco", "streaming", "sparseloco"] = "diloco"
    """The outer optimizer: a mean of parameters (local SGD), DiLoCo, streaming DiLoCo, or
    SparseLoCo."""
    fragments: Count = 1
    """Parts of the model, sent in turn."""
    delay: Annotated[int, Strict(), Field(ge=0)] = 0
    """Steps during which a part is sent while the islands go on; 0: they wait for it."""
    topk: Count = 64
    """Values of each chunk that SparseLoCo sends."""
    chunk: Count = 4096
    """Elements among which it selects them."""
    bits: Literal[2, 4, 8, 32] | None = None
    """Bits of a value that is sent; where not given 2 for SparseLoCo, and 32 for the others."""

    @model_validator(mode="after")
    def _can_be(self) -> "Sync":
        for key, methods in OWN.items():
            if key in self.model_fields_set and self.outer not in methods:
                raise Problem(f"has no effect on outer: {self.outer}", path=(key,), at_key=True,
                              allowed=f"{key} beside outer: {' or '.join(methods)}")
        try:
            _ = self.policy
        except ValueError as error:
            raise Problem(str(error).replace("keep", "topk", 1)) from None
        return self

    @property
    def policy(self) -> OuterPolicy:
        """Give the policy of these keys; ValueError where they allow none."""
        return OuterPolicy(self.outer, self.every, self.fragments, self.delay, self.topk,
                           self.chunk, self.bits or 0)
