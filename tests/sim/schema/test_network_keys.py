"""Keys of the network: fabrics, switches and a cloud's limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sim.schema import TopologyError, load
from sim.schema.network_keys import Explicit, Fabric, LeafSpine, Pfc, Switch
from tests.support.cluster_files import topology, write

RATES = st.sampled_from([1e9, 10e9, 25e9, 100e9, 400e9])


@given(RATES)
def test_ports_mark_in_proportion_to_their_rate(rate_bps: float) -> None:
    """65 packets of 1,500 B at 10 Gb/s, unless the file gives a number."""
    assert Switch().mark_bytes(rate_bps) == pytest.approx(65 * 1500 * rate_bps / 10e9)
    assert Switch(mark="9kB").mark_bytes(rate_bps) == 9000
    assert Switch(mark="0B").mark_bytes(rate_bps) == 0


@given(RATES, st.sampled_from([0.0, 1e-6, 5e-6]), st.sampled_from([1500, 9000]))
def test_headroom_takes_what_comes_until_a_sender_has_paused(rate_bps: float, latency_s: float,
                                                             frame: int) -> None:
    """Bytes on the way both times, a frame begun at each end, the pause and its 60 quanta."""
    on_the_way = 2 * latency_s * rate_bps / 8
    wanted = on_the_way + 2 * frame + 84 + 60 * 512 // 8
    assert Pfc().headroom_bytes(rate_bps, latency_s, frame) == pytest.approx(wanted, abs=1)
    assert Pfc(headroom="1kB").headroom_bytes(rate_bps, latency_s, frame) == 1000


def test_devices_or_links_make_a_fabric_explicit() -> None:
    fabric = TypeAdapter(Fabric).validate_python(
        {"devices": [{"name": "a"}], "links": [{"from": "a", "to": "h-0/eth0"}]})
    assert isinstance(fabric, Explicit)
    assert (fabric.links[0].source, fabric.links[0].target) == ("a", "h-0/eth0")
    leaves = TypeAdapter(Fabric).validate_python(
        {"template": "leaf-spine", "leaves": 2, "spines": 3})
    assert isinstance(leaves, LeafSpine)
    assert leaves.links == 1


@pytest.mark.parametrize(("fabric", "says"), [
    ({"template": "leaf-spnie"}, "did you mean 'leaf-spine'?"),
    ({"template": "leaf-spine", "leaves": 2}, "fabric.spines: is missing"),
    ({"template": "single-switch", "switch": {"alpha": 9999.0}}, "at most 128"),
    ({"template": "single-switch", "hash": {"function": "crc23"}}, "did you mean 'crc32'?")])
def test_a_fabric_that_cannot_be_is_one_sentence(tmp_path, fabric, says) -> None:
    with pytest.raises(TopologyError) as caught:
        load(write(tmp_path, topology(fabric=fabric)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
