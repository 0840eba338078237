"""The kernel's ECMP as `cnet/base/flow_hash_linux.h` computes it, against the kernel itself."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp._cnet import lib
from harp.routing import hashes
from lab.namespace import why_unusable
from lab.veth import Net
from tests.support.levels import each_once

needs_root = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
PROTOCOLS = {"udp": hashes.UDP, "tcp": hashes.TCP}
FLOWS = 500
"""Source ports tried for each way of asking."""


def routed_devices(space, family, lines):
    """The device on which the kernel would send each packet that a line of `ip` describes."""
    text = "\n".join(f"route get {line}" for line in lines) + "\n"
    routed = space.run("sh", "-c", f"printf '%s' '{text}' | ip {family} -batch -")
    return [line.split(" dev ")[1].split()[0] for line in routed.splitlines() if " dev " in line]


def predicted_hops(src, dst, ports, proto, seed, ways):
    """The index of the next hop of each source port, towards port 4791."""
    packed = b"".join(ip_address(src).packed + ip_address(dst).packed + struct.pack(
        ">HHB", port, hashes.ROCE_PORT, proto) for port in ports)
    rows = np.frombuffer(packed, np.uint8).reshape(len(ports), -1)
    hashed = hashes.hash_packed("linux", rows, seed=seed)
    return [lib.harp_linux_pick(int(value), ways) for value in hashed]


ADDRESSES = {4: ("198.51.100.1", "203.0.113.77", "100.64.7.9"),
             6: ("2001:db8:1::1", "2001:db8:2::77", "2001:db8:3::9")}
"""The router's own address, a far source, and where both send to."""


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def version(request):
    """The version of IP."""
    return request.param


@needs_root
@pytest.mark.parametrize(("ways", "protocol"), each_once([2, 3, 4, 7], PROTOCOLS))
def test_the_kernel_takes_the_predicted_next_hop(version, ways, protocol):
    """Of packets that it sends and of those that it passes on."""
    seed = 0x9E3779B9 + ways
    ports = np.random.default_rng(ways).integers(1, 2**16, FLOWS).tolist()
    own, away, dst = ADDRESSES[version]
    with Net() as net:
        router, neighbour = net.namespace(), net.namespace()
        *hops, way_in = [net.connect(router, neighbour)[0] for _ in range(ways + 1)]
        set_up_router(router, seed)
        family = f"-{version}"

        def via(end):
            address = ip_address(end.ipv4 if version == 4 else end.ipv6) + 1
            return f"via {address} dev {end.device}".split()

        router.run("ip", "address", "add", own, "dev", "lo")
        router.run("ip", family, "route", "add", away, *via(way_in))
        router.run("ip", family, "route", "add", dst,
                   *(word for end in hops for word in ("nexthop", *via(end))))
        for src, received in ((own, ""), (away, f"iif {way_in.device}")):
            taken = routed_devices(router, family, [
                f"{dst} from {src} {received} ipproto {protocol} sport {port} "
                f"dport {hashes.ROCE_PORT}" for port in ports])
            wanted = predicted_hops(src, dst, ports, PROTOCOLS[protocol], seed, ways)
            assert taken == [hops[index].device for index in wanted]
            assert len(set(taken)) == ways


def set_up_router(space, seed):
    """Let a namespace forward, and hash addresses and ports."""
    for key, value in (("ipv4.ip_forward", 1), ("ipv6.conf.all.forwarding", 1),
                       ("ipv4.conf.all.rp_filter", 0), ("ipv4.fib_multipath_hash_policy", 1),
                       ("ipv6.fib_multipath_hash_policy", 1),
                       ("ipv4.fib_multipath_hash_seed", seed)):
        space.sysctl(key, value)


TUPLES = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1),
                   st.integers(0, 2**16 - 1), st.integers(0, 255))
WORDS = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(st.lists(TUPLES, min_size=1, max_size=20), WORDS)
def test_packed_tuples_and_fields_have_one_hash_both_ways(rows, seed):
    packed = np.frombuffer(b"".join(struct.pack(">IIHHB", *row) for row in rows), np.uint8)
    fields = hashes.five_tuples(*zip(*rows, strict=True))
    back = fields._replace(src_ip=fields.dst_ip, dst_ip=fields.src_ip, src_port=fields.dst_port,
                           dst_port=fields.src_port)
    hashed = hashes.flow_hash("linux", fields, seed=seed)
    rows = packed.reshape(-1, 13)
    assert hashed.tolist() == hashes.hash_packed("linux", rows, seed=seed).tolist()
    assert hashed.tolist() == hashes.flow_hash("linux", back, seed=seed).tolist()


@settings(deadline=None)
@given(WORDS, st.integers(1, 512))
def test_next_hops_divide_the_range_of_hashes_in_order(value, ways):
    ends = [(((index + 1) << 31) + ways // 2) // ways for index in range(ways)]  # fib_rebalance
    wanted = next(index for index, end in enumerate(ends) if value >> 1 < end)
    assert lib.harp_linux_pick(value, ways) == wanted
