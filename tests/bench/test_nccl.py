"""Rows of the subject `nccl`, and the link that it loses packets on; its figures are not judged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from bench.nccl import nccl_rows as nccl
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.support import PATIENCE_S
from tests.support.levels import long_except

needs_root = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def test_rows_name_arms_that_may_be_there():
    ours = {name for port in ("udp", "xdp", "mem") for name in nccl.harp(port)}
    ours |= {*nccl.DEFAULT, *nccl.TCP_ONLY}
    for row in nccl.ROWS.values():
        assert row.value.removesuffix(", median").removesuffix(", p99") in ours
        assert row.against


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("row", long_except(
    ["nccl-udp", "nccl-lat", "nccl-mem", "nccl-both", "nccl-ring-8B", "nccl-ring-64MiB"],
    "nccl-udp"))
def test_rows_of_json(row):
    done = subprocess.run(
        [sys.executable, "-m", "bench", "nccl", "--json", "--only", row, "--seconds",
         "0.05", "--rounds", "1"], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode in (0, 1), done.stderr
    (got,) = json.loads(done.stdout)
    assert got["id"] == row
    assert got["reference_is"] in nccl.ROWS[row].against
    assert got["ratio"] == pytest.approx(got["value"] / got["reference"])
    lower = nccl.ROWS[row].lower
    better = got["ratio"] <= got["target"] if lower else got["ratio"] >= got["target"]
    assert got["ok"] == better
    assert got["other_is"] in (nccl.ROWS[row].beside or (None,))


def test_a_row_that_is_not_there():
    done = subprocess.run([sys.executable, "-m", "bench", "nccl", "--only", "nosuch"],
                          capture_output=True, text=True, check=False, timeout=PATIENCE_S,
                          env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 2
    assert "there is no row 'nosuch'; there are nccl-zc, nccl-udp" in done.stderr


@needs_root
@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 4000, 4000), (0.25, 2700, 3300)])
def test_a_link_loses_the_share_that_it_should(share, least, most):
    with veth_pair() as (a, b), b.losing(share):
        with b.space.entered():
            sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with a.space.entered():
            source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sink, source:
            sink.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
            sink.bind((b.ipv4, 4321))
            sink.setblocking(False)
            got = 0
            for _ in range(4000):
                source.sendto(b"x", (b.ipv4, 4321))
                try:
                    got += len(sink.recv(10))
                except BlockingIOError:
                    continue
            sink.settimeout(1)
            try:
                while True:
                    got += len(sink.recv(10))
            except TimeoutError:
                pass
    assert least <= got <= most
