"""Network interfaces as the kernel describes them."""

import pytest

from harp.net import nics
from lab.namespace import why_unusable
from lab.veth import Net, veth_pair


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_a_host_without_interfaces():
    with Net() as net, net.namespace().entered():
        assert nics.nics() == []


def test_of_a_host_an_address_is_its_own_or_not():
    assert nics.is_own_address("127.0.0.1")
    assert not nics.is_own_address("192.0.2.7")
    assert not nics.is_own_address("no address")
    assert nics.interface_of("127.0.0.1") == "lo"
    assert nics.interface_of("192.0.2.7") is None
    assert nics.interface_of("2001:db8::7") is None
    assert not nics.has_address("no such interface")


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_an_interface_has_the_addresses_that_it_was_given():
    with veth_pair() as (near, far), near.space.entered():
        assert nics.has_address(near.device)
        assert nics.interface_of(near.ipv4) == near.device
        assert nics.interface_of(far.ipv4) is None
        assert nics.is_own_address(near.ipv4)
        assert not nics.is_own_address(far.ipv4)


def test_gpus_are_nvidias_displays_and_3d_controllers(tmp_path):
    for number, (vendor, kind) in enumerate([
            ("0x10de", "0x030200"), ("0x10de", "0x030000"), ("0x10de", "0x068000"),
            ("0x1002", "0x030200")]):
        device = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    assert nics.gpus(tmp_path) == 2
    assert nics.gpus(tmp_path / "none") == 0


@pytest.mark.parametrize(("driver", "most", "usable"), [
    ("ena", 8, 4), ("ena", 1, 1), ("gve", 16, 8), ("mlx5_core", 8, 8), (None, 8, 8)])
def test_some_drivers_take_a_program_with_half_of_their_queues(driver, most, usable):
    assert nics.usable_queues(driver, most) == usable
