"""Keys of a transformer by hand, beside the shape that they become."""

from dataclasses import MISSING, fields

import pytest

from sim.schema.base import Model
from sim.schema.transformer_keys import ExpertKeys, LatentKeys, PatchKeys, TransformerKeys
from sim.workloads.transformer import Experts, Latent, Patches, Transformer

PAIRS = [(TransformerKeys, Transformer), (ExpertKeys, Experts), (LatentKeys, Latent),
         (PatchKeys, Patches)]


@pytest.mark.parametrize(("keys", "shape"), PAIRS, ids=lambda each: each.__name__)
def test_every_key_reaches_the_shape_with_the_same_default(keys: type[Model], shape: type) -> None:
    """A key that the shape lacks would be read, checked and then dropped without a word."""
    parts = {each.name: each for each in fields(shape)}
    assert set(keys.model_fields) == set(parts)
    for name, key in keys.model_fields.items():
        if parts[name].default is not MISSING:
            assert not key.is_required(), name
            assert key.default == parts[name].default, name
