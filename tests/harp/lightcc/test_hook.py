"""DDP's communication hook, under the name that scripts import."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from harp.lightcc import hook
from harp.lightcc.torch import gradient_hook


def test_the_names_that_scripts_import_are_those_of_the_folder_torch():
    assert hook.__all__
    for one in hook.__all__:
        assert getattr(hook, one) is getattr(gradient_hook, one)
