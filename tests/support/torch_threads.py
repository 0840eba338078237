"""One thread of torch: small tensors gain nothing from two, which wait for each other when busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="package")
def one_thread_of_torch() -> Iterator[None]:
    """Hold for all tests of a folder whose conftest imports it."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
