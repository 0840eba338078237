"""Fixtures that several tests of routing share."""

import pytest

from tests.support.small_fabrics import SMALL


@pytest.fixture(params=SMALL, scope="module")
def small(request):
    return SMALL[request.param]()
