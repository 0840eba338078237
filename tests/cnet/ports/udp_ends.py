"""Ends of udp ports, as their test programs take them: an address and a namespace's file."""

import pytest

from lab.namespace import why_unusable

LOOPBACK = {"ipv4": ("127.0.0.1", "-", "127.0.0.1", "-"), "ipv6": ("::1", "-", "::1", "-")}
root = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
both = pytest.mark.parametrize("family", ["ipv4", "ipv6"])


def ends(a, b, family):
    return getattr(a, family), a.space.path, getattr(b, family), b.space.path
