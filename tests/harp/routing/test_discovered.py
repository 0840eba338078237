"""Maps of discovered paths, and plans over them."""

from __future__ import annotations

import pytest

from harp.routing import discovered
from harp.routing.path_plan import PlanError


@pytest.mark.parametrize(("text", "sentence"), [
    ("{", "it is not a map"), ("{}", "its format is None"),
    ('{"format": "x"}', "its format is 'x'"),
    ('{"format": "harp-map-1", "ways": [{}]}', r"source is missing in ways\[0\]"),
    ("[]", "it is not a map")])
def test_a_file_that_is_no_map_is_one_sentence(text, sentence):
    with pytest.raises(PlanError, match=sentence):
        discovered.from_json(text)
