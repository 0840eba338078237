"""Tests of this folder have one thread of torch."""

from tests.support.torch_threads import one_thread_of_torch  # noqa: F401
