"""Loops in every form that this CPU runs."""

import pytest

from tests.harp.lightcc.every_kernel import kernel_names, kernels


@pytest.fixture(params=kernel_names())
def form(request):
    """Have one form of the loops used."""
    with kernels(request.param):
        yield request.param
