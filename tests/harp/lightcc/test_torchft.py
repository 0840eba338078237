"""LightCC under torchft's Manager, under the name that scripts import."""

from __future__ import annotations

import pytest

pytest.importorskip("torchft")

from harp.lightcc import torchft
from harp.lightcc.torch import torchft_group


def test_the_names_that_scripts_import_are_those_of_the_folder_torch():
    assert torchft.__all__
    for one in torchft.__all__:
        assert getattr(torchft, one) is getattr(torchft_group, one)
