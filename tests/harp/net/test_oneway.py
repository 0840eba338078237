"""One-way delays by source port."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from harp.net.oneway import answer, measure_delays
from tests.support.beside import beside


def test_an_answer_is_no_longer_than_what_it_answers() -> None:
    with beside(lambda ended: answer("127.0.0.1", 61007, lambda: not ended.is_set())):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0.2)
            sock.sendto(b"something else", ("127.0.0.1", 61007))
            with pytest.raises(TimeoutError):
                sock.recv(100)
        found = measure_delays("127.0.0.1", ("127.0.0.1", 61007), [61300, 61301], seconds=0.2,
                               most_bps=1e6)
    assert not np.isnan(found.seconds).all()
