"""Exceptions of the network stack: their classes, and reasons of ends."""

import errno

import pytest

import harp
from harp.net.errors import ended


@pytest.mark.parametrize(("reason", "kind"), [
    (harp.Reason.DONE, harp.Closed), (harp.Reason.SILENT, harp.PeerGone),
    (harp.Reason.VERSION, harp.Broken)])
def test_an_end_is_an_error_of_its_reason(reason, kind):
    error = ended(int(reason), "the sentence")
    assert (type(error), error.reason, str(error)) == (kind, reason, "the sentence")
    assert isinstance(error, ConnectionError)


def test_a_reason_of_a_later_version_is_an_incompatible_end():
    error = ended(99, "the sentence")
    assert (type(error), error.reason) == (harp.Broken, None)


def test_an_error_of_opening_is_the_sentence_and_has_the_number():
    error = harp.OpenError.of(-errno.ENODEV, "there is no eth9")
    assert (error.errno, str(error)) == (errno.ENODEV, "there is no eth9")
    assert str(harp.OpenError.of(-errno.ENODEV, "")) == "No such device"
    assert isinstance(error, OSError)
    assert issubclass(harp.Timeout, TimeoutError)
    assert issubclass(harp.Forked, RuntimeError)
