"""Routers on a path, by source port."""

from __future__ import annotations

from harp.net.traceroute import trace


def test_a_target_that_answers_some_ports_late_is_no_router(monkeypatch):
    """The first port's probe of TTL 1 went unanswered, and the target answers those of others."""
    late = iter([{}])
    monkeypatch.setattr("harp.net.traceroute._Asker.ask",
                        lambda _asker, ports, _ttl, _until_s: next(
                            late, dict.fromkeys(ports, "127.0.0.1")))
    found = trace("127.0.0.1", ("127.0.0.1", 61000), list(range(61256, 61260)))
    assert len(found.routers) == 4
    assert not found.answered
