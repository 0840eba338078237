"""The first line of an error."""

from __future__ import annotations

import pytest

from harp.first_line import first_line


@pytest.mark.parametrize(("error", "line"), [
    (ValueError("one\ntwo"), "one"), (ValueError("\n one\n"), "one"),
    (TimeoutError(), "TimeoutError()")])
def test_an_error_has_one_line(error, line):
    assert first_line(error) == line
